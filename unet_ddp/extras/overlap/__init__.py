"""Classes that overlap: a pixel may be in several, or in none."""
