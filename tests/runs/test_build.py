"""The parts of a run: the network, its first weights, its state, and the checkpoint of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import make_data
from unet_ddp import __version__
from unet_ddp.checkpoints.weights import SavedModel
from unet_ddp.config import LaunchConfig, NetworkConfig, OptimizationConfig, RunConfig, TrainConfig
from unet_ddp.data.labels import Labels
from unet_ddp.data.loaders import Loaders, build_loaders
from unet_ddp.data.preprocessing import PixelRange, Preprocessing
from unet_ddp.data.readers.base import ImageFormat
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.extras.objects.borders import CLASS_NAMES
from unet_ddp.extras.objects.labels import ObjectLabels
from unet_ddp.extras.transfer.fit import GivenWeights
from unet_ddp.network.architecture import Architecture, build_network
from unet_ddp.runs import build
from unet_ddp.runs import network as network_of_run
from unet_ddp.runs.build import (
    build_metadata,
    build_state,
    choose_model,
    describe_run,
)
from unet_ddp.runs.resume import StartPoint
from unet_ddp.runs.run_parts import RunParts
from unet_ddp.training.state import TrainState

WORLD = World()
CONFIG = TrainConfig(
    network=NetworkConfig(width=2),
    optimization=OptimizationConfig(epochs=3, batch_size=2, seed=5, learning_rate=0.1, warmup=10.0),
    run=RunConfig(load="x.pt"),
    launch=LaunchConfig(workers=0),
)
PLAIN = Architecture("unet", 3, 2, None, 2, False)


def with_options(**options: Any) -> TrainConfig:
    return replace(CONFIG, optimization=replace(CONFIG.optimization, **options))


def build_run(
    config: TrainConfig = CONFIG, data: Any = None, resumed: StartPoint | None = None,
    world: World = WORLD,
) -> tuple[build.Model, Loaders, TrainState]:  # fmt: skip
    data, resumed = data or make_data(), resumed or StartPoint()
    model = choose_model(config, data, resumed, world.device, parts=RunParts())
    loaders = build_loaders(
        config, data, image_format=model.preprocessing.format, world=world, open_cache=None
    )
    return model, loaders, build_state(config, model, data, resumed, loaders, world, RunParts())


# -- the model ----------------------------------------------------------------------------------


def test_a_new_run_s_model_is_that_of_the_flags() -> None:
    config = with_options(loss_weights=(2.0, 3.0), class_weights=(1.0, 4.0))
    data = make_data(
        format=ImageFormat(4, "uint16", 7.0), range=PixelRange(1, 9, (0.5,) * 4, (0.1,) * 4)
    )
    model = choose_model(config, data, StartPoint(), WORLD.device, parts=RunParts())
    assert model.architecture == replace(PLAIN, channels=4)
    assert model.preprocessing == Preprocessing(4, (0.5,) * 4, (0.1,) * 4, 1.0, "uint16", 1, 9, 7.0)
    assert model.notes == []
    loss = model.loss
    assert loss.options is config.optimization
    assert loss.class_weights is not None and loss.class_weights.tolist() == [1.0, 4.0]
    assert model.precision.dtype == torch.float32
    half = choose_model(
        with_options(precision="bfloat16"), data, StartPoint(), WORLD.device, parts=RunParts()
    )
    assert half.precision.dtype == torch.bfloat16
    full = choose_model(
        with_options(precision="float32"), data, StartPoint(), WORLD.device, parts=RunParts()
    )
    assert full.precision.dtype == torch.float32
    network = NetworkConfig(model="fpn", encoder="resnet18")
    chosen = choose_model(
        replace(CONFIG, network=network), data, StartPoint(), WORLD.device, parts=RunParts()
    ).architecture
    assert chosen == Architecture("fpn", 4, 2, "resnet18")
    bilinear = NetworkConfig(width=8, bilinear=True)
    chosen = choose_model(
        replace(CONFIG, network=bilinear), data, StartPoint(), WORLD.device, parts=RunParts()
    ).architecture
    assert chosen == Architecture("unet", 4, 2, None, 8, True)


def test_the_border_of_objects_weighs_more_unless_a_weight_is_given() -> None:
    objects = ObjectLabels((0, 1, 2), names=CLASS_NAMES, separation=(0.5, 0.5))
    for given, labels, expected in (
        (None, objects, 5.0),
        (0.0, objects, 0.0),
        (2.0, objects, 2.0),
        (None, Labels((0, 255)), None),
    ):
        config = with_options(boundary_weight=given)
        model = choose_model(
            config, make_data(labels=labels), StartPoint(), WORLD.device, parts=RunParts()
        )
        assert model.loss.options.boundary_weight == expected


def test_a_resumed_run_s_model_is_the_checkpoint_s() -> None:
    architecture = Architecture("unet", 3, 2, None, 6, True)
    preprocessing = Preprocessing(3, (0.1,) * 3, (0.2,) * 3, 0.25)
    resumed = StartPoint(
        {"architecture": architecture.to_dict(), "preprocessing": preprocessing.to_dict()}
    )
    model = choose_model(CONFIG, make_data(), resumed, WORLD.device, parts=RunParts())
    assert (model.architecture, model.preprocessing) == (architecture, preprocessing)


def given(model: SavedModel, source: str = "x.pt", *, is_whole: bool = True) -> GivenWeights:
    return GivenWeights(model, Path(source), is_whole)


def test_given_weights_bring_their_network_and_their_normalisation() -> None:
    architecture = Architecture("unet", 3, 7, None, 6, True)
    theirs = Preprocessing(3, (0.1,) * 3, (0.2,) * 3, 0.25, nodata=3.0)
    weights = given(SavedModel({}, architecture, None, theirs, []))
    config = replace(CONFIG, data=replace(CONFIG.data, scale=0.5))
    model = choose_model(
        config, make_data(), StartPoint(weights=weights), WORLD.device, parts=RunParts()
    )
    assert model.architecture == replace(architecture, num_classes=2)
    assert model.preprocessing == replace(theirs, scale=0.5, nodata=None)
    assert model.notes == ["network as in x.pt"]
    for data in (make_data(format=ImageFormat(1)), make_data(format=ImageFormat(3, "uint16"))):
        model = choose_model(
            config, data, StartPoint(weights=weights), WORLD.device, parts=RunParts()
        )
        assert model.architecture.channels == data.format.channels
        assert model.preprocessing == Preprocessing.for_data(data.format, None, scale=0.5)
    unknown = given(SavedModel({}, None, None, theirs, []))
    model = choose_model(
        config, make_data(), StartPoint(weights=unknown), WORLD.device, parts=RunParts()
    )
    assert model.architecture == PLAIN and model.notes == []


def test_the_first_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    _, _, state = build_run()
    torch.manual_seed(CONFIG.optimization.seed)
    for name, value in build_network(PLAIN).state_dict().items():
        assert torch.equal(state.network.state_dict()[name], value), name
    assert state.replica is state.network
    assert state.seed == 5
    _, _, other = build_run(with_options(seed=6))
    assert not torch.equal(other.network.outc.conv.weight, state.network.outc.conv.weight)


def test_the_state_is_that_of_the_settings() -> None:
    _, loaders, state = build_run(with_options(ema=0.75, weight_decay=0.3))
    assert loaders.training.sampler.steps == state.steps_per_epoch == 3  # 6 images
    schedule = state.schedule
    assert (schedule.highest, schedule.steps, schedule.warmup) == (0.1, 9, 0.1)
    assert state.optimizer.defaults["weight_decay"] == 0.3 and state.optimizer.defaults["fused"]
    assert state.average is not None and state.average.decay == 0.75
    assert state.compiled is None
    assert state.sums.dtype == torch.float64 and state.sums.tolist() == [0, 0, 0]
    assert (state.done, state.threshold) == (0, None)
    assert build_run()[2].average is None


def test_each_rank_s_random_layers_have_a_seed_of_their_own() -> None:
    seeds = [build_run(world=World(rank, 3))[2].seed for rank in range(3)]
    assert seeds == [15, 16, 17]
    others = [build_run(with_options(seed=6), world=World(rank, 3))[2].seed for rank in range(3)]
    assert set(seeds).isdisjoint(others)


@pytest.mark.parametrize(
    ("crop", "smallest", "side"),
    [(None, (32, 400), (64, 256)), ((96, 128), (32, 32), (96, 128))],
)
def test_ddp_is_tried_on_images_of_about_the_run_s_size(
    monkeypatch: pytest.MonkeyPatch, crop: Any, smallest: Any, side: tuple[int, int]
) -> None:
    examples = []
    monkeypatch.setattr(
        build, "replicate", lambda network, example, *_, **how: examples.append(example) or network
    )
    build_run(data=make_data(crop_size=crop, smallest=smallest))
    assert [tuple(example.shape) for example in examples] == [(2, 3, *side)]


def test_given_weights_are_loaded_and_pretrained_ones_are_not_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def watched(architecture: Architecture, **how: Any) -> Any:
        asked.append(how)
        return build_network(architecture)

    monkeypatch.setattr(network_of_run, "build_network", watched)
    config = replace(CONFIG, network=replace(CONFIG.network, encoder_weights="imagenet"))
    build_run(config)
    assert asked == [
        {"encoder_weights": "imagenet"},  # into the cache, on the main process
        {"encoder_weights": "imagenet", "checkpointing": False},
    ]
    torch.manual_seed(9)
    state = build_network(PLAIN).state_dict()
    asked.clear()
    resumed = StartPoint(weights=given(SavedModel(state, PLAIN, None, None, [])))
    found = build_run(config, resumed=resumed)[2].network.state_dict()
    assert asked == [{"encoder_weights": None, "checkpointing": False}]
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_averages_that_come_without_their_count_are_not_forgotten() -> None:
    """As files of torch before 0.4.1 have them: batch norm's averages, and no `num_batches_tracked`."""
    torch.manual_seed(9)
    state = build_network(PLAIN).state_dict()
    state = {name: tensor for name, tensor in state.items() if "num_batches" not in name}
    state |= {name: torch.full_like(state[name], 3.0) for name in state if "running_mean" in name}
    resumed = StartPoint(weights=given(SavedModel(state, PLAIN, None, None, [])))
    network = build_run(resumed=resumed)[2].network
    counts = [tensor for name, tensor in network.named_buffers() if "num_batches" in name]
    assert counts and all(int(count) >= 100 for count in counts)
    fresh = [tensor for name, tensor in build_run()[2].network.named_buffers() if "num_b" in name]
    assert fresh and not any(map(int, fresh))


