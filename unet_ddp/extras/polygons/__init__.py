"""Masks that are polygons on a map, by pyogrio and shapely."""
