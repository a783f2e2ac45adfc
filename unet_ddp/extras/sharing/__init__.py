"""Networks given to others: a folder with a model card, a package of bioimage.io."""
