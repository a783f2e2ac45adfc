"""Networks and options together: from an image to its prediction."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Semaphore
from time import sleep
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from tests.operations import Operations
from tests.prediction.models import (
    CPU,
    Backend,
    lively_network,
    load,
    make_predictor,
    noise,
    write_model,
)
from unet_ddp.checkpoints.weights import read_model
from unet_ddp.commands.trained_run import TrainedRun
from unet_ddp.data.labels import Labels
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.prediction import predictor as module
from unet_ddp.prediction import source
from unet_ddp.prediction.backends import TorchBackend, build_model
from unet_ddp.prediction.predictor import Predictor
from unet_ddp.prediction.tiling import Tiling, blend

IMPORTED = """
import sys, unet_ddp
print("torch" in sys.modules)
from unet_ddp import Predictor
Predictor.from_checkpoint(sys.argv[1], device="cpu")
print(*sys.modules)
import numpy
from unet_ddp.commands import predict
from unet_ddp.data.drawing import draw_mask
from unet_ddp.data.labels import Labels
draw_mask(numpy.zeros((2, 2, 3), "uint8"), numpy.ones((2, 2), "uint8"), Labels((0, 1)))
print(*sys.modules)
"""


def test_the_package_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    write_model(tmp_path / "a.pt", Labels((0, 1)))
    argv = [sys.executable, "-c", IMPORTED, str(tmp_path / "a.pt")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    has_torch, library, program = done.stdout.splitlines()
    assert has_torch == "False"
    for name in ("tyro", "yaml", "unet_ddp.config", "unet_ddp.cli", "unet_ddp.training",
                 "unet_ddp.checks", "unet_ddp.distributed.world", "unet_ddp.evaluation",
                 "unet_ddp.distributed.launch", "unet_ddp.distributed.join"):  # fmt: skip
        assert name not in library.split(), name
    if not torch.__version__.startswith("2.10."):  # which draws weights on no device with it
        assert "sympy" not in library.split()
    for name in ("albumentations", "segmentation_models_pytorch", "timm", "torchvision",
                 "tensorboard", "matplotlib", "cv2", "onnxruntime", "unet_ddp.extras.cloud"):  # fmt: skip
        assert name not in program.split(), name


def test_public_names_are_the_package_s() -> None:
    import unet_ddp

    assert unet_ddp.Predictor is Predictor
    assert unet_ddp.Prediction.__name__ == "Prediction"
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = unet_ddp.Other


def ensemble(*thresholds: float | None, **options: Any) -> Predictor:
    labels = Labels((0, 1))
    models = [load(lively_network(), labels, threshold=t, notes=[str(t)]) for t in thresholds]
    return Predictor(models, device=CPU, **options)


def test_the_threshold_is_the_flags_or_the_checkpoints() -> None:
    assert ensemble(0.3).threshold == 0.3
    assert ensemble(0.3, threshold=0.6).threshold == 0.6
    assert ensemble(None).threshold is None
    assert ensemble(0.3, 0.3).threshold == 0.3
    assert ensemble(0.3, 0.8, 0.4).threshold == 0.5
    assert ensemble(0.3, 0.4, threshold=0.9).threshold == 0.9
    assert ensemble(None, None).threshold is None
    assert ensemble(0.3, None).threshold == 0.4  # without one, the most probable class
    assert ensemble(0.3, None).notes == ["0.3", "None"]


def test_objects_of_an_ensemble_are_separated_by_the_means_of_both_thresholds() -> None:
    labels = [
        replace(ObjectLabels.of(("cell",)), separation=pair) for pair in ((0.4, 0.3), (0.8, 0.5))
    ]
    models = [load(lively_network(classes=3), each) for each in labels]
    assert Predictor(models, device=CPU).labels.separation == pytest.approx((0.6, 0.4))


@pytest.mark.parametrize("order", [1, -1])
def test_windows_of_an_ensemble_start_where_all_its_networks_pool(order: int) -> None:
    """The classic U-Net's stride is 16, that of smp's networks 32."""
    labels = Labels((0, 1))
    models = [load(lively_network(), labels), load(lively_network("fpn", "resnet18"), labels)]
    tiling = Predictor(models[::order], device=CPU, tile=80).tiling
    assert (tiling.stride, tiling.window) == (32, 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0}, "--threshold 0: must be above 0"),
        ({"threshold": 1}, "--threshold 1: must be above 0 and below 1"),
        ({"classes": 3, "threshold": 0.5}, "--threshold 0.5: is for two classes.* has 3"),
        ({"tta": "cubes"}, "--tta cubes: must be one of none, mirror, flips, d4"),
        ({"tile": 8}, "--tile 8"),
        ({"tile": 15}, "--tile 15: .* 16"),
        ({"overlap": 100}, "--overlap 100: must be 0 or more and below 100"),
        ({"overlap": -0.1}, "--overlap -0.1:"),
    ],
)
def test_options_out_of_range_are_named(options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_predictor(**options)


def test_an_overlap_is_a_percentage_as_the_flag_is() -> None:
    assert make_predictor(overlap=50).tiling.overlap == 0.5
    assert make_predictor(overlap=0.5).tiling.overlap == 0.005


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": "0.3"}, "threshold: '0.3'; expected a number"),
        ({"threshold": True}, "threshold: True; expected a number"),
        ({"overlap": True}, "overlap: True; expected a number"),
        ({"tile": True}, "tile: True; expected a whole number"),
        ({"tile": "32"}, "tile: '32'; expected a whole number"),
        ({"tile": 40.5}, "tile: 40.5; expected a whole number"),
        ({"tta": 4}, "tta: 4; expected text"),
        (
            {"batch": 4},
            "batch: a predictor has no such option; help(unet_ddp.Predictor.from_checkpoint) has them all",
        ),
    ],
)
def test_options_of_another_type_are_named(tmp_path: Path, options: Any, message: str) -> None:
    """Issue: each was a TypeError from inside the program."""
    write_model(tmp_path / "a.pt", Labels((0, 1)))
    with pytest.raises(UserError) as refused:
        Predictor.from_checkpoint(tmp_path / "a.pt", device="cpu", **options)
    assert str(refused.value) == message


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
@pytest.mark.parametrize("option", ["ground_resolution", "threshold", "overlap", "tile", "scale"])
def test_a_number_that_an_option_can_t_have_is_named(
    tmp_path: Path, option: str, value: float
) -> None:
    """Issue: a ground resolution of 0 or nan had no effect, and -1 led to false advice."""
    write_model(tmp_path / "a.pt", Labels((0, 1)))
    if (option, value) == ("overlap", 0):
        return
    with pytest.raises(UserError, match=rf"^(--)?{option}:? {value}(\.0)?[;:] "):
        Predictor.from_checkpoint(tmp_path / "a.pt", device="cpu", **{option: value})  # type: ignore[arg-type]


NO_IMAGE = "is no image; give a path, an array, or what Image.open of Pillow returns"
NO_PATH = "is no path of a checkpoint; several are from_checkpoint('a.pt', 'b.pt')"
NO_TENSOR = "expected a tensor (N, H, W, 3)"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda given: given(None), f"None: {NO_IMAGE}"),
        (lambda given: given(b"\x89PNG"), f"a bytes: {NO_IMAGE}"),
        (lambda given: given(io.BytesIO()), f"a BytesIO: {NO_IMAGE}"),
        (lambda given: given(5), f"5: {NO_IMAGE}"),
        (lambda given: given.batch([None]), f"images[0]: None: {NO_IMAGE}"),
        (lambda given: given.batch(None), "images: None; give a list of images"),
        (lambda given: given.batch(b"\x89PNG"), "images: a bytes; give a list of images"),
        (lambda given: given.batch({"a": noise(8, 8)}), "images: a dict of 1; give a list of images"),
        (lambda given: given.logits(noise(8, 8)), f"images: a ndarray (8, 8, 3); {NO_TENSOR}"),
        (lambda given: given.logits(torch.zeros(8, 8, 3)), f"images: a Tensor (8, 8, 3); {NO_TENSOR}"),
        (lambda given: given.logits(torch.zeros(1, 3, 8, 8)), f"images: a Tensor (1, 3, 8, 8); {NO_TENSOR}"),
        (lambda given: given.from_checkpoint(None), f"None: {NO_PATH}"),
        (lambda given: given.from_checkpoint(["a", "b"]), f"['a', 'b']: {NO_PATH}"),
        (lambda given: given.from_checkpoint("a.pt", scale="1"), "scale: '1'; expected a number"),
        (lambda given: given.from_checkpoint("a.pt", scale=True), "scale: True; expected a number"),
        (
            lambda given: given.from_checkpoint("a.pt", device="cuda:0"),
            "device cuda:0: must be one of auto, cpu, cuda; choose a GPU with CUDA_VISIBLE_DEVICES",
        ),
    ],
)  # fmt: skip
def test_values_of_another_type_are_named(ask: Callable[[Any], object], message: str) -> None:
    with pytest.raises(UserError) as refused:
        ask(make_predictor())
    assert str(refused.value) == message


def test_a_tensor_of_training_is_an_image() -> None:
    predictor, photo = make_predictor(), noise(16, 16)
    tensor = torch.from_numpy(photo.astype(np.float32)).requires_grad_()
    with pytest.raises(UserError, match=r"array \(16, 16, 3\): .*float32"):
        predictor(tensor)
    assert np.array_equal(predictor(torch.from_numpy(photo)).mask, predictor(photo).mask)


def test_options_may_be_numpy_s_and_none_counts_as_left_out(tmp_path: Path) -> None:
    write_model(tmp_path / "a.pt", Labels((0, 1)))
    options: Any = {"threshold": np.float32(0.25), "tile": np.int64(64), "tta": None}
    predictor = Predictor.from_checkpoint(tmp_path / "a.pt", device="cpu", **options)
    found = predictor.threshold, predictor.tiling.window, predictor.tta
    assert found == (0.25, 64, "none")


def test_a_run_and_its_folder_are_its_best_checkpoint(tmp_path: Path) -> None:
    """As of `evaluate`, `export` and --model."""
    run = tmp_path / "run"
    run.mkdir()
    write_model(run / "best.pt", Labels((0, 1)))
    write_model(run / "last.pt", Labels((0, 1)), seed=5)
    image = noise(20, 30)
    best = Predictor.from_checkpoint(run / "best.pt", device="cpu")(image).probabilities
    for given in (run, str(run), TrainedRun(run)):
        found = Predictor.from_checkpoint(given, device="cpu")(image).probabilities
        assert np.array_equal(found, best)
    assert len(Predictor.from_checkpoint(TrainedRun(run), run / "last.pt").models) == 2
    with pytest.raises(UserError, match="gone: checkpoint not found"):
        Predictor.from_checkpoint(TrainedRun(tmp_path / "gone"))


def test_a_batch_of_one_image_is_refused(tmp_path: Path) -> None:
    """Issue: its rows were predicted, as grey images."""
    predictor, advice = make_predictor(), "is one image; give a list, or call the predictor"
    for image in (noise(20, 30), torch.from_numpy(noise(20, 30)), Image.fromarray(noise(20, 30))):
        with pytest.raises(UserError, match=advice):
            predictor.batch(image)
    with pytest.raises(
        UserError, match=f"images: {tmp_path} is a folder; give a list of its images"
    ):
        predictor.batch(str(tmp_path))
    with pytest.raises(UserError, match=f"{tmp_path}: is a folder, not an image; give its images"):
        predictor(tmp_path)
    assert len(predictor.batch(noise(20, 30)[None])) == 1
    assert len(predictor.batch(noise(20, 30)[..., 0][None])) == 1


def test_networks_that_differ_are_no_ensemble(tmp_path: Path) -> None:
    write_model(tmp_path / "a.pt", Labels((0, 1), names=("dog", "cat")))
    write_model(tmp_path / "same.pt", Labels((0, 1)), seed=5)  # trained without --class-names
    assert len(Predictor.from_checkpoint(tmp_path / "a.pt", tmp_path / "same.pt").models) == 2
    for name, labels, options in (
        ("classes", Labels((0, 2)), {}),
        ("names", Labels((0, 1), names=("cat", "dog")), {}),
        ("classes", Labels((0, 1), rgb=True), {}),
        ("channels", Labels((0, 1)), {"channels": 1}),
        ("type of pixels", Labels((0, 1)), {"max_value": 65535}),
        ("scale", Labels((0, 1)), {"scale": 0.25}),
    ):
        write_model(tmp_path / "b.pt", labels, **options)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=rf"b\.pt: its {name} \(.*\) differs .*a\.pt \("):
            Predictor.from_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt")
    write_model(tmp_path / "b.pt", Labels((0, 2), names=("cat", "dog")))
    with pytest.raises(UserError, match=r"its classes \(0, 2\) differs .* \(0, 1\);"):
        Predictor.from_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt")
    write_model(tmp_path / "b.pt", Labels((0, 1), names=("cat", "dog")))
    with pytest.raises(UserError, match=r"its names \(cat, dog\) differs .* \(dog, cat\);"):
        Predictor.from_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt")
    write_model(tmp_path / "a.pt", Labels((0, 1, 2)))
    write_model(tmp_path / "b.pt", ObjectLabels.of(("cell",)))
    with pytest.raises(UserError, match=r"kind of masks \(numbered objects\) .* \(classes\)"):
        Predictor.from_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt")
    with pytest.raises(UserError, match="no checkpoint was named"):
        Predictor.from_checkpoint()


def test_an_ensemble_is_the_mean_of_probabilities() -> None:
    models = []
    for seed in range(2):
        network = lively_network(classes=3)
        network.outc.conv.bias.data += torch.tensor([3.0 * seed, 0, -1])
        models.append(load(network, Labels((0, 1, 2))))
    image = noise(40, 50)
    single = [Predictor([model], device=CPU)(image).probabilities for model in models]
    both = Predictor(models, device=CPU)(image).probabilities
    assert np.abs(both - (single[0] + single[1]) / 2).max() < 1e-5
    assert np.abs(single[0] - single[1]).max() > 0.1


@pytest.mark.parametrize(("tta", "count"), [("none", 1), ("d4", 2)])
def test_an_image_is_copied_to_the_device_once_and_flipped_there(tta: str, count: int) -> None:
    """For an ensemble and all eight transforms; torch's device without values stands for a GPU."""
    device, pixels = torch.device("meta"), make_predictor().preprocessing
    networks = [lively_network().to(device) for _ in range(count)]
    models = [replace(load(lively_network(), Labels((0, 1))), backend=TorchBackend(
        network, pixels, device, fold=False)) for network in networks]  # fmt: skip
    predictor, images = Predictor(models, device=device, tta=tta), torch.from_numpy(noise(40, 56))
    predictor.logits(images[None])  # has copied what the normalisation subtracts
    with Operations() as noted:
        assert predictor.logits(images[None]).shape == (1, 2, 40, 56)
    on_host = [
        str(func)
        for func, args, _ in noted.calls
        if isinstance(args[0], torch.Tensor) and args[0].device.type == "cpu"
    ]
    (copy,) = (name for name in on_host if name != "aten.unsqueeze.default")
    assert copy.startswith(("aten.to.", "aten._to_copy."))


