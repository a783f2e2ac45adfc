"""Images in windows: the same as whole, at any size, scale and file format."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from torch.nn import functional as F

from unet_ddp.data.formats.header import ImageFormat
from unet_ddp.data.formats.read import read_image
from unet_ddp.data.formats.resize import resize_area, scaled_size
from unet_ddp.data.labels import Labels
from unet_ddp.data.preprocessing import Preprocessing
from unet_ddp.errors import UserError
from unet_ddp.network.architecture import build_network, choose_architecture
from unet_ddp.prediction.backends import LoadedModel, TorchBackend, fold_batchnorm
from unet_ddp.prediction.prediction import decide, enlarge, to_probabilities
from unet_ddp.prediction.predictor import Options, Predictor
from unet_ddp.prediction.streaming import ArrayRows, ScaledRows, TiffRows
from unet_ddp.prediction.tiling import Tiling, blend
from unet_ddp.prediction.tta import Symmetry, symmetries

CPU = torch.device("cpu")


def lively_network(
    model: str = "unet", encoder: str | None = None, classes: int = 2, width: int = 2
):
    """Weights and statistics such that every part of the network has a say."""
    torch.manual_seed(4)
    architecture = choose_architecture(model, encoder, channels=3, num_classes=classes, width=width)
    network = build_network(architecture).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.05, 0.5)
            module.weight.data.uniform_(0.5, 1.5)
    if encoder is None:  # no class has it all
        with torch.no_grad():
            logits = network(
                Preprocessing.for_images(3, 255, scale=1.0)(torch.from_numpy(noise(64, 64))[None])
            )
            network.outc.conv.bias -= logits.flatten(2).median(2).values[0]
    return network


def make_predictor(*, scale: float = 1.0, classes: int = 2, networks: int = 1, **options: object):
    pixels = Preprocessing.for_images(3, 255, scale=scale)
    labels = Labels(tuple(range(classes)))
    member = LoadedModel(
        TorchBackend(lively_network(classes=classes), pixels, CPU), labels, pixels, None, []
    )
    return Predictor([member] * networks, device=CPU, options=Options(**options))  # type: ignore[arg-type]


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([9, seed]).integers(0, 256, (height, width, 3), dtype=np.uint8)


def blended(predictor: Predictor, image: np.ndarray, tiling: Tiling) -> np.ndarray:
    bands = list(blend(lambda a, b: image[a:b], predictor.scores, image.shape[:2], tiling))
    assert [top for top, _ in bands] == np.cumsum([0, *(b.shape[1] for _, b in bands)])[
        :-1
    ].tolist()
    return np.concatenate([band for _, band in bands], axis=1)


def test_windows_give_the_whole_images_logits() -> None:
    """The classic U-Net sees 100 pixels far: less than the share of an overlap without weight."""
    predictor, image = make_predictor(), noise(551, 743)
    whole = predictor.scores([image])[0]
    assert np.abs(blended(predictor, image, Tiling(512, 0.5, 16)) - whole).max() < 1e-4
    cut = blended(predictor, image, Tiling(64, 0, 16))
    assert np.abs(cut - whole).max() > 1e-3  # it does see some way


def test_windows_of_an_encoder_give_the_whole_images_logits() -> None:
    """ResNet-18 as a U-Net sees about 300 pixels far; 3/4 of a window of 1024 in common are enough,
    and with the default flags logits are off by up to a fifth of their spread, near borders alone."""
    network = lively_network("unet", "resnet18")
    pixels = Preprocessing.for_images(3, 255, scale=1.0)
    for module in network.modules():  # of that depth, random statistics make huge logits
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        network.train()(pixels(torch.from_numpy(noise(256, 256, 1))[None]))
    member = LoadedModel(
        TorchBackend(network.eval(), pixels, CPU), Labels((0, 1)), pixels, None, []
    )
    predictor, image = Predictor([member], device=CPU), noise(64, 1600)
    whole = predictor.scores([image])[0]
    assert whole.std() > 0.1
    assert np.abs(blended(predictor, image, Tiling(1024, 0.75, 32)) - whole).max() < 1e-4
    usual = np.abs(blended(predictor, image, Tiling(1024, 0.25, 32)) - whole)
    assert usual.max() < 0.5 * whole.std() and usual.mean() < 0.01 * whole.std()


@pytest.mark.parametrize("length", [1, 15, 16, 64, 65, 79, 80, 100, 333])
@pytest.mark.parametrize(
    ("side", "overlap"), [(16, 0.0), (64, 0.25), (64, 0.5), (64, 0.99), (70, 0.4)]
)
def test_weights_add_up_to_one_everywhere(length: int, side: int, overlap: float) -> None:
    tiling = Tiling(side, overlap, 16)
    total = np.zeros(length)
    for window in tiling.along(length):
        assert window.start % 16 == 0 and window.end - window.start <= tiling.window
        assert (window.weight >= 0).all()
        total[window.start : window.end] += window.weight
    assert np.allclose(total, 1, atol=1e-6)


def test_no_seam_shows_where_the_network_sees_farther_than_the_overlap(
    rng: np.random.Generator,
) -> None:
    """Windows that disagree by a constant: the step between neighbours is a ramp's, not a jump."""
    image, number = noise(64, 400), iter(range(100))
    tiling = Tiling(128, 0.5, 16)

    def constants(windows: list[np.ndarray]) -> np.ndarray:
        return np.stack([np.full((1, *w.shape[:2]), next(number), np.float32) for w in windows])

    bands = list(blend(lambda a, b: image[a:b], constants, image.shape[:2], tiling))
    row = bands[0][1][0, 0]
    assert row.max() - row.min() > 3
    assert np.abs(np.diff(row)).max() < 0.25


