"""A pack is the same data set as the files that it was made of."""

from __future__ import annotations

import errno
import os
import pickle
import re
import shlex
import shutil
import signal
import tarfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote

import pytest
import torch

from tests.checks.catalogue import CASES, as_tiff, cut, listing, mask
from tests.checks.catalogue import make_case as make_case_in
from tests.checks.test_catalogue import NAMES, parse
from tests.conftest import data_flags, make_set
from tests.extras.packs.test_shards import members_of
from tests.object_store import MemoryBucket, ObjectStore, running_web
from unet_ddp.__main__ import main
from unet_ddp.checks.check import check_dataset, prepare_data
from unet_ddp.cli import parse_train
from unet_ddp.commands.parts import DATA_PARTS
from unet_ddp.config import DataConfig, TrainConfig
from unet_ddp.data.dataset import PreparedData, Sample
from unet_ddp.data.loaders import build_loaders
from unet_ddp.data.matching import Report
from unet_ddp.distributed.world import World
from unet_ddp.errors import UserError
from unet_ddp.extras.cloud import Url, delete
from unet_ddp.extras.packs import command as module
from unet_ddp.extras.packs import pack_output
from unet_ddp.extras.packs import shards as shards_module
from unet_ddp.extras.packs.command import plan_shards, write_pack
from unet_ddp.extras.packs.pack_files import INDEX, list_files
from unet_ddp.extras.packs.pairs import open_pack
from unet_ddp.files import as_path


def pack(config: DataConfig, output: Path, **how: Any) -> DataConfig:
    """Pack a data set and return what trains on the pack."""
    data = check_dataset(config, Report(), parts=DATA_PARTS, seed=0)
    assert data is not None
    output.mkdir(exist_ok=True)
    write_pack(output, data, config, **how)
    return packed(config, output)


def packed(config: DataConfig, output: Path | str) -> DataConfig:
    gone = dict.fromkeys(("masks", "pairs_file", "val_images", "val_masks"))
    return replace(config, images=str(output), **gone)


OF_FILES = "without image", "no data:", "lack a file in", "contains no masks", "files are the masks"


def describe(data: PreparedData) -> dict[str, Any]:
    """All that is known of a data set but where its files are, and which it lacks."""
    notes = [re.sub(r"\S*/\S+", "FILE", note) for note in data.notes]
    sides = data.split.training, data.split.validation
    return {
        **vars(data),
        "notes": [note for note in notes if not any(words in note for words in OF_FILES)],
        "split": (data.split.how, data.split.fingerprint),
        "pairs": [
            [(pair.name, pair.group, pair.side, pair.source) for pair in side] for side in sides
        ],
        "groups": None,
    }


def in_folder(folder: Path, **flags: Any) -> DataConfig:
    return DataConfig(images=str(folder / "imgs"), masks=str(folder / "masks"), **flags)


@pytest.mark.filterwarnings("ignore:Image size")  # as by data/formats, which pytest undoes
@pytest.mark.parametrize("number", range(len(CASES)), ids=NAMES)
def test_a_pack_of_any_data_set_is_that_data_set(tmp_path: Path, number: int) -> None:
    """Each case of the catalogue that can be trained on, with no bad file left out."""
    config = parse(make_case_in(number, tmp_path), tmp_path).data
    try:
        expected = prepare_data(config, parts=DATA_PARTS, seed=0)
    except UserError:
        return
    own = pack(config, tmp_path / "pack")
    assert describe(prepare_data(own, parts=DATA_PARTS, seed=0)) == describe(expected)
    data = check_dataset(own, Report(), parts=DATA_PARTS, seed=0)
    assert data is not None
    for side in (expected.split.training, expected.split.validation):
        for pair in side:
            (same,) = [other for other in data.table.pairs if other.name == pair.name]
            for path, other in ((pair.image, same.image), (pair.mask, same.mask)):
                with side.local(path, config.ignore_index) as file:
                    assert read(other) == file.read_bytes(), other