def test_an_image_is_predicted_from_a_file_an_array_or_pillow(tmp_path: Path) -> None:
    predictor, image = make_predictor(scale=0.5), noise(50, 61)
    Image.fromarray(image).save(tmp_path / "a.png")
    expected = predictor(image)
    assert (expected.size, expected.input_size) == ((50, 61), (25, 30))
    for other in (Image.fromarray(image), tmp_path / "a.png", str(tmp_path / "a.png")):
        assert np.array_equal(predictor(other).ids, expected.ids)
    for rows in (1, 2):  # fewer than channels: not (channels, H, W)
        Image.fromarray(image[:rows]).save(tmp_path / "rows.png")
        found, of_file = predictor(image[:rows]), predictor(tmp_path / "rows.png")
        assert found.size == (rows, 61) and np.array_equal(found.ids, of_file.ids)
    assert predictor(np.moveaxis(image, 2, 0)).size == (50, 61)
    assert predictor.format == ImageFormat(3, "uint8", None, predictor.preprocessing.fill)
    batch = predictor.predict_batch([image, image[::-1].copy()], [(50, 61), (100, 122)])
    assert [found.ids.shape for found in batch] == [(50, 61), (100, 122)]
    assert np.array_equal(batch[0].ids, predictor.predict_batch([image], [(50, 61)])[0].ids)


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("options", [{}, {"tta": "mirror"}, {"tile": 64}, {"threshold": 0.3}])
def test_a_batch_has_the_masks_of_one_by_one(
    tmp_path: Path, classes: int, options: dict[str, Any]
) -> None:
    """Also where rounding would decide: half of these images have pixels of two equal scores."""
    options = {} if classes > 2 and "threshold" in options else options
    predictor = make_predictor(classes=classes, scale=0.5, **options)
    sizes = [(64, 64), (50, 61), (64, 64), (200, 90), (1, 1), (64, 64), (50, 61), (64, 64)]
    images: list[Any] = [noise(*size, seed=k) for k, size in enumerate(sizes)]
    images[2][:] = 7  # one colour
    Image.fromarray(images[3]).save(tmp_path / "a.png")
    images[3:5] = [tmp_path / "a.png", Image.fromarray(images[4])]
    found = predictor.batch(images)
    assert [prediction.size for prediction in found] == sizes
    for prediction, image in zip(found, images, strict=True):
        assert prediction.mask.tobytes() == predictor(image).mask.tobytes()
        assert prediction.threshold == predictor.threshold
    assert [each.size for each in predictor.batch(np.stack([noise(9, 9)] * 3))] == [(9, 9)] * 3
    assert predictor.batch([]) == []


