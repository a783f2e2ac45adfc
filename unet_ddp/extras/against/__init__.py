"""How much better a network is than another on the same images, and how sure that is."""
