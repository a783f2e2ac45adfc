"""Images of one name in several folders are told apart in the files of all images."""

from __future__ import annotations

import pytest

from unet_ddp.data.names import tell_apart
from unet_ddp.files import as_path


@pytest.mark.parametrize(
    ("images", "names"),
    [
        (["a/x.png", "b/y.png"], ["x.png", "y.png"]),
        (["a/x.png", "b/x.png"], ["a/x.png", "b/x.png"]),
        (["r/a/x.png", "r/b/x.png", "r/b/y.png"], ["a/x.png", "b/x.png", "b/y.png"]),
        (["x.png", "b/x.png"], ["x.png", "b/x.png"]),
        (["/d/p1/s/x.png", "/d/p2/s/x.png"], ["p1/s/x.png", "p2/s/x.png"]),
        (["s3://b/p1/x.png", "s3://b/p2/x.png"], ["p1/x.png", "p2/x.png"]),
        (["only/x.png"], ["x.png"]),
        ([], []),
    ],
)
def test_names_are_paths_where_they_repeat(images: list[str], names: list[str]) -> None:
    assert tell_apart([as_path(image) for image in images]) == names