@pytest.mark.parametrize("is_first_exact", [False, True])
def test_in_a_batch_rounding_decides_no_pixel(is_first_exact: bool) -> None:
    """This network adds what a batch may: a little, other than for one image; perhaps not to the first."""
    network = lively_network()
    plain = network.forward
    labels = Labels((0, 1))

    def forward(images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = plain(images)
        change = torch.full((len(images), 1, 1, 1), 2e-5 * float(logits.abs().max()))
        if is_first_exact:
            logits = (logits * 20).round() / 20  # so many pixels are of both classes alike
            change *= -0.01
        change[0] *= len(images) > 1 and not is_first_exact
        return logits + torch.tensor([1.0, -1.0])[:, None, None] * change

    network.forward = forward
    model = load(network, labels)
    predictor = Predictor([model], device=CPU)
    images = [noise(48, 48, seed=k) for k in range(60)]
    expected = [predictor(image).mask for image in images]
    pixels = predictor.predict_batch(images, [(48, 48)] * 60)
    assert any((a.mask != b).any() for a, b in zip(pixels, expected, strict=True))
    found = predictor.batch(images)
    assert all(np.array_equal(a.mask, b) for a, b in zip(found, expected, strict=True))


def test_a_batch_names_the_image_at_fault() -> None:
    predictor = make_predictor()
    with pytest.raises(UserError, match=r"^images\[1\]: array \(8,\): an array of 1 axes"):
        predictor.batch([noise(9, 9), np.zeros(8, np.uint8)])
    with pytest.raises(UserError, match=r"2 images at once; use predictor\.batch\(images\)"):
        predictor([noise(9, 9)] * 2)  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r"several images, for predictor\.batch\(images\): an array"
    ):
        predictor(np.stack([noise(9, 9)] * 2))


