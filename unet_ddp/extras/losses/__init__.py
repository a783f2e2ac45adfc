"""Terms of the loss beside Dice and cross-entropy, and factors of its pixels."""
