"""Drawn cars on a turntable: side profiles drawn out to their width, with windows, wheels, lights and mirrors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.random import Generator, default_rng
from PIL import Image

from unet_ddp.extras.demo_set.shapes import Array, to_image
from unet_ddp.extras.demo_set.studio import FINER, Colour, Picture, draw_studio

WIDTH, HEIGHT, VIEWS = 240, 160, 16
_KINDS = (  # length, bonnet, boot in metres, height above a hatchback's
    ((3.6, 4.1), 1.05, 0.25, 0.0),
    ((4.4, 4.9), 1.4, 1.05, -0.05),  # saloon
    ((4.4, 4.8), 1.35, 0.2, 0.0),  # estate
    ((4.3, 4.9), 0.85, 0.1, 0.35),  # van
    ((4.9, 5.3), 1.3, 1.7, 0.25),  # pickup
)
_PAINTS: tuple[Colour, ...] = (
    (236, 236, 234), (30, 58, 120), (28, 29, 32), (196, 199, 202), (150, 28, 30), (120, 124, 128),
    (222, 222, 226), (84, 96, 70), (206, 178, 120), (70, 42, 30),
)  # fmt: skip
_GLASS = np.array([48.0, 57, 63])
_LOW = 0.22  # metres: the body's lower edge
_AXES = 0.78  # metres from the ends
_CIRCLE = np.linspace(0, 2 * np.pi, 28)


@dataclass(frozen=True)
class Car:
    """Measures in metres: x to the front, y to the left, z up from the middle of the table."""

    length: float
    width: float
    belt: float  # height of the windows' lower edge
    roof: float
    bonnet: float  # length before the windscreen
    boot: float  # length behind the rear window
    lean: float  # of the windscreen, along x
    wheel: float  # radius
    paint: Array
    skirt: Array  # colour of the lower edge

    @classmethod
    def choose(cls, random: Generator, number: int) -> Car:
        """Return a hatchback, saloon, estate, van or pickup."""
        lengths, bonnet, boot, high = _KINDS[random.integers(len(_KINDS))]
        paint = _PAINTS[number % len(_PAINTS)] + random.uniform(-12, 12, 3)
        roof, belt = 1.45 + high + random.uniform(-0.04, 0.06), 0.95 + 0.6 * high
        return cls(
            length=random.uniform(*lengths),
            width=random.uniform(1.7, 1.95),
            belt=belt + random.uniform(-0.03, 0.05),
            roof=roof,
            bonnet=bonnet * random.uniform(0.9, 1.1),
            boot=boot * random.uniform(0.85, 1.15),
            lean=random.uniform(0.7, 1.3) * (roof - belt),
            wheel=random.uniform(0.3, 0.36) + 0.1 * high,
            paint=paint.clip(8, 245),
            skirt=np.full(3, 52.0) if random.random() < 0.25 else 0.62 * paint,
        )

    @cached_property
    def body(self) -> Array:
        """Side profile below the windows, closed: (N, 2) of x and z."""
        end, nose = self.length / 2, 0.8 * self.belt
        corners = [
            (end - 0.12, _LOW), (end, 0.45), (end - 0.05, nose - 0.05), (end - 0.3, nose),
            (end - self.bonnet, self.belt), (self.boot - end, self.belt), (0.1 - end, self.belt - 0.04),
            (-end, self.belt - 0.25), (0.1 - end, _LOW),
        ]  # fmt: skip
        return _round(np.array(corners))

    @cached_property
    def cabin(self) -> Array:
        """Foot and head of the windscreen, head and foot of the rear window: (4, 2) of x and z."""
        front, back = self.length / 2 - self.bonnet, self.boot - self.length / 2
        lean = self.lean * (0.7 if 0.5 < self.boot < 1.3 else 0.35)
        heights = self.belt, self.roof, self.roof, self.belt
        return np.array([(front, front - self.lean, back + lean, back), heights]).T

    def side(self, profile: Array, sign: float, share: Array | float = 1.0) -> Array:
        """Return a profile (N, 2) on the left side (1) or the right one (-1), (N, 3); the ends are narrower."""
        half = 0.5 * self.width * (1 - 0.16 * np.abs(2 * profile[:, 0] / self.length) ** 4)
        return np.column_stack([profile[:, 0], sign * share * half, profile[:, 1]])


def _round(corners: Array) -> Array:
    """Return a closed outline (N, 2) with its corners cut twice: (4 N, 2), after Chaikin, 1974."""
    for _ in range(2):
        after = np.roll(corners, -1, axis=0)
        pairs = np.stack([0.75 * corners + 0.25 * after, 0.25 * corners + 0.75 * after], axis=1)
        corners = pairs.reshape(-1, 2)
    return corners


def draw_views(number: int) -> Iterator[tuple[Image.Image, Image.Image]]:
    """Yield each view of a car, all around it: an RGB image, and a mask of 0 and 1, shown black and white."""
    look = default_rng([number, 0xCA2])
    car = Car.choose(look, number)
    start = look.uniform(0, 1)
    studio = draw_studio(look, (WIDTH * FINER, HEIGHT * FINER))
    for view in range(VIEWS):
        picture = Picture(studio, 2 * np.pi * (view + start) / VIEWS)
        picture.cast_shadow(car.length, car.width)
        _draw(picture, car)
        image, inside = (part.reduce(FINER) for part in (picture.image, picture.mask))
        noise = default_rng([number, view, 0x9E0]).normal(0, 3, (HEIGHT, WIDTH, 3))
        mask = inside.point(lambda value: value >= 128)
        mask.putpalette((0, 0, 0, 255, 255, 255))
        yield to_image(np.asarray(image) + noise), mask


def _draw(picture: Picture, car: Car) -> None:
    """Draw what is farther first."""
    near = 1.0 if picture.sees(np.array([0, 1.0, 0]), np.array([0, car.width / 2, 0])) else -1.0
    _draw_wheels(picture, car, -near, is_near=False)
    _draw_flank(picture, car, near)
    _draw_wheels(picture, car, near, is_near=True)
    _draw_around(picture, car, car.body)
    _draw_ends(picture, car)
    for side in (-near, near):
        if side == near:
            _draw_cabin(picture, car, near)
        mirror = np.array([(car.cabin[0, 0] - 0.25, car.belt + height) for height in (0, 0.14)])
        parts = [
            car.side(mirror + np.array([depth, 0]), side, share)
            for depth in (0, 0.1)
            for share in (1, 1.22)
        ]
        picture.fill_hull(np.concatenate(parts), _shade(car, 0.2))


def _shade(car: Car, up: float, ahead: float = 0.0) -> Array:
    """Return the paint's colour on a face that looks so far up and ahead, from 0 to 1."""
    up = max(up, 0)
    shaded: Array = car.paint * (0.5 + 0.5 * up + 0.12 * abs(ahead)) + 46 * up**2 + 10
    return shaded