def test_images_fit_by_tile_or_by_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    tiled = make_predictor(tile=70)
    assert tiled.fits((64, 64)) and not tiled.fits((64, 65)) and not tiled.fits((65, 64))
    whole = make_predictor()  # 48 bytes per pixel
    monkeypatch.setattr(module, "free_memory", lambda device: 0)
    assert whole.fits((1024, 1024)) and not whole.fits((1025, 1)) and not whole.fits((1, 1025))
    monkeypatch.setattr(module, "free_memory", lambda device: 2 * 48 * 2000 * 10 + 1)
    assert whole.fits((2000, 10)) and not whole.fits((2001, 10)) and not whole.fits((2000, 11))
    whole.concurrency = 2
    assert not whole.fits((2000, 10)) and whole.fits((1025, 9))


def test_on_a_gpu_an_image_s_size_alone_decides_and_its_batch_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By all memory, not by what earlier images left: 48 bytes per pixel, half of the memory."""
    predictor = make_predictor()
    predictor.device = torch.device("cuda")
    monkeypatch.setattr(module, "free_memory", lambda device: 0)
    monkeypatch.setattr(module, "total_memory", lambda device: 2 * 48 * 2000 * 10)
    assert predictor.fits((2000, 10)) and not predictor.fits((2001, 10))
    predictor.concurrency = 4  # threads that read, on a GPU
    assert predictor.fits((2000, 10))
    assert predictor.most_at_once((2000, 10)) == 1
    assert predictor.most_at_once((500, 10)) == 4
    assert predictor.most_at_once((1024, 1024)) == 1  # whole, as it is no larger than a window
    predictor.device = CPU
    assert predictor.most_at_once((1024, 1024)) > 1000


@pytest.mark.parametrize(
    ("fitting", "expected"), [(3, [3, 3, 3] * 2), (100, [8, 1] * 2), (0, [1] * 18)]
)
def test_on_a_gpu_windows_are_seen_as_many_at_once_as_fit_and_at_most_eight(
    monkeypatch: pytest.MonkeyPatch, fitting: int, expected: list[int]
) -> None:
    monkeypatch.setattr(module, "total_memory", lambda device: 2 * 48 * 32 * 32 * fitting)
    predictor, image = make_predictor(tile=32, overlap=0), noise(64, 288)
    one_by_one = predictor(image).ids
    predictor.device = torch.device("cuda")
    tried = limited(predictor, 1 << 30)
    assert (predictor(image).ids != one_by_one).mean() < 0.01
    assert [shape[0] for shape in tried] == expected


def limited(predictor: Predictor, most: int) -> list[tuple[int, ...]]:
    """Let more than `most` pixels run out of memory; return the batches that are tried."""
    tried: list[tuple[int, ...]] = []
    (network,) = predictor.networks

    def run(images: torch.Tensor) -> torch.Tensor:
        tried.append(tuple(images.shape[:3]))
        if images.shape[:3].numel() > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return network(images)

    predictor.networks = [Backend(run)]
    return tried


@pytest.mark.parametrize(("classes", "shape"), [(2, (2, 1, 50, 60)), (3, (2, 3, 50, 60))])
def test_scores_have_a_channel_per_class_and_of_two_their_difference(
    classes: int, shape: tuple[int, ...]
) -> None:
    predictor = make_predictor(classes=classes)
    images = [noise(50, 60, n) for n in range(2)]
    assert predictor.scores(images).shape == shape


def test_out_of_memory_halves_the_batch_and_then_sees_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = [noise(50, 60, n) for n in range(5)]
    expected = make_predictor().predict_batch(images, [(50, 60)] * 5)
    halved = make_predictor()
    tried = limited(halved, 2 * 50 * 60)
    found = halved.predict_batch(images, [(50, 60)] * 5)
    assert [shape[0] for shape in tried] == [5, 2, 3, 1, 2]
    for one, other in zip(found, expected, strict=True):
        assert (one.ids != other.ids).mean() < 0.01
    monkeypatch.setattr(module, "TILE", 32)
    tiled, windows = make_predictor(), make_predictor(tile=32)
    tried = limited(tiled, 32 * 32)
    found = tiled.predict_batch(images[:2], [(50, 60)] * 2)
    assert tried == [(2, 50, 60), *[(1, 50, 60)] * 2]
    for one, image in zip(found, images, strict=False):
        assert np.array_equal(one.ids, windows(image).ids)
    assert set(tried[3:]) <= {(1, 32, 32), (1, 32, 28), (1, 18, 32), (1, 18, 28)} and len(tried) > 4
    tried.clear()
    assert np.array_equal(tiled(images[0]).ids, found[0].ids)  # decided for this size
    assert (1, 50, 60) not in tried


def test_an_image_is_tried_again_once_torch_has_let_go_of_what_it_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """cuBLAS and cuDNN allocate beside torch's cache, and find no room while it holds all."""
    predictor, image = make_predictor(), noise(50, 60)
    expected = predictor.scores([image])
    freed: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(True))
    (network,) = predictor.networks

    def run(images: torch.Tensor) -> torch.Tensor:
        if not freed:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")
        return network(images)

    predictor.networks = [Backend(run)]
    (found,) = predictor.predict_batch([image], [(50, 60)])
    assert freed == [True] and predictor.fits((50, 60))
    assert np.array_equal(found.ids, expected[0, 0] > 0)