@pytest.mark.parametrize("size", [(300, 200), (301, 203), (64, 64), (7, 5)])
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.125, 0.37, 1 / 3])
def test_scaled_rows_are_the_scaled_wholes(size: tuple[int, int], scale: float) -> None:
    image = noise(*size)
    small = scaled_size(*size, scale)
    whole = resize_area(image, small)
    rows = ScaledRows(ArrayRows(image), small)
    parts = [rows.read(a, min(a + 9, small[0])) for a in range(0, small[0], 6)]  # overlapping
    for start, part in zip(range(0, small[0], 6), parts, strict=True):
        assert np.array_equal(part, whole[start : start + 9])


def test_rows_whose_ratio_has_no_small_group(monkeypatch: pytest.MonkeyPatch) -> None:
    from unet_ddp.prediction import streaming as rows

    monkeypatch.setattr(rows, "_AT_ONCE", 1000)
    image, small = noise(1201, 50), (600, 25)
    whole = resize_area(image, small).astype(int)
    scaled = ScaledRows(ArrayRows(image), small)
    found = np.concatenate([scaled.read(a, a + 60) for a in range(0, 600, 60)]).astype(int)
    assert np.abs(found - whole).max() <= 1  # the last bit of a mean
    assert (found != whole).mean() < 0.01


