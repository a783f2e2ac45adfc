"""A checkpoint as an ONNX file for other programs, which is written only if its masks are as good."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch

from unet_ddp.checkpoints.weights import SavedModel, find_model, read_model
from unet_ddp.cli import parse
from unet_ddp.distributed.device import is_out_of_memory
from unet_ddp.errors import RunError, UserError, join_some, print_lines
from unet_ddp.evaluation.validation_split import advising
from unet_ddp.extras.onnx.backend import OnnxBackend, describe_network
from unet_ddp.extras.onnx.export_data import Scored, find_scored, read_calibration
from unet_ddp.extras.onnx.gate import (
    LEAST_EQUAL,
    Verdict,
    check_facts,
    judge,
    open_predict,
    with_network,
)
from unet_ddp.extras.onnx.quantisation import find_layers, quantised
from unet_ddp.extras.onnx.refusal import Refusal
from unet_ddp.extras.onnx.runtimes import (
    RUNTIMES,
    extra_of,
    import_extra,
    list_installed,
    open_run,
    open_session,
    shorten_error,
)
from unet_ddp.extras.onnx.settings import ExportConfig
from unet_ddp.extras.onnx.tracing import (
    LARGEST_DIFFERENCE,
    ROUNDINGS,
    SIZES,
    Exported,
    in_type,
    largest_difference,
    largest_rounding,
    trace_network,
    write_graph,
)
from unet_ddp.extras.onnx.whole_image import (
    add_steps,
    describe_ends,
    describe_form,
)
from unet_ddp.extras.sharing.bioimageio import Package, prepare, write_package
from unet_ddp.extras.sharing.card import read_checked, write_card
from unet_ddp.files import as_local_path, check_no_input, replacing, write_errors
from unet_ddp.heads import find_head
from unet_ddp.prediction.backends import LoadedModel, build_model

_CPU = torch.device("cpu")
_SHOWN = 8  # layers in a line
SCORES = "unet_ddp_scores"  # key of the scores in an exported file


def main(argv: Sequence[str]) -> int:
    """Export a checkpoint, print what was written, and return the exit status."""
    config = parse(ExportConfig, argv, prog="python -m unet_ddp export")
    if config.output is None and config.card is None:
        raise UserError(
            "nothing to write; name a FILE.onnx, or FILE.zip with --bioimageio, or use --card DIR"
        )
    job = find_job(config) if config.output is not None else None
    if config.card is not None:
        saved, source, notes = read_checked(config.checkpoint, config.scale, config.network)
        if job is None:  # else its lines have them
            print_lines(*notes)
        how: Any = {"licence": config.license, "overwrite": config.overwrite}
        print_lines(*write_card(saved, source, as_local_path(config.card, "--card"), **how))
    if job is not None:
        print_lines(*write_export(job).lines)
    return 0


def export(config: ExportConfig) -> list[str]:
    """Write the file if it passes, and return lines to print.

    Raises:
        UserError: a mistake in the settings, or there are no images to score it on where it needs them.
        RunError: its masks, or its probabilities, are not the checkpoint's.
    """
    return write_export(find_job(config)).lines


@dataclass(frozen=True)
class Written:
    """A file that was written: lines about it, and its scores by runtime, the fastest of those that passed first."""

    lines: list[str]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    passing: Sequence[str] = ()


def write_export(job: Job) -> Written:
    """Write the file of a job if it passes."""
    with write_errors(job.path), replacing(job.path) as temporary, job.refusal.naming(temporary):
        graph, lines = trace_checked(job, temporary)
        if isinstance(job.scored, UserError):
            return Written([*lines, f"  not scored: {job.scored}"])
        written = write_passing(job, job.scored, graph, temporary)
        lines += written.lines
        if job.package is not None:
            lines.append(_pack(job, job.package, temporary))
        return replace(written, lines=lines)


def _pack(job: Job, package: Package, temporary: Path) -> str:
    """Replace the network in a file by the package that contains it; return a line about it."""
    run = open_run(open_session(temporary, _CPU), job.path, RUNTIMES[0])
    opsets = import_extra("onnx", "onnx", job.path).load(temporary).opset_import
    opset = next(each.version for each in opsets if not each.domain)
    parts = temporary.read_bytes(), opset, run(package.test_input)
    return write_package(temporary, job.path.stem, package, job.saved, job.source, *parts)


@dataclass(frozen=True)
class Job:
    """A checkpoint, the file to write, and the images to score it on, or why there are none."""

    config: ExportConfig
    path: Path
    source: Path
    saved: SavedModel
    model: LoadedModel
    scored: Scored | UserError
    runtimes: Sequence[str]
    package: Package | None = None

    @property
    def refusal(self) -> Refusal:
        """The error for a network that can't be such a file."""
        own = self.saved.architecture
        name = "the network" if own is None else own.model
        return Refusal(self.path, self.source, name, self.config.precision)


