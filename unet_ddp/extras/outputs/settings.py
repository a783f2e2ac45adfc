"""Settings of the outputs beside mask and overlay."""

from typing import Annotated, Literal

from unet_ddp.settings import Calls, flag


class ListSettings:
    """Join the settings of a prediction."""

    place = "predict", "overlay"
    probabilities: Annotated[Literal["none", "png", "npy"], Calls("outputs")] = "none"
    """Also write the probabilities. png: a 16-bit image_probability_CLASS.png per class; npy: one image_probabilities.npy."""
    rle: Annotated[str | None, Calls("outputs"), flag("FILE")] = None
    """Also write the run-length encoded masks of all images to a CSV file, as for the Carvana challenge."""
    rle_order: Literal["rows", "columns"] = "rows"
    """Pixel order of --rle. rows: as in the Carvana challenge; columns: as in the Data Science Bowl and most others."""
    polygons: Annotated[str | None, Calls("outputs"), flag("FILE")] = None
    """Also write the outlines of all objects to a GeoJSON file (needs the extra geo)."""


class AnnotationSettings:
    """Join the settings of a prediction."""

    place = "predict", "objects"
    annotations: Annotated[str | None, Calls("outputs"), flag("FILE|labelme")] = None
    """Also write the objects for an annotation tool to correct: FILE.json in COCO's format, or with labelme a file next to each mask (needs the extra geo)."""
    label_studio: Annotated[str | None, Calls("outputs"), flag("FILE")] = None
    """Also write tasks for Label Studio, whose brush corrects the predictions: FILE.json."""