@pytest.mark.parametrize("how", [
    {}, {"tile": (64, 48)}, {"rowsperstrip": 7}, {"tile": (64, 64), "compression": "zlib"},
    {"rowsperstrip": 16, "compression": "zlib", "predictor": True}, {"byteorder": ">"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiffs_of_all_layouts_are_read_by_rows(tmp_path: Path, how: dict, dtype: type) -> None:
    image = noise(150, 131).astype(dtype) * (1 if dtype is np.uint8 else 257)
    tifffile.imwrite(tmp_path / "a.tif", image, photometric="rgb", **how)
    rows = TiffRows.open(tmp_path / "a.tif", ImageFormat(3, np.dtype(dtype).name))
    assert rows is not None and (rows.height, rows.width) == (150, 131)
    for top, bottom in ((0, 1), (0, 150), (60, 70), (63, 129), (149, 150)):
        assert np.array_equal(rows.read(top, bottom), image[top:bottom])
    rows.close()
    assert TiffRows.open(tmp_path / "a.tif", ImageFormat(4, "uint8")) is None


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.3])
@pytest.mark.parametrize(
    ("nodata", "dtype"), [(None, "float32"), (float("nan"), "float32"), (-9.0, "int16")]
)
def test_floats_and_holes_are_read_by_rows_as_whole(
    tmp_path: Path, nodata: float | None, dtype: str, scale: float
) -> None:
    image = (noise(150, 130).astype("float32") * 0.01).astype(dtype)
    if nodata is not None:
        image[20:50, 30:60] = nodata
    path, wanted = tmp_path / "a.tif", ImageFormat(3, dtype, nodata, (1.0, 2.0, 3.0))
    tifffile.imwrite(path, image, photometric="rgb", tile=(64, 64), compression="zlib")
    rows = TiffRows.open(path, wanted)
    assert rows is not None
    whole = read_image(path, wanted, scale=scale)
    scaled = ScaledRows(rows, whole.shape[:2])
    found = np.concatenate(
        [scaled.read(a, min(a + 9, len(whole))) for a in range(0, len(whole), 9)]
    )
    assert found.dtype == whole.dtype and np.abs(found - whole).max() < 1e-5
    if nodata is not None:
        assert rows.read(30, 31)[0, 40].tolist() == [1, 2, 3]
    rows.close()


def test_nan_deep_in_a_tiff_is_told(tmp_path: Path) -> None:
    image = np.zeros((90, 40, 3), np.float32)
    image[77, 5] = np.nan
    tifffile.imwrite(tmp_path / "a.tif", image, photometric="rgb")
    rows = TiffRows.open(tmp_path / "a.tif", ImageFormat(3, "float32"))
    assert rows is not None and rows.read(0, 70).sum() == 0
    with pytest.raises(UserError, match=r"a\.tif: nan or infinity in 1 pixel"):
        rows.read(70, 90)
    rows.close()


def test_enlarging_by_bands_is_torchs_interpolation() -> None:
    scores = np.random.default_rng(1).normal(size=(3, 40, 30)).astype(np.float32)
    for size in ((40, 30), (80, 60), (123, 77), (401, 303), (1280, 31)):
        expected = F.interpolate(torch.from_numpy(scores)[None], size, mode="bilinear")[0].numpy()
        cuts = (0, 1, 17, 18, 40)
        bands = [(a, scores[:, a:b]) for a, b in pairwise(cuts)]
        found = np.concatenate([band for _, band in enlarge(bands, (40, 30), size)], axis=1)
        assert np.abs(found - expected).max() < 1e-4


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.25])
def test_a_tiff_in_windows_is_the_image_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    """Through the memory map, scaling, blending and drawing out to the image's size."""
    from unet_ddp.prediction import predictor as module

    monkeypatch.setattr(module, "_STREAMED", 1)
    once = int(1 / scale)
    image = noise(540, 400).repeat(once, axis=0).repeat(once, axis=1)
    tifffile.imwrite(tmp_path / "a.tif", image, photometric="rgb")
    whole = make_predictor(scale=scale)(image)
    tiled = make_predictor(scale=scale, tile=384, overlap=2 / 3)
    for keep in (False, True):
        found = tiled(tmp_path / "a.tif", keep=keep)
        assert found.ids.shape == image.shape[:2]
        assert np.abs(found.probabilities - whole.probabilities).max() < 1e-4
        assert (found.ids != whole.ids).mean() < 1e-4
    assert 0.02 < whole.shares[1] < 0.98