def find_job(config: ExportConfig) -> Job:
    """Find all that an export needs, and all mistakes before the network is traced."""
    path, source = as_local_path(config.output or "", "FILE"), find_model(config.checkpoint)
    suffix = ".zip" if config.bioimageio else ".onnx"
    if path.suffix.lower() != suffix:
        raise UserError(f"{path}: the name must end in {suffix}")
    if path.exists() and not config.overwrite:
        raise UserError(f"{path}: already exists; use --overwrite, or another name")
    check_no_input([("export", path)], [("checkpoint", source)])
    for name in ("onnx", "onnxscript", "onnxruntime"):
        import_extra(name, "onnx", path)
    runtimes: Sequence[str] = [config.runtime]
    if config.runtime == "auto":
        runtimes = RUNTIMES[:1] if config.bioimageio else list_installed()
    import_extra(runtimes[-1], extra_of(runtimes[-1]), path)
    saved, folds = read_model(source, config.scale), config.precision == "int8"
    model = build_model(saved, source, _CPU, fold=folds, network=config.network)
    package = None
    if config.bioimageio:
        package = prepare(model, config.license, config.authors, config.cite, config.sample)
    scored: Scored | UserError
    try:
        scored = find_scored(config.images, config.masks, saved, source, model)
    except UserError as error:
        if (
            config.images
            or config.form
            or config.precision != "float32"
            or config.runtime != "auto"
        ):
            raise
        scored = error
    return Job(config, path, source, saved, model, scored, runtimes, package)


def trace_checked(job: Job, temporary: Path) -> tuple[Any, list[str]]:
    """Return the network's graph, and lines about it; one in float32 is written and compared."""
    pixels, own = job.model.preprocessing, cast(Any, job.model.backend).network
    own = copy.deepcopy(own).to(memory_format=torch.contiguous_format)
    head = find_head(job.model.labels)
    lines = [
        *job.model.notes,
        f"{job.path}: {job.saved.architecture}, {job.config.precision}",
        describe_ends(job.model, job.config.form),
    ]
    if job.config.precision == "float16":
        return _trace(job, Exported(in_type(own, torch.float16), pixels, head)), lines
    module = Exported(own, pixels, head)
    graph = _trace(job, Exported(in_type(copy.deepcopy(own), torch.float32), pixels, head))
    write_graph(graph, describe_network(job.model), temporary)
    backend = OnnxBackend(temporary, _CPU, RUNTIMES[0])
    check_facts(backend, job.model)
    difference = largest_difference(module, backend, pixels)
    rounding = largest_rounding(module, pixels) if difference > LARGEST_DIFFERENCE else 0.0
    if difference > max(LARGEST_DIFFERENCE, ROUNDINGS * rounding):
        raise RunError(
            f"{job.path}: not kept: its probabilities differ by up to {difference:.1e} from those of "
            f"{job.source}"
        )
    sizes = ", ".join(f"{width}x{height}" for _, height, width in SIZES)
    line = (
        f"  probabilities differ by at most {difference:.1e} from the checkpoint's ({sizes} pixels)"
    )
    if job.config.precision == "int8":
        line += ", in float32"
    return graph, [*lines, line]


