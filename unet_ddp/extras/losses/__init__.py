"""Terms of the loss other than Dice and cross-entropy, and factors of its pixels."""