def test_a_resumed_state_is_restored_with_the_new_weight_decay() -> None:
    model, loaders, state = build_run()
    state.epoch, state.best = 2, 0.5
    about = build_metadata(CONFIG, model, make_data(), loaders, WORLD)
    resumed = StartPoint({**about, **state.state_dict()})
    changed = with_options(weight_decay=0.7, seed=8)
    _, _, restored = build_run(changed, resumed=resumed)
    assert (restored.epoch, restored.best) == (2, 0.5)
    assert torch.equal(restored.network.outc.conv.weight, state.network.outc.conv.weight)
    assert {group["weight_decay"] for group in restored.optimizer.param_groups} == {0.7}


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("model", {}, "missing in the file"),
        ("model.outc.conv.bias", torch.zeros(3), r"outc.conv.bias is \(3\)"),
        ("model.outc.conv.bias", torch.full((2,), torch.nan), "outc.conv.bias contains nan"),
        ("ema", {"x": torch.zeros(1)}, "missing in the file"),
        ("optimizer", {}, "optimizer: None"),
        ("optimizer", {"state": {7000: {}}}, "optimizer: 7000; the network has"),
        ("optimizer", {"state": {0: {"step": 3}}}, "optimizer: a dict of 1; expected tensors by"),
        ("optimizer", {"state": {0: {"step": torch.zeros(())}}}, "optimizer.0.exp_avg is missing"),
        ("optimizer", {"state": {0: {"exp_avg": torch.zeros(1)}}}, r"exp_avg is \(1\) in the file"),
        ("position.step", 4, "position: step 4 of an epoch of 3"),
    ],
)
def test_a_state_that_does_not_fit_is_not_resumed(where: str, value: Any, message: str) -> None:
    model, loaders, state = build_run()
    about = build_metadata(CONFIG, model, make_data(), loaders, WORLD)
    content: dict[str, Any] = {**about, **state.state_dict()}
    group, _, name = where.partition(".")
    content[group] = {**content[group], name: value} if name else value
    with pytest.raises(UserError, match=rf"^last.pt: .*{message}"):
        build_run(resumed=StartPoint(content))


