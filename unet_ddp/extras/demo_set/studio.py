"""The studio that cars are drawn in: a camera before a turntable, wall, floor, lamps and lettering."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.random import Generator
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from unet_ddp.extras.demo_set.shapes import Array, to_image

FINER = 2  # drawn so many times as large, for smooth edges
_DISTANCE, _EYE = 8.5, 1.75  # metres of the camera from the table's middle, and above it
_ZOOM, _HORIZON = 1.42, 0.3  # of the picture's width, at a distance of 1 metre; of its height
_TABLE = 3.0  # metres: its radius
_WORDS = "MOTORS", "STUDIO", "AUTO 24", "GARAGE", "DRIVE", "SALE"

Colour = tuple[float, float, float]


class Picture:
    """A picture of what stands on the table, which is turned by an angle, and the mask of it.

    Points are (N, 3), in metres: x and y on the table, z up from its middle.
    """

    def __init__(self, studio: Image.Image, turn: float) -> None:
        self.image, self.mask = studio.copy(), Image.new("L", studio.size)
        self._cos, self._sin = np.cos(turn), np.sin(turn)
        self._eye = np.array([-self._sin * _DISTANCE, -self._cos * _DISTANCE, _EYE])

    def sees(self, normal: Array, point: Array) -> bool:
        """Return whether a face at a point looks to the camera."""
        return bool(normal @ (self._eye - point) > 0)

    def project(self, points: Array) -> Array:
        """Return the places of points in the picture: (N, 2)."""
        x, y, z = points.T
        scale = self.image.width * _ZOOM / (x * self._sin + y * self._cos + _DISTANCE)
        across = self.image.width / 2 + (x * self._cos - y * self._sin) * scale
        return np.stack([across, self.image.height * _HORIZON + (_EYE - z) * scale], axis=1)

    def paint(self, points: Array, colour: Array | Colour) -> None:
        """Fill a polygon in the image alone."""
        self._fill(
            self.image, self.project(points), tuple(np.clip(colour, 0, 255).astype(int).tolist())
        )

    def fill(self, points: Array, colour: Array | Colour) -> None:
        """Fill a polygon in the image and the mask."""
        self.paint(points, colour)
        self._fill(self.mask, self.project(points), 255)

    def fill_hull(self, points: Array, colour: Array | Colour) -> None:
        """Fill the outline of a convex body in the image and the mask."""
        hull = cv2.convexHull(self.project(points).astype(np.float32), returnPoints=False)
        self.fill(points[hull[:, 0]], colour)

    def cast_shadow(self, length: float, width: float) -> None:
        """Draw the table, with the reflection and the shadow of a body of this size."""
        angles = np.linspace(0, 2 * np.pi, 48)
        circle = _TABLE * np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
        floor = np.array(self.image.getpixel((self.image.width // 2, self.image.height - 4)), float)
        self.paint(1.02 * circle, floor - 34)
        self.paint(circle, floor + 8)
        dark = Image.new("L", self.image.size)
        x, y = np.sign(np.cos(angles)), np.sign(np.sin(angles))  # a rectangle with round corners
        x, y = x * np.abs(np.cos(angles)) ** 0.4, y * np.abs(np.sin(angles)) ** 0.4
        for depth, strength in ((-0.45, 40), (0.0, 150)):
            ring = np.stack([x * length / 2, y * width / 2, np.full_like(x, depth)], axis=1)
            self._fill(dark, self.project(ring), strength)
        self.image.paste((12, 12, 14), mask=dark.filter(ImageFilter.BoxBlur(6)))

    @staticmethod
    def _fill(image: Image.Image, corners: Array, colour: int | tuple[int, ...]) -> None:
        ImageDraw.Draw(image).polygon([tuple(corner) for corner in corners.tolist()], fill=colour)


def draw_studio(random: Generator, size: tuple[int, int]) -> Image.Image:
    """Draw an empty studio of (width, height) pixels."""
    width, height = size
    horizon = height * random.uniform(0.36, 0.46)
    rows, columns = np.arange(height)[:, None], np.arange(width)
    wall, floor = random.uniform(170, 235), random.uniform(150, 215) + 0.12 * (rows - horizon)
    lit = (columns / width - random.uniform(0.3, 0.7)) / 0.4
    light = np.where(rows < horizon, wall, floor) + 30 * np.exp(-(lit**2)) - 20
    studio = to_image(light[..., None] + random.uniform(-8, 8, 3))
    pen = ImageDraw.Draw(studio)
    letters = height * random.uniform(0.16, 0.26)
    place = (
        width * random.uniform(0.02, 0.35),
        max(2.0, horizon - letters * random.uniform(0.9, 1.6)),
    )
    ink = tuple(random.integers(20, 230, 3).tolist())
    font = ImageFont.load_default(letters)
    pen.text(place, _WORDS[random.integers(len(_WORDS))], fill=ink, font=font)
    for _ in range(random.integers(0, 3)):  # lamps
        x, top = width * random.choice([0.06, 0.94]), height * random.uniform(0.05, 0.2)
        x += width * random.uniform(-0.06, 0.06)
        pen.line((x, top, x, horizon + 40), fill=(40, 40, 42), width=3)
        box = x - 26, top - 12, x + 26, top + 22
        pen.rectangle(box, fill=(250, 250, 244), outline=(30, 30, 32), width=3)
    return studio
