"""A callback of the user's own: what it is, raises and returns is refused in one line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from unet_ddp.distributed.world import local_only
from unet_ddp.errors import RunError, UserError, shorten, words_of
from unet_ddp.plugins import find
from unet_ddp.runs.ending import Ending
from unet_ddp.runs.shared_state import find_difference, read_shared

if TYPE_CHECKING:
    from unet_ddp.runs.writers import RunInfo

_MOMENTS = "step", "epoch", "saved", "close"
_WATCHED = "__init__", "step", "epoch"  # not saved, by another thread, nor close, at the end
_FIRST, _EACH = 3, 10  # steps
_AVERAGES = "running_mean", "running_var", "num_batches_tracked"  # of batch norm in training
# Beginnings of what Lightning, Keras and Hugging Face call.
_OF_OTHERS = re.compile(
    r"on_(batch|before|after|epoch|evaluate|exception|fit|load|log|predict|sanity|save|step|test|train|valid)"
)


class OwnCallback:
    """A callback of the user's own: it has the methods that the user's has.

    Raises:
        UserError: it can't be made or has no method that is called; or one fails, or returns what has no meaning.
            Then it has none any more.
        RunError: a method changes what the other processes have, too.
    """

    def __init__(self, name: str, run: RunInfo) -> None:
        self.name, self._run = name, run
        self._shared = run if run and run.processes > 1 else None
        self._steps, self._has_said, self._has_said_rate = 0, False, False
        self._callback = self._guarded(find("callbacks", name), "__init__")(run)
        found = {moment: getattr(self._callback, moment, None) for moment in _MOMENTS}
        if not any(map(callable, found.values())):
            raise UserError(
                f"--callback {name}: makes {shorten(self._callback)}, which has none of the methods "
                f"{', '.join(_MOMENTS)}; see docs/own_parts.md"
            )
        for other in vars(type(self._callback)):
            if other not in _MOMENTS and _OF_OTHERS.match(other):
                raise UserError(
                    f"--callback {name}: nothing calls {other}; the methods are {', '.join(_MOMENTS)}; see docs/own_parts.md"
                )
        for moment, method in found.items():
            if inspect.iscoroutinefunction(method):
                raise UserError(f"--callback {name}: {moment} is never awaited; leave async out")
        self._check_trained("__init__")

    def close(self, ending: Ending) -> None:
        """Tell the callback how the run ends, if its method takes that."""
        method = getattr(self._callback, "close", None)
        if method is not None:
            takes = inspect.signature(method).parameters.values()
            takes_it = any(each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD) for each in takes)
            self._guarded(method, "close")(*[ending] * takes_it)

    def __getattr__(self, moment: str) -> Callable[..., bool]:
        method = self._guarded(getattr(self._callback, moment), moment)
        return lambda *values: self._ends_run(moment, method(*values))

    def _ends_run(self, moment: str, returned: object) -> bool:
        """Return whether a method has returned True, also as a number of NumPy or torch."""
        kind = str(getattr(returned, "dtype", type(returned).__name__))
        is_flag = kind in ("bool", "torch.bool") and not getattr(returned, "shape", ())
        if returned is not None and not is_flag:
            self._callback = None
            raise UserError(
                f"--callback {self.name}: {moment} returned {shorten(returned)}; return True to end the run, "
                "else nothing"
            )
        if not returned:
            self._check_trained(moment)
        return bool(returned)

    def _check_trained(self, moment: str) -> None:
        """Refuse a network whose further steps would have nothing to train."""
        if not self._run or moment not in _WATCHED:
            return
        state = self._run.state
        parameters = chain(state.network.parameters(), state.loss.parameters())
        if state.done < state.schedule.end and not any(each.requires_grad for each in parameters):
            self._callback = None
            raise UserError(
                f"--callback {self.name}: {moment} freezes the whole network, so nothing would be trained; leave a layer "
                "as it is, or return True to end the run"
            )

    @contextmanager
    def _watching_rate(self, moment: str) -> Iterator[None]:
        """Say once that a learning rate which the callback sets has no effect."""
        is_watched = self._run and moment in _WATCHED and not self._has_said_rate
        groups = self._run.state.optimizer.param_groups if is_watched else []
        rates = [group["lr"] for group in groups]
        yield
        if any(rate != group["lr"] for rate, group in zip(rates, groups, strict=False)):
            self._has_said_rate = True
            way = "change group['lr_scale'], its factor, and set it in each group again after --resume"
            if self._shared:
                way = "use --learning-rate, as one of several processes can't change it"
            self._run.log(
                f"warning: --callback {self.name}: {moment} changes the learning rate, but the schedule sets it again "
                f"before each step; {way}"
            )

    @contextmanager
    def _watching(self, moment: str) -> Iterator[None]:
        """Refuse changes that the other processes would not have; they keep their modules' modes and numbers, as this one.

        Tensors are compared in the first three steps of a start and in each tenth: to read all of them takes time.
        """
        run = self._shared
        if run is None or moment not in _WATCHED:
            yield
            return
        state = run.state
        self._steps += moment == "step"
        sums = moment != "step" or self._steps <= _FIRST or state.done % _EACH == 0
        modes = [(module, module.training) for module in state.network.modules()]
        counted, before = state.numbers.read(), read_shared(state, sums=sums)
        with local_only():  # the others take no part in sums of a loss or of batch norm
            yield
        for module, mode in modes:
            module.training = mode
        self._set_back(counted, moment)
        if changed := find_difference(before, read_shared(state, sums=sums)):
            self._callback = None
            way = "use one process, or have --model or --loss do it, which all processes have"
            if changed.endswith(_AVERAGES):
                way = "call run.state.network.eval() before its forward"
            # Of a run that trains, no further step is one of all processes: none is taken, to agree on an end.
            raise (UserError if moment == "__init__" else RunError)(
                f"--callback {self.name}: {moment} changes {changed} on the main process only, so the "
                f"{run.processes} processes would train different networks; {way}"
            )

    def _set_back(self, counted: dict[str, float], moment: str) -> None:
        """Set plain numbers of network and loss back, as a pass may count itself; the first time with a line."""
        assert self._shared is not None
        numbers = self._shared.state.numbers
        found = numbers.read()
        changed = {name: n for name, n in counted.items() if [found.get(name)] != [n]}
        numbers.load_state_dict(changed, whole=False)
        if changed and not self._has_said:
            self._has_said = True
            name = min(changed).replace(":", ".")
            self._shared.log(
                f"--callback {self.name}: {moment} changes {name} on the main process only, so it is set back"
            )

    def _guarded(self, method: Callable[..., Any], moment: str) -> Callable[..., Any]:
        def call(*values: object) -> Any:
            # A row of its own: others write the same one, and the run's record keeps it.
            given = [dict(each) if isinstance(each, dict) else each for each in values]
            with self._watching_rate(moment), self._watching(moment):
                try:
                    return method(*given)
                except (Exception, SystemExit) as error:  # of code that is not ours
                    self._callback = None
                    reason = f"{type(error).__name__}: {words_of(error)}"
                    raise UserError(
                        f"--callback {self.name}: {reason}; see docs/own_parts.md"
                    ) from error

        return call