def _draw_flank(picture: Picture, car: Car, near: float) -> None:
    flank, paint = car.side(car.body, near), _shade(car, 0)
    picture.fill(flank, paint)
    bands = (
        (0, 0.55, 0.85 * paint),
        (0, 0.42, car.skirt),
        (0.8 * car.belt, 0.95 * car.belt, 1.25 * paint + 14),
    )
    for low, high, colour in bands:
        picture.paint(flank[(flank[:, 2] >= low) & (flank[:, 2] <= high)], colour)
    front, back = car.cabin[[0, 3], 0]
    for x in (front - 0.15, (front + back) / 2):  # doors
        gap = np.array([(x, 0.35), (x + 0.025, 0.35), (x + 0.025, car.belt), (x, car.belt)])
        picture.paint(car.side(gap, near), 0.4 * paint)


def _draw_around(picture: Picture, car: Car, profile: Array, share: Array | float = 1.0) -> Array:
    """Draw the strips between both sides of a closed profile that are seen; return whether each is: (N,)."""
    left, right = (car.side(profile, sign, share) for sign in (1, -1))
    after = np.roll(np.arange(len(profile)), -1)
    steps = profile[after] - profile
    steps /= np.linalg.norm(steps, axis=1, keepdims=True)
    seen = np.zeros(len(profile), bool)
    for index, (dx, dz) in enumerate(steps):
        strip = np.stack([left[index], left[after[index]], right[after[index]], right[index]])
        seen[index] = picture.sees(np.array([dz, 0, -dx]), strip.mean(axis=0))
        if seen[index]:
            picture.fill(strip, _shade(car, -dx, dz))
    return seen


