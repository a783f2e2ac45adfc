"""From images to masks with trained networks; imports nothing that only training needs."""
