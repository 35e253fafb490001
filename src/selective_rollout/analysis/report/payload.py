"""The groups in the compact form that the page's script reads. `page/data.js` is its other half.

Action texts, reasons and kinds are stored once and referred to by number. A curve of END-padded distances is
stored as whole numbers S_k with d_k = S_k / (pairs * k), which is small and divides to the very same float.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import comb
from typing import Any, Final

from selective_rollout.analysis.report.collect import ReportData
from selective_rollout.analysis.report.rows import MOST_TREE_STEPS, GroupRow, RowKind
from selective_rollout.analysis.report.tree import Branch
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason

KINDS: Final[tuple[RowKind, ...]] = ("all_fail", "all_success", "constant", "mixed", "unknown", "stopped")
REASONS: Final = tuple(Reason)
STATUS_LETTERS: Final[Mapping[str, str]] = {
    "finished": "f",
    "truncated": "t",
    "failed": "x",
    "cut": "c",
    "running": "r",
}


def page_payload(data: ReportData) -> dict[str, Any]:
    """Everything that the page's script needs, as plain data."""
    texts = _Texts()
    rows = [*data.rows, *data.extra_rows]
    places = {row.id: place for place, row in enumerate(rows)}
    trees = {str(places[group_id]): _tree(tree, texts) for group_id, tree in data.trees.items()}
    rule = data.gates[0].rule
    return {
        "kinds": KINDS,
        "reasons": REASONS,
        "gates": [_gate(gate.name, gate.rule) for gate in data.gates],
        "adjustable": is_adjustable(rule),
        "drawn": len(data.rows),
        "total": data.overview.groups,
        "treeSteps": MOST_TREE_STEPS,
        "survives": rule.outcome != "drop",
        "groups": [_row(row, data.basis == "untouched") for row in rows],
        "trees": trees,
        "actions": texts.all,
    }


def is_adjustable(rule: GateConfig) -> bool:
    """Whether the page can recompute the rule's cuts: what it holds against tau is the distance shown."""
    return rule.level == "action" and rule.score is None


def to_safe_json(payload: Mapping[str, Any]) -> str:
    """JSON that may stand inside a `<script>` element, whatever the texts in it.

    ASCII only, and without the characters that could end the element, open a comment or a tag.
    """
    text = json.dumps(payload, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class _Texts:
    """Texts by number, each stored once."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def numbers(self, texts: Iterable[str]) -> list[int]:
        return [self._number(text) for text in texts]

    def _number(self, text: str) -> int:
        number = self._numbers.setdefault(text, len(self.all))
        if number == len(self.all):
            self.all.append(text)
        return number


def _gate(name: str, rule: GateConfig) -> dict[str, Any]:
    return {"name": name, "tau": rule.tau, "start": rule.start_step, "every": rule.check_every}


def _row(row: GroupRow, untouched_only: bool) -> list[Any]:
    line = row.timeline
    return [
        row.id,
        0 if row.task_id == row.id else row.task_id,
        row.size,
        KINDS.index(row.kind),
        [member.index for member in row.members],
        "".join(STATUS_LETTERS[member.status.value] for member in row.members),
        [member.reward for member in row.members],
        [member.steps for member in row.members],
        _curve(line.distances, comb(len(row.members), 2)),
        [value for k, reason in line.reasons for value in (k, REASONS.index(reason))],
        row.cuts,
        [row.cut_at, row.would_cut_at, int(row.audited)],
        int(not (row.kind == "stopped" or (row.selected and untouched_only))),
        next((place for place, member in enumerate(row.members) if member.index == row.survivor), None),
    ]


def _curve(distances: Sequence[float | None], pairs: int) -> list[Any]:
    """[pairs, S_1, S_2, ...] if every distance is S / (pairs * k), else [0, d_1, d_2, ...]."""
    if pairs and None not in distances:
        known = [distance for distance in distances if distance is not None]
        sums = [round(distance * pairs * k) for k, distance in enumerate(known, start=1)]
        if all(s / (pairs * k) == d for k, (s, d) in enumerate(zip(sums, known, strict=True), start=1)):
            return [pairs, *sums]
    return [0, *(None if distance is None else round(distance, 9) for distance in distances)]


def _tree(branch: Branch, texts: _Texts) -> list[Any]:
    children = [_tree(child, texts) for child in branch.children]
    return [texts.numbers(branch.actions), list(branch.ended), children]
