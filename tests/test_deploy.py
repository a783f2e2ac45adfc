"""The files of deploy/ do what they say, as far as this machine can try it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, get_args_parser, parse_args

import unet_ddp
from tests import cluster
from tests.conftest import data_flags, make_set
from tests.ranks import LIMIT, ROOT, Ranks, call_train
from tests.test_docs import read_pyproject
from tests.test_resume import assert_same_state
from unet_ddp.checkpoints import file as checkpoint
from unet_ddp.cli import parse_train
from unet_ddp.config import TrainConfig

DEPLOY = ROOT / "deploy"
SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def run_tool(name: str, *argv: str, text: str | None = None) -> None:
    """Run a checker that pip installed, which must find nothing."""
    found = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine")
    done = subprocess.run([found, *argv], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def parse_torchrun(argv: list[str]) -> tuple[LaunchConfig, TrainConfig]:
    """Return what torchrun and train.py understand by a command line; older torchruns lack a flag."""
    if "--shutdown-timeout" not in get_args_parser().format_help():
        argv = [word for word in argv if not word.startswith("--shutdown-timeout")]
    launch, program, words = config_from_args(parse_args(argv))
    assert program == sys.executable and words[1] == "train.py", words
    return launch, parse_train(words[2:])


@pytest.mark.parametrize("name", sorted(path.name for path in DEPLOY.iterdir() if path.is_file()))
def test_a_file_begins_with_the_three_lines_that_a_user_types(name: str) -> None:
    head = re.match(r"(?:#.*\n)+", (DEPLOY / name).read_text(encoding="utf-8"))
    assert head is not None
    blocks = re.findall(r"(?:^#     \S.*\n)+", head[0], flags=re.M)
    assert len(blocks) == 1 and blocks[0].count("\n") == 3
    assert f"deploy/{name}" in blocks[0]


def test_shell_scripts_are_sound() -> None:
    task = load("skypilot.yaml")
    scripts = [cluster.SBATCH.read_text(encoding="utf-8")]
    scripts += [f"#!/bin/bash\n{task[part]}" for part in ("setup", "run")]
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        run_tool("shellcheck", "-", text=script)


# -- Slurm ----------------------------------------------------------------------------------------

BOTH_READY = """
touch "ready.$SLURM_PROCID"
until [ -e ready.0 ] && [ -e ready.1 ]; do sleep 0.05; done
"""
SAVE_TOGETHER = """
save() {
  touch "saved.$SLURM_PROCID"
  until [ -e saved.0 ] && [ -e saved.1 ]; do sleep 0.05; done
  exit 1
}
trap save USR1
"""
ASK = '[ "$SLURM_PROCID" = 1 ] || kill -USR1 "$BATCH_SHELL"; while :; do sleep 0.05; done'


@pytest.mark.processes
@pytest.mark.parametrize(
    ("status", "said"), [(0, "the run is complete"), (2, "failed with status 2: see above")]
)
def test_a_job_that_ends_by_itself_is_not_queued_again(
    tmp_path: Path, status: int, said: str
) -> None:
    cluster.install(tmp_path, python=f"exit {status}")
    done = cluster.sbatch(tmp_path, 7)
    assert done.returncode == status, done.stderr
    assert done.stdout.startswith(f"slurm.sbatch: {said}")
    assert not (tmp_path / "requeued").exists()


@pytest.mark.processes
def test_the_signal_before_the_limit_reaches_every_torchrun_and_queues_the_job_again(
    tmp_path: Path,
) -> None:
    cluster.install(tmp_path, python=SAVE_TOGETHER + BOTH_READY + ASK)
    done = cluster.sbatch(tmp_path, 7)
    assert done.stdout.splitlines()[-1].startswith("slurm.sbatch: job 7 is queued again")
    assert (tmp_path / "saved.0").exists() and (tmp_path / "saved.1").exists()
    assert (tmp_path / "requeued").read_text() == "requeue 7"


def test_slurm_signals_the_script_alone_and_leaves_torchrun_time_to_save() -> None:
    text = cluster.SBATCH.read_text(encoding="utf-8")
    (before,) = re.findall(r"^#SBATCH --signal=B:USR1@(\d+)$", text, flags=re.M)
    (patience,) = re.findall(r"--shutdown-timeout=(\d+)", text)
    assert 30 < int(patience) < int(before)
    assert re.search(r"^#SBATCH --requeue$", text, flags=re.M)


@pytest.mark.processes
def test_slurm_starts_one_group_over_all_nodes(tmp_path: Path) -> None:
    record = f'echo "${SHARED_STORE}" > store; printf "%s\\n" "${{@:3}}" > "words.$SLURM_PROCID"'
    cluster.install(tmp_path, python=record)
    assert cluster.sbatch(tmp_path, 7, "--lr", "0.1").returncode == 0
    words = [(tmp_path / f"words.{node}").read_text().splitlines() for node in (0, 1)]
    assert words[0] == words[1]
    launch, config = parse_torchrun(words[0])
    assert (launch.min_nodes, launch.max_nodes, launch.nproc_per_node) == (2, 2, 1)
    assert (launch.rdzv_backend, launch.rdzv_endpoint) == ("c10d", "localhost:20007")
    assert launch.run_id == "7" and "SIGUSR1" in launch.signals_to_handle
    assert (config.run.exp_name, config.optimization.learning_rate) == ("cells", 0.1)
    assert (tmp_path / "store").read_text() == "1\n"


PLANTED = """
import sys

