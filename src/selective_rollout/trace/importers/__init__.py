"""Recorded rollouts of other tools as traces.

with replacing_recorder("runs/tau.jsonl") as out:
    report = import_rollouts("tau-bench", "results/gpt-4o-airline.json", out)
"""

from selective_rollout.trace.importers.columns import ROLES, ColumnMapping
from selective_rollout.trace.importers.formats import FORMATS, Format
from selective_rollout.trace.importers.output import replacing_recorder
from selective_rollout.trace.importers.report import ImportReport
from selective_rollout.trace.importers.run import import_rollouts

__all__ = [
    "FORMATS",
    "ROLES",
    "ColumnMapping",
    "Format",
    "ImportReport",
    "import_rollouts",
    "replacing_recorder",
]