def _trace(job: Job, module: Exported) -> Any:
    """Return a network's graph, or raise a UserError if torch finds none."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        return trace_network(module, job.model.preprocessing)
    except Exception as error:  # torch has many kinds, and the user's code may raise any
        if is_out_of_memory(error):
            raise
        cause: BaseException = error  # the exporter's own says what to do next, to who writes it
        while isinstance(cause, torch.onnx.OnnxExporterError) and cause.__cause__:
            cause = cause.__cause__
        reason = f"torch can't trace it ({shorten_error(cause, lines=1)})"
        if isinstance(error, GuardOnDataDependentSymNode):
            reason = "which of its layers run depends on the image's pixels"
        raise job.refusal.because(reason) from None


def write_passing(job: Job, scored: Scored, graph: Any, temporary: Path) -> Written:
    """Write the first form of the graph whose masks are as good in a runtime."""
    config, model = job.config, job.model
    complete, nodes, verdicts = _find_passing(job, scored, graph, temporary)
    passing = [name for name in verdicts if _passes(job, verdicts[name])]
    passing.sort(key=lambda name: -verdicts[name].rate)
    facts = describe_network(model, passing, form=config.form)
    facts[SCORES] = json.dumps({name: verdicts[name].to_dict() for name in passing})
    facts |= describe_form(model, config.form)
    write_graph(complete, facts, temporary)
    best = verdicts[passing[0]]
    score = f"AP of objects is {best.precision[0]:.4f}" if best.precision else ""
    score = score or f"Dice is {best.dice[0]:.4f}"
    lines = [f"  {scored.described}: the checkpoint's {score}"]
    for name, verdict in verdicts.items():
        refused = "" if name in passing else "; not used, as its masks are not as good"
        lines.append(f"  {name}: {verdict.summarise()}{refused}")
    if nodes:
        layers = find_layers(graph)
        left = join_some([layers[node] for node in nodes], _SHOWN)
        lines.append(f"  {len(nodes)} of {len(layers)} layers are in float32: {left}")
    return Written(lines, verdicts, passing)


def _find_passing(
    job: Job, scored: Scored, graph: Any, temporary: Path
) -> tuple[Any, list[str], dict[str, Verdict]]:
    """Return the first complete graph that passes, its nodes that are not in int8, and its verdicts."""
    config, checkpoint = job.config, with_network(job.model)
    verdicts: dict[str, Verdict] = {}
    for candidate, nodes in _candidates(job, graph):
        complete = add_steps(candidate, job.model, config.form)
        facts = describe_network(job.model, form=config.form)
        facts |= describe_form(job.model, config.form)
        write_graph(complete, facts, temporary)
        networks = {
            name: open_predict(temporary, config.form, name, job.model) for name in job.runtimes
        }
        with advising("--images", "--masks"):
            verdicts = judge(networks, checkpoint, scored.pairs)
        if any(_passes(job, verdict) for verdict in verdicts.values()):
            return complete, nodes, verdicts
    first = next(iter(verdicts))
    reason = f"{verdicts[first].explain()}; --tolerance is {config.tolerance:g}"
    if verdicts[first].fall <= config.tolerance:
        reason = f"{100 * verdicts[first].shares:.1f} % of pixels are as in the checkpoint's masks, at least "
        reason += f"{100 * LEAST_EQUAL:g} % must be in {config.precision}"
    raise RunError(f"{job.path}: not written: in {first}, {reason} ({scored.described})")


def _passes(job: Job, verdict: Verdict) -> bool:
    """Return whether masks are as good, and in other precisions than int8 the same but for rounding."""
    is_like = job.config.precision == "int8" or verdict.shares >= LEAST_EQUAL
    return is_like and verdict.fall <= job.config.tolerance


def _candidates(job: Job, graph: Any) -> Iterator[tuple[Any, list[str]]]:
    """Yield the graph in the wanted precision, and the nodes that are not; of int8, several."""
    if job.config.precision != "int8":
        yield graph, []
        return
    run = job.saved, job.source, job.model
    yield from quantised(graph, read_calibration(job.config.calibration, *run))
