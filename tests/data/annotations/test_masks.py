"""The images that annotations are of."""

from __future__ import annotations

import pytest

from unet_ddp.data.annotations.masks import NameFinder

IMAGES = NameFinder(["scan_1", "sub/other"])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("scan_1", "scan_1"),
        ("scan_1.png", "scan_1"),
        ("x/y/sub/other.jpg", "sub/other"),
        (r"C:\imgs\.\sub\other.jpg", "sub/other"),
        ("x/../sub/./other.jpg", "sub/other"),
        ("other.jpg", "sub/other"),  # all folders left out
        ("./other.jpg", "sub/other"),
        ("/data/local-files/?d=other.jpg", "sub/other"),  # Label Studio's local files
        ("y/other.jpg", None),  # another folder's
        ("deadbeef-scan_1.png", "scan_1"),  # uploaded to Label Studio
        ("scan_deadbeef-1.png", None),
        ("", None),
    ],
)
def test_a_file_means_the_image_of_its_name(text: str, name: str | None) -> None:
    assert IMAGES.find(text) == name