def test_out_of_memory_in_windows_is_a_line_and_other_errors_are_not_hidden() -> None:
    small = make_predictor(tile=32)
    limited(small, 16 * 16)
    with pytest.raises(UserError, match=r"out of memory .* windows of 32 pixels.*--tile"):
        small(noise(50, 60))
    small.networks = [Backend(lambda images: 1 / 0)]  # type: ignore[arg-type, return-value]
    with pytest.raises(ZeroDivisionError):
        small(noise(50, 60))
    whole = make_predictor()

    def fail(images: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("broken")

    whole.networks = [Backend(fail)]
    with pytest.raises(RuntimeError, match="broken"):
        whole(noise(50, 60))


def test_on_a_gpu_one_thread_at_a_time_runs_the_network_and_on_a_cpu_all_do() -> None:
    models, image = make_predictor().models, noise(32, 32)
    gpu, cpu = (Predictor(models, device=torch.device(name)) for name in ("cuda", "cpu"))
    (network,), together = cpu.networks, Barrier(2, timeout=60)

    alone = Semaphore(1)

    def run_alone(images: torch.Tensor) -> torch.Tensor:
        assert alone.acquire(blocking=False)
        sleep(0.05)  # the other thread would come
        alone.release()
        return network(images)

    def run_together(images: torch.Tensor) -> torch.Tensor:
        together.wait()
        return network(images)

    gpu.networks, cpu.networks = [Backend(run_alone)], [Backend(run_together)]
    with ThreadPoolExecutor(2) as pool:
        expected, *found = (
            *pool.map(gpu.scores, [[image]] * 2),
            *pool.map(cpu.scores, [[image]] * 2),
        )
    assert all(np.array_equal(each, expected) for each in found)


def test_out_of_memory_when_windows_are_predicted_again_is_a_line() -> None:
    predictor = make_predictor(tile=32)
    found = predictor(noise(50, 60))
    limited(predictor, 16 * 16)
    with pytest.raises(UserError, match=r"out of memory .* windows of 32 pixels.*--tile"):
        _ = found.probabilities


def test_logits_are_the_networks_bit_for_bit(tmp_path: Path) -> None:
    write_model(tmp_path / "a.pt", Labels((0, 1)), threshold=0.4)
    saved = read_model(tmp_path / "a.pt")
    model = build_model(saved, tmp_path / "a.pt", CPU, fold=False)
    predictor = Predictor([model], device=CPU)
    assert predictor.threshold == 0.4 and predictor.device == CPU
    pixels = torch.from_numpy(np.stack([noise(33, 50), noise(33, 50, 1)]))
    backend = predictor.models[0].backend
    with torch.no_grad():
        expected = backend.network(predictor.preprocessing(pixels))  # type: ignore[union-attr]
    assert torch.equal(predictor.logits(pixels), expected)
    again = Predictor.from_checkpoint(tmp_path / "a.pt", device="cpu", fold=False)
    assert torch.equal(again.logits(pixels), expected)
    folded = Predictor.from_checkpoint(tmp_path / "a.pt", device="cpu")
    assert not torch.equal(folded.logits(pixels), expected)


def test_logits_of_what_exceeds_a_share_of_all_memory_are_blended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predictor = make_predictor(tile=32)  # the tile is predict.py's, not evaluation's
    monkeypatch.setattr(module, "TILE", 48)
    monkeypatch.setattr(module, "OVERLAP", 0.5)
    monkeypatch.setattr(module, "free_memory", lambda device: 0)
    images = torch.from_numpy(np.stack([noise(50, 90), noise(50, 90, 1)]))
    monkeypatch.setattr(module, "total_memory", lambda device: 8 * 48 * 50 * 90 + 1)
    whole = predictor.logits(images)
    assert whole.shape == (2, 2, 50, 90)
    assert torch.equal(whole, predictor.models[0].backend(images))
    monkeypatch.setattr(module, "total_memory", lambda device: 8 * 48 * 50 * 90)
    found = predictor.logits(images)
    assert found.shape == whole.shape and not torch.equal(found, whole)
    for image, logits in zip(images, found, strict=True):
        bands = blend(
            lambda top, bottom, image=image: image.numpy()[top:bottom],
            lambda windows: (
                predictor.models[0].backend(torch.from_numpy(np.stack(windows))).numpy()
            ),
            *map(Tiling(48, 0.5, 16).along, (50, 90)),
        )
        expected = np.concatenate([band for _, band in bands], axis=1)
        assert np.array_equal(logits.numpy(), expected)
    monkeypatch.setattr(module, "total_memory", lambda device: 0)
    small = images[:, :48, :48]
    assert torch.equal(predictor.logits(small), predictor.models[0].backend(small))


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.25])
def test_a_tiff_in_windows_is_the_image_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    """Through the memory map, scaling, blending and upsampling to the image's size."""
    monkeypatch.setattr(source, "STREAMED", 1)
    factor = int(1 / scale)
    image = noise(400, 100).repeat(factor, axis=0).repeat(factor, axis=1)
    tifffile.imwrite(tmp_path / "a.tif", image, photometric="rgb")
    whole = make_predictor(scale=scale)(image)
    tiled = make_predictor(scale=scale, tile=384, overlap=200 / 3)
    found = tiled(tmp_path / "a.tif")
    assert (tmp_path / "a.tif").unlink() is None and found.ids.shape == image.shape[:2]
    assert (found.ids != whole.ids).mean() < 1e-4
    assert 0.02 < whole.shares[1] < 0.98


