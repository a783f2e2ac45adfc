"""From images to masks with trained networks; nothing here that only training needs."""