def _draw_ends(picture: Picture, car: Car) -> None:
    """Draw lamps, grille and number plates."""
    half = 0.5 * car.width
    for end, lamp, high in (
        (1, (246, 246, 236), 0.8 * car.belt - 0.12),
        (-1, (168, 20, 22), car.belt - 0.2),
    ):
        x = end * (car.length / 2 + 0.005)
        if not picture.sees(np.array([end, 0, 0]), np.array([x, 0, 0.6])):
            continue
        parts = [(-0.5, 0.5, high - 0.2, high - 0.02, (34, 34, 36))] if end > 0 else []
        parts += [(-0.26, 0.26, 0.42, 0.54, (232, 232, 222))]
        parts += [
            (sign * 0.5 * half, sign * 0.82 * half, high - 0.16, high, lamp) for sign in (-1, 1)
        ]
        for left, right, low, top, colour in parts:
            corners = [(x, left, low), (x, right, low), (x, right, top), (x, left, top)]
            picture.paint(np.array(corners), colour)


def _draw_wheels(picture: Picture, car: Car, side: float, *, is_near: bool) -> None:
    for x in (car.length / 2 - _AXES, _AXES - car.length / 2):
        ring = np.stack([np.cos(_CIRCLE), np.sin(_CIRCLE)], axis=1)

        def disc(radius: float, out: float, x: float = x, ring: Array = ring) -> Array:
            points = car.side(ring * radius + (x, car.wheel), side)
            points[:, 1] = points[:, 1].mean() + side * out
            return points

        if is_near:
            picture.paint(disc(car.wheel + 0.07, 0).clip((-9, -9, _LOW), 9), (14, 14, 15))
        picture.fill_hull(np.concatenate([disc(car.wheel, -0.2), disc(car.wheel, 0)]), (26, 26, 27))
        if is_near:
            picture.paint(disc(0.66 * car.wheel, 0.01), (158, 160, 164))
            for spoke in range(5):
                wedge = disc(0.58 * car.wheel, 0.02)[5 * spoke : 5 * spoke + 3]
                picture.paint(np.concatenate([disc(0.0, 0.02)[:1], wedge]), (62, 63, 66))


def _draw_cabin(picture: Picture, car: Car, near: float) -> None:
    share = np.array([0.97, 0.78, 0.78, 0.97])
    seen = _draw_around(picture, car, car.cabin, share)
    left, right = (car.side(car.cabin, sign, share) for sign in (1, -1))
    for first, glass in ((0, _GLASS + 24), (2, _GLASS)):  # windscreen, rear window
        if seen[first]:
            pane = np.concatenate([left[first : first + 2], right[first : first + 2][::-1]])
            picture.paint(_shrink(pane, 0.88), glass)
    flank, paint = car.side(car.cabin, near, share), _shade(car, 0.2)
    picture.fill(flank, paint)
    window = _shrink(flank, np.array([0.9, 1, 0.78]))
    picture.paint(window, _GLASS + 8)
    foot, head = (window[corners].mean(axis=0) for corners in ([0, 3], [1, 2]))
    head[0], wide = foot[0], np.array([0.09, 0, 0])
    picture.paint(np.stack([foot, head, head + wide, foot + wide]), 0.8 * paint)


def _shrink(points: Array, factor: Array | float) -> Array:
    middle = points.mean(axis=0)
    shrunk: Array = middle + (points - middle) * factor
    return shrunk