sys.path[0] = {root!r}
from tests import faults

if __name__ == "__main__":
    with faults.planted("user signal to the batch shell"):
        faults.train.main(sys.argv[1:])
"""


@pytest.mark.thorough
@pytest.mark.release  # each signal and each stop is tested alone, too
def test_a_job_that_reaches_its_limit_ends_as_an_undisturbed_run(
    tmp_path: Path, ranks: Ranks
) -> None:
    """Two torchruns of one process each, the signal after the third step, and the job's return."""
    flags = [*data_flags(make_set(tmp_path, 36, size=(32, 32))), "--width", "2", "--epochs", "2"]
    flags += ["--validation", "17", "--batch-size", "1", "--workers", "0", "--ema", "0.9"]
    straight = tmp_path / "straight"
    straight.mkdir()
    outcomes = ranks.run(2, call_train, [*flags, "--exp-name", "cells"], str(straight))
    assert [status for status, _, _ in outcomes] == [0, 0], outcomes

    cluster.install(tmp_path)
    (tmp_path / "train.py").write_text(PLANTED.format(root=str(ROOT)), encoding="utf-8")
    job = cluster.free_job()
    first = cluster.sbatch(tmp_path, job, *flags)
    assert "stopped by SIGUSR1 after step" in first.stdout, first.stderr
    assert "SignalException" not in first.stderr
    assert (tmp_path / "requeued").read_text() == f"requeue {job}"
    saved = checkpoint.load(tmp_path / "checkpoints" / "cells" / "last.pt")["position"]
    assert saved["epoch"] == 0 and 3 <= saved["step"] < 15

    second = cluster.sbatch(tmp_path, job, *flags)
    assert second.returncode == 0, second.stderr
    assert f"0 epochs and {saved['step']} steps are done" in second.stdout
    assert not (tmp_path / "requeued").exists()
    run = Path("checkpoints") / "cells"
    assert_same_state(
        checkpoint.load(tmp_path / run / "last.pt"), checkpoint.load(straight / run / "last.pt")
    )


# -- Kubernetes -----------------------------------------------------------------------------------

TRAINER_SETS = {  # for the trainer's container; it refuses a job whose env has one of them
    "PET_NNODES": "4",
    "PET_NPROC_PER_NODE": "8",
    "PET_NODE_RANK": "3",
    "PET_MASTER_ADDR": "cells-node-0-0.cells",
    "PET_MASTER_PORT": "29500",
}