def test_probabilities_and_classes_agree() -> None:
    for classes in (2, 5):
        found = make_predictor(classes=classes, scale=0.5)(noise(61, 83))
        probabilities = found.probabilities
        assert probabilities.shape == (classes, 61, 83)
        assert np.allclose(probabilities.sum(0), 1, atol=1e-5)
        assert np.array_equal(probabilities.argmax(0), found.ids)
        assert np.isclose(sum(found.shares), 1)
        assert found.shares[1] == (found.ids == 1).mean()


def test_a_threshold_holds_at_the_images_size() -> None:
    image = noise(61, 83)
    second = make_predictor(scale=0.5)(image).probabilities[1]
    threshold = float(np.quantile(second, 0.8))
    found = make_predictor(scale=0.5, threshold=threshold)(image).ids
    certain = np.abs(second - threshold) > 1e-6
    assert np.array_equal(found[certain], (second >= threshold)[certain])
    assert decide(np.zeros((1, 1, 1), np.float32), 0.5).item() == 1  # at least, not above
    assert to_probabilities(np.zeros((1, 1, 1), np.float32)).ravel().tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("kind", "count"), [("none", 1), ("mirror", 2), ("flips", 4), ("d4", 8)])
def test_augmented_prediction_turns_with_the_image(kind: str, count: int) -> None:
    """The mean over a group of symmetries follows each of them; a single prediction does not."""
    ways = symmetries(kind)
    assert len(set(ways)) == count
    image = torch.arange(24).reshape(1, 4, 6, 1)
    assert all(torch.equal(way.undo(way(image, (1, 2)), (1, 2)), image) for way in ways)
    predictor, photo = make_predictor(tta=kind), noise(48, 64)
    straight = predictor(photo).probabilities
    for way in symmetries("d4"):
        turned = way(torch.from_numpy(photo)[None], (1, 2))[0].numpy()
        found = torch.from_numpy(predictor(turned).probabilities)[None]
        difference = np.abs(way.undo(found, (2, 3))[0].numpy() - straight).max()
        assert (difference < 1e-5) == (way in ways), way
    assert Symmetry() in ways


def test_an_ensemble_is_the_mean_of_probabilities() -> None:
    pixels, labels, image = (
        Preprocessing.for_images(3, 255, scale=1.0),
        Labels((0, 1, 2)),
        noise(40, 50),
    )
    members = []
    for seed in range(2):
        network = lively_network(classes=3)
        network.outc.conv.bias.data += torch.tensor([3.0 * seed, 0, -1])
        members.append(LoadedModel(TorchBackend(network, pixels, CPU), labels, pixels, None, []))
    single = [Predictor([member], device=CPU)(image).probabilities for member in members]
    both = Predictor(members, device=CPU)(image).probabilities
    assert np.abs(both - (single[0] + single[1]) / 2).max() < 1e-5
    assert np.abs(single[0] - single[1]).max() > 0.1


def test_folded_batch_norm_is_the_same_function() -> None:
    for model, encoder in (("unet", None), ("unet", "resnet18")):
        network = lively_network(model, encoder).eval()
        images = torch.randn(1, 3, 64, 64)
        folded = fold_batchnorm(network)
        pixels = Preprocessing.for_images(3, 255, scale=1.0)
        assert TorchBackend(network, pixels, CPU).stride == (32 if encoder else 16)
        with torch.no_grad():
            expected, found = network(images), folded(images)
        assert (expected - found).abs().max() < 1e-4 * max(1, float(expected.abs().max()))
    norms = [
        m for m in fold_batchnorm(lively_network()).modules() if isinstance(m, torch.nn.BatchNorm2d)
    ]
    assert not norms


def test_pillow_images_and_arrays_are_taken() -> None:
    predictor, photo = make_predictor(scale=0.5), noise(50, 60)
    expected = predictor(photo).ids
    assert np.array_equal(predictor(Image.fromarray(photo)).ids, expected)
    grey = predictor(photo[..., 0]).ids
    assert np.array_equal(predictor(Image.fromarray(photo[..., 0])).ids, grey)