def test_a_run_that_stopped_after_an_epoch_s_last_step_is_resumed() -> None:
    model, loaders, state = build_run()
    state.step = state.steps_per_epoch  # validation is next
    about = build_metadata(CONFIG, model, make_data(), loaders, WORLD)
    _, _, restored = build_run(resumed=StartPoint({**about, **state.state_dict()}))
    assert restored.step == restored.steps_per_epoch


def test_slow_depthwise_layers_train_in_float32_in_bfloat16_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(network_of_run, "train_depthwise_in_float32", found.append)
    build_run(CONFIG)
    assert not found
    half = replace(CONFIG.optimization, precision="bfloat16")
    _, _, state = build_run(replace(CONFIG, optimization=half))
    assert found == [state.network]


def test_a_file_s_encoder_is_frozen_under_a_network_of_the_flags(tmp_path: Path) -> None:
    """--encoder-weights FILE: its normalisation too, as its weights expect it."""
    torch.manual_seed(9)
    other = Architecture("unet", 1, 5, None, 2, True)
    theirs = Preprocessing(1, (0.1,), (0.2,), 0.25)
    weights = SavedModel(build_network(other).state_dict(), other, None, theirs, ["found"])
    config = with_options(freeze="encoder", encoder_rate=0.5)
    config = replace(
        config,
        run=RunConfig(),
        network=replace(config.network, bilinear=True, encoder_weights="y.pt"),
    )
    resumed = StartPoint(weights=given(weights, "y.pt", is_whole=False))
    model, _, state = build_run(config, make_data(format=ImageFormat(1)), resumed)
    assert model.architecture == replace(PLAIN, channels=1, bilinear=True)
    assert model.preprocessing == replace(theirs, scale=1.0)
    assert model.notes[0] == "y.pt: found" and model.notes[1].startswith("taken: ")
    assert len(model.notes) == 5
    network = state.network
    assert torch.equal(network.inc.double_conv[0].weight, weights.state["inc.double_conv.0.weight"])
    assert [*state.frozen] == [
        network.inc, network.down1, network.down2, network.down3, network.down4
    ]  # fmt: skip
    assert not network.inc.training and not network.inc.double_conv[0].weight.requires_grad
    assert network.up1.training and network.outc.conv.weight.requires_grad
    assert [group["lr_scale"] for group in state.optimizer.param_groups] == [0.5, 1.0, 1.0]
    assert build_run()[2].frozen == []


