"""The values of many signals on many groups; needs the `analysis` extra."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from selective_rollout.analysis.batch_curve import Curve, mean_curves, renamed
from selective_rollout.analysis.curve import member_rows
from selective_rollout.analysis.sweep_grid import Measure, Symbol, symbol_maker
from selective_rollout.distance import mean_pairwise_distance
from selective_rollout.errors import MissingExtraError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.signals import GroupView
from selective_rollout.types import Group

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError:
    raise MissingExtraError("analysis", "numpy") from None

Floats: TypeAlias = NDArray[np.float64]

_SEPARATOR: Final = GateConfig().separator


class MeasureReader:
    """Reads measures off groups, batch by batch.

    Args:
        measures: what to read.
        start_steps: positions at which every measure is read.
    """

    def __init__(self, measures: Sequence[Measure], start_steps: Sequence[int]) -> None:
        self._measures = measures
        self._start_steps = start_steps
        self._symbols: dict[str, Symbol | None] = {
            measure.canonicaliser: symbol_maker(measure.canonicaliser) for measure in measures
        }

    def read(self, groups: Sequence[Group]) -> Iterator[tuple[Measure, Floats | None, Floats]]:
        """Yield each measure with what would be held against tau.

        Yields:
            The measure; of a distance of actions `curves[group, k - 1]` up to the longest rollout, else None;
            and `at_starts[group, start_step]`. NaN is unknown.
        """
        views = [GroupView.of(group) for group in groups]
        rows = [member_rows(group) for group in groups]
        longest = max((len(row.actions) for group in rows for row in group), default=0)
        for measure in self._measures:
            if measure.padding is None:
                yield measure, None, self._at_starts(measure, views)
                continue
            symbol = self._symbols[measure.canonicaliser]
            read = rows if symbol is None else [renamed(group, symbol) for group in rows]
            curves = mean_curves(read, measure.padding)
            yield measure, _padded(curves, longest), self._at_starts(measure, views, curves)

    def _at_starts(
        self, measure: Measure, views: Sequence[GroupView], curves: Sequence[Curve] | None = None
    ) -> Floats:
        values = np.full((len(views), len(self._start_steps)), np.nan)
        for i, view in enumerate(views):
            for j, k in enumerate(self._start_steps):
                if curves is not None and k <= len(curves[i]):
                    values[i, j] = curves[i][k - 1]
                    continue
                value = self._value(measure, view, k)
                if value is not None:
                    values[i, j] = measure.compared(value)
        return values

    def _value(self, measure: Measure, view: GroupView, k: int) -> float | None:
        definition = measure.definition
        if definition is None:
            return _char_distance(view, k)
        symbol = self._symbols[measure.canonicaliser]
        if symbol is not None and measure.padding is not None:
            view = GroupView([list(map(symbol, row)) for row in view.actions], view.finished_at)
        return definition.value(view, k)


def _char_distance(view: GroupView, k: int) -> float | None:
    texts = [_SEPARATOR.join(row) for row in view.prefixes(k)]
    return mean_pairwise_distance(texts) if len(texts) > 1 else None


def _padded(curves: Sequence[Curve], longest: int) -> Floats:
    padded = np.full((len(curves), longest), np.nan)
    for i, curve in enumerate(curves):
        padded[i, : len(curve)] = curve
    return padded