def test_windows_are_predicted_again_for_probabilities(tmp_path: Path) -> None:
    predictor, image = make_predictor(tile=32, overlap=50), noise(70, 40)
    Image.fromarray(image).save(tmp_path / "a.png")
    for found in (predictor(tmp_path / "a.png"), predictor(image)):
        first = found.probabilities
        assert np.array_equal(found.probabilities, first)
        assert np.array_equal(first.argmax(0), found.ids)
        whole = make_predictor()(image).probabilities
        assert np.abs(first - whole).max() > 1e-4  # such windows see less
    with pytest.raises(UserError, match="missing"):
        predictor(tmp_path / "missing.png")


@pytest.mark.parametrize("tta", ["none", "mirror"])
@pytest.mark.parametrize("tile", [None, 32])
def test_a_threshold_decides_in_windows_and_under_mirroring_as_without(
    tile: int | None, tta: str
) -> None:
    """At half the size."""
    image, options = noise(70, 50), {"tile": tile, "tta": tta, "scale": 0.5}
    shares = make_predictor(**options)(image).probabilities[1]
    for threshold in (0.2, 0.5, 0.9):
        found = make_predictor(threshold=threshold, **options)(image)
        clear = np.abs(shares - threshold) > 1e-5
        assert np.array_equal(found.ids[clear] == 1, (shares >= threshold)[clear])
