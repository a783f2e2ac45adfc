"""Labels of masks in which each object has a number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.data.test_label_rules import masks
from unet_ddp.config import DataConfig
from unet_ddp.data.label_rules import choose_labels
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.labels import ObjectLabels


@pytest.mark.parametrize("rgb", [False, True])
def test_numbers_of_objects_make_three_classes(rgb: bool) -> None:
    """As many as there are, with gaps, from colours too."""
    found = choose_labels(
        masks([0, 5, *range(300, 900)], rgb=rgb), DataConfig(instances=True, ignore_index=5)
    )
    assert found.class_names == ["background", "object", "border"] and isinstance(
        found, ObjectLabels
    )
    assert (found.ignore, found.rgb, found.separation) == (5, False, (0.5, 0.5))


@pytest.mark.parametrize(
    ("values", "how", "said"),
    [
        ([0, 1, 2], {"lossy": "a.jpg"}, "a.jpg: --instances: lossy compression changes the objects' numbers; save"),
        ([0, 255], {}, "only 0, 255: no object has a number of its own"),
        ([0], {}, "only 0: no object"),
        ([0, 5, 7], {"ignore_index": 5}, "only 0, 5, 7: no object"),
        ([-4, 0, 1], {}, "m-4.png: value -4; expected numbers of objects, 1 or more"),
    ],
)  # fmt: skip
def test_what_can_not_be_objects_is_refused(
    values: list[int], how: dict[str, Any], said: str
) -> None:
    config = DataConfig(instances=True, ignore_index=how.pop("ignore_index", None))
    with pytest.raises(UserError) as caught:
        choose_labels(masks(values, **how), config)
    assert said in str(caught.value)


def test_names_of_objects_classes() -> None:
    """Several names: values contain the class; one: they are numbers."""
    values = masks([0, 65_535, 1_000_001, 2_000_001])
    config = DataConfig(instances=True, class_names=("car", "tree"), ignore_index=65_535)
    found = choose_labels(values, config)
    assert found.names == ("background", "car", "tree", "border") and found.mask_suffix == "tif"
    with pytest.raises(UserError, match=r"m65535\.png: value 65535; expected class \*"):
        choose_labels(values, replace(config, ignore_index=None))
    with pytest.raises(UserError, match=r"m3\.png: value 3; expected class \* 1000000"):
        choose_labels(masks([0, 1_000_001, 3]), config)
    found = choose_labels(values, DataConfig(instances=True, class_names=("cell",)))
    assert found.names == ("background", "cell", "border") and found.mask_suffix == "png"
