"""Images of maps, by rasterio."""
