"""Methods of torch.nn.Module that a part of the user's own overrides: they must take what torch and this program pass."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from unet_ddp.errors import UserError, words_of
from unet_ddp.training.own_holders import holders

_OF_STATE: dict[str, Any] = {"destination": {}, "prefix": "", "keep_vars": True}
_OF_LOADING: dict[str, Any] = {"strict": False}


def check_methods(where: str, part: nn.Module) -> None:
    """Check that each module's `state_dict` and the whole one's `load_state_dict` take torch's arguments.

    Raises:
        UserError: one does not.
    """
    calls: list[tuple[Any, str, tuple[object, ...], dict[str, Any]]]
    calls = [(holder, "state_dict", (), _OF_STATE) for _, holder in holders(part)]
    calls.append((part, "load_state_dict", ({},), _OF_LOADING))
    for module, name, values, named in calls:
        if not isinstance(module, nn.Module) or getattr(type(module), name) is getattr(
            nn.Module, name
        ):
            continue
        try:
            inspect.signature(getattr(module, name)).bind(*values, **named)
        except TypeError as error:
            raise UserError(
                f"{where}: {name} of {type(module).__name__} does not take torch's arguments ({words_of(error)}); write "
                f"def {name}(self, *args, **kwargs), and pass them on to super().{name}"
            ) from None
