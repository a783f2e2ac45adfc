"""The kind of data set that is read by windows: scenes of another kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from unet_ddp.data.matching import Report
from unet_ddp.data.pairs import DataPaths, Pair, PairKind, Pairs, list_kinds


class Windows(PairKind):
    """Windows of scenes that another kind finds: in folders, or by a list."""

    def claims(self, paths: DataPaths) -> bool:
        """Return whether --window is given."""
        return paths.config is not None and paths.config.window is not None

    def find(self, paths: DataPaths, report: Report) -> Pairs:
        """Return all windows."""
        from unet_ddp.extras.windows.grid import find_windows

        assert paths.config is not None
        whole = replace(paths, config=replace(paths.config, window=None))
        kind = next(kind for kind in list_kinds() if kind.claims(whole))
        return find_windows(kind.find(whole, report), paths.config, report)

    def collect(self, pairs: Sequence[Pair]) -> Pairs | None:
        """Return the set of pairs if they are windows."""
        if not pairs or pairs[0].image.suffix != ".window":
            return None
        from unet_ddp.extras.windows.pairs import WindowPairs

        return WindowPairs(pairs)