def read(path: Path) -> bytes:
    """Read a part of a shard by the numbers in its name."""
    found = re.fullmatch(r"(.+\.tar)#(\d+)\+(\d+)/[^/]+", str(path))
    assert found is not None, path
    content = Path(found[1]).read_bytes()
    return content[int(found[2]) : int(found[2]) + int(found[3])]


def loaded(config: DataConfig, world: World, *, epoch: int = 0, step: int = 0) -> list[Sample]:
    """The batches of a rank from a step on, and its validation images, as a run has them."""
    data = prepare_data(config, parts=DATA_PARTS, seed=0)
    data = pickle.loads(pickle.dumps(data))  # as the other ranks get it
    run = replace(TrainConfig(), data=config)
    run = replace(run, launch=replace(run.launch, workers=0))
    run = replace(run, optimization=replace(run.optimization, batch_size=4 // world.size))
    loaders = build_loaders(run, data, image_format=data.format, world=world, open_cache=None)
    loaders.training.sampler.start_at(epoch, step)
    with loaders:
        return [*loaders.training.loader, *(loaders.validation or [])]


def is_same(one: Sample, other: Sample) -> bool:
    return all(map(torch.equal, one, other))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[DataConfig]:
    """Data sets whose files differ in more than their pixels."""
    root = tmp_path_factory.mktemp("sets")
    plain = make_set(root / "plain", 14)
    for side in ("imgs", "masks"):  # sub-folders, and names that WebDataset would cut
        (plain / side / "a").mkdir()
        (plain / side / "bx.png").rename(plain / side / "a" / "b.1.png")
        (plain / side / "cx.png").rename(plain / side / "a" / "b.2%.png")
    (mask(plain, "dx")).rename(plain / "masks" / "dx.PNG")
    deep = make_set(root / "deep", 10)
    as_tiff("uint16", bands=4)(deep)
    own = make_set(root / "own", 9)
    make_set(own / "val", 3, size=(40, 28))
    sides = make_set(root / "sides", 12)
    listing()(sides)
    validation = {"val_images": str(own / "val/imgs"), "val_masks": str(own / "val/masks")}
    return [
        in_folder(plain, validation=20),
        in_folder(deep, scale=0.5, nodata=3.0, channels=4),
        in_folder(own, **validation),
        DataConfig(pairs_file=str(sides / "pairs.csv")),
        in_folder(plain, validation=20, balance=70, scale_jitter=(0.5, 2.0)),
    ]


@pytest.mark.parametrize("number", range(5))
def test_batches_are_those_of_the_files_on_any_ranks_and_from_any_step(
    sets: list[DataConfig], tmp_path: Path, number: int
) -> None:
    own = pack(sets[number], tmp_path / "pack")
    for world in (World(), World(rank=0, size=2), World(rank=1, size=2)):
        for epoch, step in ((0, 0), (1, 0), (1, 1)):
            one, other = (loaded(c, world, epoch=epoch, step=step) for c in (sets[number], own))
            assert len(one) == len(other) > 0 and all(map(is_same, one, other))


# -- the files -----------------------------------------------------------------------------

SMALL = 12_000 / 2**20
"""Size of a shard with few of the pairs."""


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """Status of a command, and what it printed."""
    status = main(list(argv))
    printed = capsys.readouterr()
    return status, printed.err if status else printed.out


def test_shards_are_tar_files_that_webdataset_reads(sets: list[DataConfig], tmp_path: Path) -> None:
    """Pairs by name; a key is the text before the first dot, as WebDataset's base_plus_ext has it."""
    own = pack(sets[0], tmp_path / "one", shard_mb=SMALL)
    again = pack(sets[0], tmp_path / "two", shard_mb=SMALL)
    shards = sorted((tmp_path / "one").glob("*.tar"))
    assert [path.name for path in shards] == [f"shard-{k:06}.tar" for k in range(len(shards))]
    assert len(shards) > 2
    members = []
    for path in (*shards, tmp_path / "one" / INDEX):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    for path in shards:
        with tarfile.open(path) as tar:
            assert all((m.mtime, m.uid, m.uname) == (0, 0, "") for m in tar.getmembers())
            members += tar.getnames()
    keys = [re.fullmatch(r"((?:.*/|)[^.]+)[.]([^/]*)", name) for name in members]
    pairs = prepare_data(own, parts=DATA_PARTS, seed=0).split
    names = sorted(pair.name for side in (pairs.training, pairs.validation) for pair in side)
    assert names[:2] == ["a/b.1", "a/b.2%"] and again.images != own.images
    assert [unquote(key[1]) for key in keys[::2] if key] == names
    assert [key[1] for key in keys[::2] if key] == [key[1] for key in keys[1::2] if key]
    assert {key[2].lower() for key in keys[1::2] if key} == {"mask.png"}


def test_the_command_packs_what_the_check_finds_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_set(tmp_path, 6)
    flags, out = data_flags(tmp_path), str(tmp_path / "pack")
    assert run(capsys, "pack", *flags) == (2, "error: --output: name a new folder, or an address like s3://bucket/folder\n")  # fmt: skip
    status, text = run(capsys, "pack", *flags, "--output", out)
    assert status == 0 and "packed 6 pairs into 1 shard" in text and "--images " + out in text
    assert sorted(path.name for path in (tmp_path / "pack").iterdir()) == [
        INDEX,
        "shard-000000.tar",
    ]
    status, text = run(capsys, "doctor", "--images", out, "--batch-size", "1")
    assert status == 0 and "ok: ready to train" in text and "groups:" not in text
    assert "images: 6 .png; 6 of 32x24" in text and "masks: 6 .png; grey, values 0 (" in text
    before = (tmp_path / "pack" / INDEX).read_bytes()
    status, text = run(capsys, "pack", *flags, "--output", out)
    assert status == 2 and "already exists; use another --output" in text
    assert (tmp_path / "pack" / INDEX).read_bytes() == before
    cut(mask(tmp_path))
    status, text = run(capsys, "pack", *flags, "--output", str(tmp_path / "other"))
    assert status == 2 and "cx.png: corrupt or truncated" in text and text.count("\n") == 1
    assert not (tmp_path / "other").exists()
    flags += ["--skip-bad-files", "1"]
    status, text = run(capsys, "pack", *flags, "--output", str(tmp_path / "other"))
    assert status == 0 and "(1 of at most 1)" in text and "packed 5 pairs into 1 shard" in text


def test_the_printed_command_trains_on_the_pack_as_it_was_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It repeats what says how files are read, typed or of a recipe, and not what is done with."""
    as_tiff("uint16", bands=4)(make_set(tmp_path, 10))
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text("nodata: -3\nshares: []\n")
    flags = [
        "--config",
        "r.yaml",
        "--channels",
        "4",
        "--validation",
        "20",
        "--class-names",
        "a b",
        "c",
    ]
    flags += [
        *data_flags(tmp_path),
        "--workers",
        "1",
        "--skip-bad-files",
        "2",
        "--output",
        "my pack",
    ]
    status, text = run(capsys, "pack", *flags)
    assert status == 0, text
    command = shlex.split(text.partition("train.py ")[2])
    config = parse_train(command)
    assert config.data == DataConfig(
        images="my pack", nodata=-3.0, channels=4, validation=20.0, class_names=("a b", "c")
    )
    assert config.launch == TrainConfig().launch
    assert run(capsys, "doctor", *command)[0] == 0


def test_a_pack_is_there_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that fails before its index leaves nothing; a folder that holds anything is not touched."""
    argv = ["pack", *data_flags(make_set(tmp_path, 6)), "--output", str(tmp_path / "pack")]

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_columns", stop)
        assert main(argv) != 0
    assert {path.name for path in tmp_path.iterdir()} == {"imgs", "masks"}
    mine = tmp_path / "pack" / "shard-000007.tar"
    mine.parent.mkdir()
    mine.write_bytes(b"of the user")
    assert run(capsys, *argv) == (
        2,
        f"error: {mine.parent}: already exists; use another --output\n",
    )
    assert list(mine.parent.iterdir()) == [mine]
    mine.unlink()
    assert run(capsys, *argv)[0] == 0
    assert {path.name for path in mine.parent.iterdir()} == {INDEX, "shard-000000.tar"}
    imgs, folder = str(tmp_path / "imgs"), str(mine.parent)
    shutil.copytree(folder, tmp_path / "above" / "pack")  # a folder of packs is none
    for places, said in (
        ({"images": imgs}, r"contains no pack \(pack\.index\); for a folder of images"),
        ({"images": f"{folder}.moved"}, r"\.moved: not found; name the pack by --images"),
        (
            {"images": folder, "masks": imgs},
            rf"contains no images but a pack; use --images {folder} without",
        ),
        (
            {"images": imgs, "masks": folder},
            rf"contains no masks but a pack; use --images {folder} without",
        ),
        (
            {"images": str(tmp_path / "above"), "masks": imgs},
            rf"above: contains no images but a pack; use --images {tmp_path / 'above' / 'pack'} without",
        ),
    ):
        with pytest.raises(UserError, match=said):
            prepare_data(DataConfig(**places), parts=DATA_PARTS, seed=0)


def test_a_folder_whose_place_no_pack_takes_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link, a mounted disk, or where the user is; an attempt that was killed is named by the next."""
    flags = data_flags(make_set(tmp_path, 6))
    for name in ("place", ".pack.abcd_123", ".pack.short"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("place")
    monkeypatch.chdir(tmp_path / "place")
    expected = "is a link, a mount point or the working folder, whose place no pack can take; name"
    for output in (tmp_path / "link", Path(), tmp_path / "place"):
        status, text = run(capsys, "pack", *flags, "--output", str(output))
        assert (status, text.startswith(f"error: {output}: {expected}")) == (2, True), text
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "ismount", lambda path: True)
        assert expected in run(capsys, "pack", *flags, "--output", "place")[1]
    status, text = run(capsys, "pack", *flags, "--output", "pack")
    assert status == 0 and text.count("an attempt that did not finish") == 1
    assert "warning: .pack.abcd_123: an attempt that did not finish; delete it, unless" in text


def test_an_attempt_at_an_address_that_fails_leaves_no_shard_or_names_it(
    memory_store: MemoryBucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = Url("s3://bucket/new/pack")
    argv = ["pack", *data_flags(make_set(tmp_path, 6)), "--output", str(place)]
    argv += ["--shard-size", "1e-6", "--workers", "1"]
    put, remove, written = pack_output.put, pack_output.delete, list[Url]()

    def fail(path: Url, *args: Any, **how: Any) -> Any:
        written.append(path)
        if len(written) % 5 == 0:
            raise UserError(f"{path}: Input/output error")
        return put(path, *args, **how)

    def refuse(path: Url) -> None:
        raise UserError(f"{path}: access is denied")

    put(place / "notes.txt", b"the user's")
    monkeypatch.setattr(pack_output, "put", fail)
    monkeypatch.setattr(shards_module, "put", fail)
    status, text = run(capsys, *argv)
    assert status == 2 and text.endswith(": Input/output error\n")
    assert set(list_files(place)) == {"notes.txt"}
    delete(place / "notes.txt")
    monkeypatch.setattr(pack_output, "delete", refuse)
    status, text = run(capsys, *argv)
    first, *_, last = sorted(list_files(place))
    assert status == 2 and text.count("\n") == 1
    assert f"shards are left in {place}, {first}, " in text
    monkeypatch.setattr(pack_output, "delete", remove)
    monkeypatch.setattr(pack_output, "put", put)
    monkeypatch.setattr(shards_module, "put", put)
    status, text = run(capsys, *argv)
    assert status == 0
    assert f"has shards of 1 attempt that did not finish, {last[:15]}*.tar" in text


def test_a_stopped_process_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM in the middle of a shard."""
    folder, add = make_set(tmp_path, 6), tarfile.TarFile.addfile
    before = signal.getsignal(signal.SIGTERM)

    def stop(*args: Any) -> None:
        assert signal.getsignal(signal.SIGTERM) is not before  # or it would end pytest
        signal.raise_signal(signal.SIGTERM)
        add(*args)

    monkeypatch.setattr(tarfile.TarFile, "addfile", stop)
    with pytest.raises(SystemExit) as end:
        main(["pack", *data_flags(folder), "--output", str(tmp_path / "pack")])
    assert end.value.code == 128 + signal.SIGTERM
    assert {path.name for path in tmp_path.iterdir()} == {"imgs", "masks"}
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_shard_ends_with_the_pair_that_fills_it(tmp_path: Path) -> None:
    """A pair takes two blocks for its headers, and whole blocks for each file."""
    for blocks, expected in (
        ([5], [(0, 1)]),
        ([5, 5, 5], [(0, 2), (2, 3)]),
        ([10, 10], [(0, 1), (1, 2)]),
        ([9, 99, 3, 8, 3], [(0, 2), (2, 4), (4, 5)]),
    ):
        members = members_of(tmp_path, *((count - 2) * 512 for count in blocks), masks=0)
        parts = plan_shards(replace(members, mark=""), 10 * 512)
        assert [(part.start, part.stop) for part in parts] == expected


def workers() -> set[threading.Thread]:
    """The threads of pools: a bar has one of its own."""
    return {each for each in threading.enumerate() if each.name.startswith("ThreadPool")}


def test_several_threads_write_the_same_bytes_or_nothing(
    sets: list[DataConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt is stopped after a shard; no thread outlives it."""
    one, config, before = tmp_path / "one", sets[0], workers()
    pack(config, one, shard_mb=SMALL)
    argv = ["pack", "--images", str(config.images), "--masks", str(config.masks), "--workers", "2"]
    argv += ["--shard-size", str(SMALL), "--validation", "20", "--output"]
    assert main([*argv, str(tmp_path / "two")]) == 0
    assert len([*one.iterdir()]) > 3
    for path in one.iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()

    def stop(*args: Any) -> None:
        assert workers() - before
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(module, "Shard", stop)
    with pytest.raises(SystemExit) as end:
        main([*argv, str(tmp_path / "three")])
    assert end.value.code == 128 + signal.SIGTERM
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}
    assert workers() <= before


def test_a_fault_in_one_of_several_threads_ends_all(
    sets: list[DataConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As of an image that vanishes after its size was found."""
    config, before, write = sets[0], workers(), module.write_shard

    def fail(job: Any) -> Any:
        if job.members.pairs[0].image.name == "dx.png":
            job.members.pairs[0].image.unlink()
        return write(job)

    monkeypatch.setattr(module, "write_shard", fail)
    copy = shutil.copytree(Path(str(config.images)).parent, tmp_path / "copy")
    argv = [
        "pack",
        "--images",
        str(copy / "imgs"),
        "--masks",
        str(copy / "masks"),
        "--workers",
        "2",
    ]
    argv += ["--shard-size", str(SMALL), "--output", str(tmp_path / "pack")]
    status, text = run(capsys, *argv)
    assert status == 2 and text.endswith("dx.png: not found\n") and text.count("error:") <= 1
    assert {path.name for path in tmp_path.iterdir()} == {"copy"}
    assert workers() <= before


def test_an_image_that_vanishes_is_named(tmp_path: Path) -> None:
    config = in_folder(make_set(tmp_path, 6))
    data = check_dataset(config, Report(), parts=DATA_PARTS, seed=0)
    assert data is not None
    image = data.table.pairs[2].image
    image.unlink()
    with pytest.raises(UserError, match=f"^{re.escape(str(image))}: not found"):
        write_pack(tmp_path, data, config)


def test_a_full_temporary_folder_is_one_line(
    tmp_path: Path, memory_store: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr(tarfile, "open", full)
    with pytest.raises(UserError, match=r"No space left on device; make room, or .* TMPDIR$"):
        pack_at(as_path("s3://bucket/full"), in_folder(make_set(tmp_path, 6)))


def test_a_link_to_nowhere_beside_a_pack_does_no_harm(tmp_path: Path) -> None:
    """As an editor's lock file is one."""
    own = pack(in_folder(make_set(tmp_path, 6)), tmp_path / "pack")
    (tmp_path / "pack" / ".#notes").symlink_to("user@host.1")
    assert len(prepare_data(own, parts=DATA_PARTS, seed=0).split.training) == 5


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / INDEX).unlink(), "contains no pack"),
        (lambda folder: truncate(folder / INDEX, 0), "pack.index: corrupt or truncated; copy it"),
        (lambda folder: truncate(folder / INDEX, 40), "pack.index: corrupt or truncated"),
        (lambda folder: truncate(folder / INDEX, 900), "pack.index: corrupt or truncated"),
        (lambda folder: flip(folder / INDEX, 3), "pack.index: corrupt or truncated"),
        (lambda folder: flip(folder / INDEX, 100), "pack.index: corrupt or truncated"),
        (lambda folder: flip(folder / INDEX, -1), "pack.index: corrupt or truncated"),
        (lambda folder: (folder / "shard-000000.tar").unlink(), "shard-000000.tar: missing; copy"),
        (lambda folder: truncate(folder / "shard-000000.tar", 5000), "tar: 5000 bytes, its index says"),
        (lambda folder: (folder / INDEX).write_bytes((folder.parent / "b" / INDEX).read_bytes()), "shard-000000.tar: "),
    ],
)  # fmt: skip
def test_a_damaged_pack_is_one_line(
    tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    own = pack(in_folder(make_set(tmp_path / "1", 6)), tmp_path / "a")
    pack(in_folder(make_set(tmp_path / "2", 9)), tmp_path / "b")
    damage(tmp_path / "a")
    with pytest.raises(UserError, match=re.escape(said)) as error:
        prepare_data(own, parts=DATA_PARTS, seed=0)
    assert str(tmp_path / "a") in str(error.value) and "\n" not in str(error.value)


def test_a_file_of_a_pack_is_no_pack(tmp_path: Path) -> None:
    pack(in_folder(make_set(tmp_path, 6)), tmp_path / "pack")
    with pytest.raises(UserError, match=r"pack\.index: is a file, not the folder of a pack"):
        open_pack(tmp_path / "pack" / INDEX)


def test_a_shard_that_was_changed_is_found_by_the_doctor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = pack(in_folder(make_set(tmp_path, 6)), tmp_path / "pack")
    data = prepare_data(own, parts=DATA_PARTS, seed=0)
    flip(tmp_path / "pack" / "shard-000000.tar", 700)
    again = prepare_data(own, parts=DATA_PARTS, seed=0)
    assert describe(again) == describe(data)  # not read at the start of a run
    status = main(["doctor", "--images", str(own.images), "--batch-size", "1"])
    assert status == 2
    assert (
        "error: " + str(tmp_path / "pack/shard-000000.tar") + ": corrupt;"
        in capsys.readouterr().out
    )


def test_statistics_of_other_options_are_refused(sets: list[DataConfig], tmp_path: Path) -> None:
    own = pack(sets[1], tmp_path / "pack")
    with pytest.raises(
        UserError, match=r"was packed with --nodata and --channels \[3\.0, 4\], not"
    ):
        prepare_data(replace(own, nodata=None), parts=DATA_PARTS, seed=0)
    with pytest.raises(UserError, match="--val-images: a pack has its own validation images"):
        prepare_data(replace(own, val_images="a", val_masks="b"), parts=DATA_PARTS, seed=0)


def test_pairs_without_a_group_have_none_in_a_pack(tmp_path: Path) -> None:
    folder = make_set(tmp_path, 6)
    rows = [f"imgs/{n}x.png,masks/{n}x.png,{'' if n in 'af' else 'g'}" for n in "abcdef"]
    (folder / "pairs.csv").write_text("\n".join(["image,mask,group", *rows]) + "\n")
    config = DataConfig(pairs_file=str(folder / "pairs.csv"), validation=20)
    expected, found = (
        prepare_data(each, parts=DATA_PARTS, seed=0)
        for each in (config, pack(config, tmp_path / "pack"))
    )
    assert describe(found) == describe(expected)
    groups = {
        pair.name[-2]: pair.group for pair in (*found.split.training, *found.split.validation)
    }
    assert groups == {"a": None, **dict.fromkeys("bcde", "g"), "f": None}


@pytest.mark.parametrize("number", range(4))
def test_a_pack_of_a_pack_is_the_same(sets: list[DataConfig], tmp_path: Path, number: int) -> None:
    one = pack(sets[number], tmp_path / "one")
    pack(one, tmp_path / "two")
    assert open_pack(tmp_path / "one").pack.digest == open_pack(tmp_path / "two").pack.digest


# -- object storage ------------------------------------------------------------------------


def test_a_pack_in_storage(
    sets: list[DataConfig],
    tmp_path: Path,
    object_store: ObjectStore,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By two threads, through faults; each sample takes one request, and each machine copies the index once."""
    config, url = sets[0], "s3://bucket/pack"
    assert config.images is not None and config.masks is not None
    argv = ["pack", "--images", config.images, "--masks", config.masks, "--output", url]
    argv += ["--shard-size", str(SMALL), "--workers", "2"]
    object_store.set_fault("cut", every=2, method="PUT", count=1)
    assert run(capsys, *argv)[0] == 0
    status, text = run(capsys, *argv)
    assert status == 2 and "s3://bucket/pack: contains a pack already" in text
    expected = loaded(config, World())
    object_store.set_fault("half", every=5)
    found = loaded(packed(config, url), World())
    assert len(found) == len(expected) and all(map(is_same, found, expected))
    object_store.set_fault("none")
    before = object_store.count_requests()
    found = loaded(packed(config, url), World())
    assert all(map(is_same, found, expected))
    samples = sum(len(batch.pair) for batch in found)
    # Twice (as rank 0 and as another) the stamp of the index, one listing of the shards.
    assert object_store.count_requests() - before == samples + 3
    with pytest.raises(UserError, match=r"s3://bucket/none: contains no pack"):
        prepare_data(packed(config, "s3://bucket/none"), parts=DATA_PARTS, seed=0)


def test_a_web_server_is_tried_before_the_first_step(
    sets: list[DataConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it sends parts of files, and has all shards: it does not list them."""
    pack(sets[0], tmp_path / "pack", shard_mb=SMALL)
    with running_web(tmp_path) as web:
        status = main(["doctor", "--images", f"{web}/pack"])
        lines = capsys.readouterr().out.splitlines()
        assert status == 2 and lines[-1] == "unfit to train: 1 problem"
        assert "the server sends no parts of files (range requests); copy the files" in lines[-2]
    with running_web(tmp_path, sends_parts=True) as web:
        own, shard = packed(sets[0], f"{web}/pack"), tmp_path / "pack" / "shard-000001.tar"
        expected, found = (loaded(config, World()) for config in (sets[0], own))
        assert len(found) == len(expected) and all(map(is_same, found, expected))
        flip(shard, 700)
        with pytest.raises(UserError, match=rf"{web}/pack/{shard.name}: corrupt; copy it again"):
            open_pack(as_path(f"{web}/pack")).check_content()
        truncate(shard, 700)
        with pytest.raises(UserError, match=rf"{shard.name}: 700 bytes, its index says"):
            prepare_data(own, parts=DATA_PARTS, seed=0)
        shard.unlink()
        with pytest.raises(UserError, match=rf"{shard.name}: missing; copy it again"):
            prepare_data(own, parts=DATA_PARTS, seed=0)


def test_a_folder_that_is_named_like_the_web_is_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = pack(in_folder(make_set(tmp_path, 6)), Path("https"))
    assert len(prepare_data(own, parts=DATA_PARTS, seed=0).split.training) == 5
    Path("https/shard-000000.tar").unlink()
    with pytest.raises(UserError, match=r"https/shard-000000\.tar: missing"):
        prepare_data(own, parts=DATA_PARTS, seed=0)


def test_a_damaged_copy_of_an_index_is_made_again(
    sets: list[DataConfig],
    tmp_path: Path,
    memory_store: MemoryBucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sets[0].images is not None and sets[0].masks is not None
    url = "s3://bucket/damaged"
    assert main(["pack", "--images", sets[0].images, "--masks", sets[0].masks, "-o", url]) == 0
    digest = open_pack(as_path(url)).pack.digest
    (copy,) = (tmp_path / "unet_ddp").glob("pack-*.index")
    flip(copy, -1)
    with pytest.raises(UserError, match="corrupt or truncated"):
        open_pack(as_path(url))
    assert open_pack(as_path(url)).pack.digest == digest


def test_a_cache_that_can_not_be_written_is_named(
    tmp_path: Path, memory_store: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no fault of the pack, whose index is copied there."""
    url = as_path("s3://bucket/uncached")
    pack_at(url, in_folder(make_set(tmp_path, 6)))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    line = (
        "file/unet_ddp: can't be written: Not a directory; name another folder with XDG_CACHE_HOME"
    )
    with pytest.raises(UserError, match=f"{line}$"):
        open_pack(url)


def test_of_two_packs_at_once_one_is_whole_and_the_other_leaves_nothing(
    tmp_path: Path, memory_store: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later one has other images, and begins while the first puts its index."""
    config, other = (in_folder(make_set(tmp_path / name, n)) for name, n in (("a", 6), ("b", 9)))
    url, write = as_path("s3://bucket/both"), module.write_columns

    def write_after_the_other(*args: Any) -> None:
        monkeypatch.setattr(module, "write_columns", write)
        pack_at(url, other)
        write(*args)

    monkeypatch.setattr(module, "write_columns", write_after_the_other)
    with pytest.raises(UserError, match=f"{url}: another pack was put there; use another"):
        pack_at(url, config)
    own = packed(other, str(url))
    assert describe(prepare_data(own, parts=DATA_PARTS, seed=0)) == describe(
        prepare_data(other, parts=DATA_PARTS, seed=0)
    )
    open_pack(url).check_content()
    assert len(list_files(url)) == 2  # index and shard


def pack_at(url: Path, config: DataConfig) -> None:
    data = check_dataset(config, Report(), parts=DATA_PARTS, seed=0)
    assert data is not None
    write_pack(url, data, config)


def test_copies_of_indexes_do_not_pile_up(
    tmp_path: Path, memory_store: MemoryBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new version replaces the copy of the one before, and a copy is kept for a month."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = in_folder(make_set(tmp_path, 6))
    one, two = (as_path(f"s3://bucket/copies-{name}") for name in ("one", "two"))
    for url in (one, two):
        pack_at(url, config)
        open_pack(url)
    copies = sorted((tmp_path / "unet_ddp").glob("pack-*.index"))
    for copy in copies:
        os.utime(copy, (0, 0))
    open_pack(one)  # used
    assert sorted(copy.stat().st_mtime > 0 for copy in copies) == [False, True]
    assert isinstance(one, Url)
    delete(one / INDEX)
    pack_at(one, in_folder(make_set(tmp_path / "more", 9)))
    assert len(open_pack(one)) == 9
    (left,) = (tmp_path / "unet_ddp").glob("pack-*.index")
    assert left not in copies