@pytest.mark.parametrize(
    ("rate", "load", "factor"),
    [
        (1e-4, None, 10), (1e-3, None, 10), (4e-3, None, 2.5), (0.1, None, 1), ("auto", None, 1),
        (1e-3, "x.pt", 1),
    ],
)  # fmt: skip
def test_the_last_layer_of_a_new_network_has_a_rate_of_a_hundredth(
    rate: float | str, load: str | None, factor: float
) -> None:
    config = replace(with_options(learning_rate=rate), run=RunConfig(load=load))
    groups = build_run(config)[2].optimizer.param_groups
    assert [group["lr_scale"] for group in groups] == [1, 1, factor]


# -- what is saved and said -----------------------------------------------------------------------


def test_a_checkpoint_describes_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    config, data, world = with_options(accumulate=2, batch_size=1), make_data(), World(size=3)
    model, loaders, _ = build_run(config, data, world=world)
    about = build_metadata(config, model, data, loaders, world)
    assert about.pop("files").shape == (len(data.split.training) + len(data.split.validation), 2)
    assert about == {
        "crop_size": None,
        "unet_ddp": __version__,
        "architecture": PLAIN.to_dict(),
        "labels": data.labels.to_dict(),
        "preprocessing": model.preprocessing.to_dict(),
        "config": config.to_dict(),
        "names": data.split.fingerprint,
        "images_per_step": 6,
        "world_size": 3,
    }


def test_the_lines_about_a_run() -> None:
    config = replace(CONFIG, run=RunConfig(checkpoints="here", exp_name="one"))
    _, of_two, _ = build_run(config, world=World(size=2))
    model, loaders, state = build_run(config)
    lines = describe_run(config, model, state, of_two, World(size=2))
    count = sum(parameter.numel() for parameter in state.network.parameters())
    assert lines == [
        f"network: {PLAIN}; {count:,} parameters",
        f"run: {Path('here/one')}; 3 epochs of 3 steps of 4 images (2 at a time on each of 2 processes), "
        "cpu, float32, 0 reading processes each",
    ]
    short = replace(config, optimization=replace(config.optimization, epochs=state.epoch))
    last = describe_run(short, model, state, loaders, WORLD)[-1]
    assert last == f"all epochs are done; for more, use --epochs above {state.epoch}"
    compiled = replace(config, optimization=replace(config.optimization, compile=True))
    gpus = World(size=2, device=torch.device("cuda"))
    assert "--compile on several GPUs: " in describe_run(compiled, model, state, loaders, gpus)[2]
    assert len(describe_run(compiled, model, state, loaders, WORLD)) == 2
    for accumulate, start in ((2, "1 step of 4"), (3, "1 step of 6")):
        config = with_options(accumulate=accumulate)
        model, loaders, state = build_run(config)
        line = describe_run(config, model, state, loaders, WORLD)[1]
        assert f"{start} images (2 at a time on 1 process), cpu, float32" in line


def test_patience_needs_validation_images() -> None:
    with pytest.raises(UserError, match=r"^--patience 3: there are no validation images to score"):
        build_run(with_options(patience=3), make_data(validation=""))
    assert build_run(with_options(patience=3))[2].patience == 3
