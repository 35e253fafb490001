"""The names that `--fail-if` knows, and their values."""

from __future__ import annotations

from collections.abc import Sequence

from selective_rollout.analysis.report.collect import ReportData
from selective_rollout.analysis.report.diff import Change
from selective_rollout.gate.audit import AuditedRate
from selective_rollout.stats import Interval, upper_bound


def check_values(data: ReportData, changes: Sequence[Change] = ()) -> dict[str, float | None]:
    """Every number that a check may name; None is unknown.

    Quantities come as `name`, `name_low` and `name_high` (95% interval), differences from a baseline as
    `change_name` likewise; `false_cut_bound` is the one-sided 95% upper bound of P(cut | signal-bearing).
    """
    account, overview = data.population.accounts[0], data.overview
    values: dict[str, float | None] = {
        "groups": overview.groups,
        "singletons": overview.singletons,
        "unfinished": overview.unfinished,
        "unknown": overview.unknown,
        "repaired": len(data.read.problems),
        "cuts": account.cuts,
        "right": account.right,
        "wrong": account.wrong,
        "missed": account.missed,
        "saved": account.saved,
        "false_cut_bound": _false_cut_bound(data),
        "survivor_risk": data.population.answers.risk.value,
    }
    for quantity in data.quantities:
        values |= _spread(quantity.name, quantity.value, quantity.interval)
    for change in changes:
        values |= _spread(f"change_{change.now.name}", change.value, change.interval)
    estimates = data.enforced.estimates if data.enforced is not None else None
    for name in ("false_cut_rate", "wrong_cut_share"):
        rate: AuditedRate | None = getattr(estimates, name, None)
        values |= _spread(f"audited_{name}", rate.value if rate else None, rate.interval if rate else None)
    return values


def _false_cut_bound(data: ReportData) -> float | None:
    account = data.population.accounts[0]
    if not account.signal:
        return None
    bound = upper_bound(account.wrong, account.signal)
    loss = next(quantity for quantity in data.quantities if quantity.name == "loss")
    if data.population.resampled.repeats and loss.interval is not None:
        return max(bound, loss.interval.high)
    return bound


def _spread(name: str, value: float | None, interval: Interval | None) -> dict[str, float | None]:
    return {
        name: value,
        f"{name}_low": interval.low if interval is not None else None,
        f"{name}_high": interval.high if interval is not None else None,
    }
