"""The images that annotations are of, and the names of their classes."""

from __future__ import annotations

import pytest

from unet_ddp.extras.annotations.masks import NameFinder, clean_label

IMAGES = NameFinder(["scan_1", "sub/other", "very/deep/third", "u\u0308ber", "é", "a b", "5%20"])


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
        ("third.jpg", "very/deep/third"),
        ("/data/local-files/?d=other.jpg", "sub/other"),  # Label Studio's local files
        ("/data/local-files/?d=sub%2Fo%74her.jpg", "sub/other"),
        ("x/a%20b.jpg", "a b"),
        ("5%20.jpg", "5%20"),
        ("y/other.jpg", None),  # another folder's
        ("\u00fcber.jpg", "u\u0308ber"),  # composed, as most systems write it, of a Mac's file
        ("e\u0301.jpg", "é"),
        ("deadbeef-scan_1.png", "scan_1"),  # uploaded to Label Studio
        ("scan_deadbeef-1.png", None),
        ("", None),
    ],
)
def test_a_file_means_the_image_of_its_name(text: str, name: str | None) -> None:
    assert IMAGES.find(text) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (" a\n b ", "a b"),
        ("", "unnamed"),
        (7, "7"),
        ("BackGround", "background"),
        ("_background_", "background"),  # Labelme's
        ("__ignore__", "ignore"),
    ],
)
def test_a_class_has_a_name_in_one_line(text: object, name: str) -> None:
    assert clean_label(text) == name