def test_the_trainjob_is_one_of_kubeflows_api() -> None:
    train_job = pytest.importorskip("kubeflow_trainer_api.models.trainer_v1alpha1_train_job")
    job = load("trainjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    # A field that the API does not know is lost on the way.
    assert train_job.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job


def test_the_trainjob_starts_an_elastic_group(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = load("trainjob.yaml")["spec"]["trainer"]
    names = {variable["name"] for variable in trainer["env"]}
    assert names.isdisjoint(TRAINER_SETS)
    assert {"name": SHARED_STORE, "value": "1"} in trainer["env"]
    values = {**TRAINER_SETS, "LAUNCH": "3f2a"}
    assert str(trainer["numNodes"]) == TRAINER_SETS["PET_NNODES"]
    assert str(trainer["numProcPerNode"]) == TRAINER_SETS["PET_NPROC_PER_NODE"]
    for name, value in TRAINER_SETS.items():
        monkeypatch.setenv(name, value)
    # As Kubernetes fills in a container's variables.
    words = [re.sub(r"\$\((\w+)\)", lambda m: values[m[1]], word) for word in trainer["args"]]
    assert trainer["command"] == ["torchrun"]
    launch, config = parse_torchrun(words)
    assert (launch.min_nodes, launch.max_nodes, launch.nproc_per_node) == (1, 4, 8)
    assert (launch.rdzv_backend, launch.rdzv_endpoint) == ("c10d", "cells-node-0-0.cells:29500")
    assert launch.run_id == "3f2a" and launch.max_restarts >= 5
    images = config.optimization.images_per_step
    assert images is not None and config.optimization.batch_size == "auto"
    for nodes in range(launch.min_nodes, launch.max_nodes + 1):
        assert images % (nodes * launch.nproc_per_node) == 0


def test_pods_of_the_trainjob_have_shared_memory_and_time_to_save() -> None:
    spec = load("trainjob.yaml")["spec"]
    (patch,) = spec["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    assert spec["runtimeRef"]["name"] == "torch-distributed" and job["name"] == "node"
    (container,) = pod["containers"]
    assert container["name"] == "node"
    volumes = {volume.pop("name"): volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert volumes.keys() == set(mounts.values())
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    (patience,) = re.findall(r"--shutdown-timeout=(\d+)", " ".join(spec["trainer"]["args"]))
    assert int(patience) < pod["terminationGracePeriodSeconds"]


# -- SkyPilot and Docker --------------------------------------------------------------------------


@pytest.mark.processes
def test_the_task_for_skypilot_starts_one_group(tmp_path: Path) -> None:
    task = load("skypilot.yaml")
    assert task.keys() <= {"name", "num_nodes", "workdir", "resources", "envs", "setup", "run"}
    assert all(value is None or isinstance(value, str) for value in task["envs"].values())
    given = {name: value or f"s3://bucket/{name}" for name, value in task["envs"].items()}
    assert given[SHARED_STORE] == "1"
    cluster.install(tmp_path, torchrun='printf "%s\\n" "$@"')
    sets = {
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        "SKYPILOT_TASK_ID": "sky-managed-7",
    }
    done = subprocess.run(
        ["bash", "-euc", task["run"]],
        env={**given, **sets, "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    launch, config = parse_torchrun(done.stdout.splitlines())
    assert (launch.min_nodes, launch.max_nodes, launch.nproc_per_node) == (2, 2, 8)
    assert (launch.rdzv_backend, launch.rdzv_endpoint) == ("c10d", "10.0.0.1:29400")
    assert launch.run_id == "sky-managed-7" and launch.rdzv_configs["is_host"] == "0"
    assert config.data.images == "s3://bucket/DATA/imgs"
    assert config.run.checkpoints == "s3://bucket/RUNS"


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions and their words, without comments."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    lines = [line.partition(" ") for line in text.splitlines() if line]
    return [(name, words.strip()) for name, _, words in lines]


def words_of(name: str) -> list[str]:
    """Return the words of each instruction of a kind."""
    return [words for found, words in instructions() if found == name]


def test_the_dockerfile_is_sound() -> None:
    run_tool("hadolint", str(DEPLOY / "Dockerfile"))
    steps = instructions()
    bases = [words.split()[0] for words in words_of("FROM")]
    stages = [words.split()[-1] for words in words_of("FROM")]
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", bases[0])  # as deploy/requirements
    assert set(bases[1:]) < set(stages) and stages[-1] == "train"
    installs = next(i for i, (_, words) in enumerate(steps) if "--require-hashes" in words)
    sources = steps.index(("COPY", "unet_ddp unet_ddp"))
    assert installs < sources, "a change of the sources would install torch again"
    (user,) = words_of("USER")
    assert int(user) > 0  # a number: Kubernetes must see it
    assert steps.index(("USER", user)) > sources
    assert "--shm-size" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def test_the_image_s_extras_are_those_that_its_commands_need() -> None:
    (extras,) = (words for words in words_of("ARG") if words.startswith("EXTRAS="))
    names = extras.partition("=")[2].strip('"').split()
    assert {"cloud", "serve"} <= set(names)
    assert all((DEPLOY / "requirements" / f"{name}.txt").is_file() for name in names)


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """A folder that other users reach, with app/ and site/ as in the image: the wheel that it makes, installed."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        for place in (folder, folder / "build", folder / "app", folder / "site"):
            place.mkdir(exist_ok=True)
            place.chmod(0o755)
        copies = [words.split() for words in words_of("COPY")]
        for *sources, target in copies:
            work = "app" if "train.py" in sources else "build"
            for source in sources:
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, folder / work / target)
        pip = [sys.executable, "-m", "pip"]
        made = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "."]
        subprocess.run(made, cwd=folder / "build", check=True)
        (wheel,) = (folder / "build").glob("*.whl")
        site = ["install", "-q", "--no-deps", "--no-index", "--target", str(folder / "site")]
        subprocess.run([*pip, *site, str(wheel)], check=True)
        make_set(folder / "app" / "data", 6, size=(32, 32))
        (folder / "app" / "checkpoints").mkdir()
        yield folder


def start_in_image(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Start a command of Python as a container of the image does."""
    enter = [sys.executable, str(ROOT / "tests" / "image.py"), str(folder)]
    closed = folder / "closed"  # to other users, as the folder of an environment may be
    (closed / "site").mkdir(parents=True, exist_ok=True)
    closed.chmod(0o700)
    paths = f"{ROOT}:{closed / 'site'}"
    whole = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*enter, *words], env={**whole, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.processes
def test_the_image_trains_predicts_and_serves_where_nothing_else_is_writable(image: Path) -> None:
    """A user without a name, a read-only root, one volume, and /tmp."""
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounts need root")
    where = "import unet_ddp, pathlib; print(unet_ddp.__file__); pathlib.Path('new').touch()"
    out, err = start_in_image(image, "-c", where).communicate(timeout=LIMIT)
    assert out == f"{image}/site/unet_ddp/__init__.py\n" and "Read-only file" in err, err
    flags = "--epochs 1 --width 2 --batch-size 2 --workers 1"
    for words in (
        ["train.py", *flags.split()],
        ["predict.py", "data/imgs", "-o", "checkpoints/masks"],
    ):
        process = start_in_image(image, *words)
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 0 and "warning" not in out + err, out + err
    written = {path.name for path in (image / "app" / "checkpoints").iterdir()}
    assert {"best.pt", "report.html", "masks"} <= written
    serve = next(words for words in words_of("CMD") if "serve" in words)
    (check,) = words_of("HEALTHCHECK")
    token = {"UNET_DDP_TOKEN": "a secret of many words"}
    process = start_in_image(image, *json.loads(serve)[1:], "--port", "0", **token)
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("on http://0.0.0.0:"))
        port = re.findall(r":(\d+)/", line)[0]
        probe = json.loads(check.partition(" CMD ")[2])[1:]
        words = [word.replace(":8000/", f":{port}/") for word in probe]
        asked = start_in_image(image, *words)
        assert asked.communicate(timeout=LIMIT) == ("", "") and asked.returncode == 0
    finally:
        process.terminate()
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err


# -- a conda package ------------------------------------------------------------------------


def test_the_conda_recipe_has_the_requirements_of_the_package() -> None:
    recipe = yaml.safe_load((DEPLOY / "recipe.yaml").read_text(encoding="utf-8"))
    project = read_pyproject()["project"]
    others = {
        "pytorch": "torch",
        "py-opencv": "opencv-python-headless",
        "huggingface_hub": "huggingface-hub",
        "matplotlib-base": "matplotlib",
    }
    python, *packages = (each.split() for each in recipe["requirements"]["run"])
    assert python == ["python", project["requires-python"]]
    assert [f"{others.get(name, name)}{limits}" for name, limits in packages] == project[
        "dependencies"
    ]
    assert recipe["package"] == {"name": project["name"], "version": unet_ddp.__version__}
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {function}" for name, function in project["scripts"].items()
    ]
