"""The report as one self-contained HTML page: nothing is fetched, model text is only ever text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePath
from typing import Any, Final

from selective_rollout._version import __version__
from selective_rollout.analysis.prices import money_text
from selective_rollout.analysis.report import words
from selective_rollout.analysis.report.collect import ReportData
from selective_rollout.analysis.report.diff import Change
from selective_rollout.analysis.report.payload import is_adjustable, page_payload, to_safe_json
from selective_rollout.analysis.report.sweep_view import Point, SweepView
from selective_rollout.analysis.report.vote_rows import vote_rows
from selective_rollout.errors import MissingExtraError

try:
    import jinja2
except ImportError:
    raise MissingExtraError("analysis", "jinja2") from None

_STYLES: Final = ("base.css", "page.css")
_SCRIPTS: Final = (
    "data.js",
    "elements.js",
    "state.js",
    "curves.js",
    "group_list.js",
    "list.js",
    "tree.js",
    "main.js",
)
_KIND_ORDER: Final = ("all_fail", "all_success", "constant", "mixed", "unknown")
_GATE_ROWS: Final = ("precision", "loss", "lossless", "lossy", "efficiency")
_TILES: Final = (
    ("zero_variance", "Zero variance"),
    ("zero_variance_steps", "Steps in those groups"),
    ("loss", "Signal the gate loses"),
    ("lossless", "Steps it saves, lossless"),
    ("efficiency", "Efficiency"),
)
_SITE: Final = {"width": 640, "height": 320, "left": 52, "right": 16, "top": 16, "bottom": 40}


@dataclass(frozen=True, slots=True)
class Extras:
    """What other commands found out, if they ran."""

    certificate: Mapping[str, Any] | None = None
    """See `words.certificate_sentences`."""
    sweep: SweepView | None = None
    changes: Sequence[Change] = ()
    """Against a baseline."""
    baseline: str = ""
    """Name of the baseline."""


def render_page(data: ReportData, extras: Extras | None = None) -> str:
    """Render the page.

    Args:
        data: what was collected.
        extras: results of other commands.
    """
    extras = extras if extras is not None else Extras()
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=words.percent,
        count=words.count,
        significant=words.significant,
        rule=words.rule_text,
        value=words.value_text,
        counts=words.counts_text,
        spread=words.spread_text,
        money=money_text,
    )
    environment.globals.update(
        interval=words.interval_text,
        kind_words=words.KIND_WORDS,
    )
    template = environment.get_template("report.html.j2")
    page = template.render(**_context(data, extras))
    return page.encode("utf-8", "replace").decode("utf-8")  # file names may hold what UTF-8 cannot


def title_of(data: ReportData) -> str:
    """What the report is about."""
    names = [PurePath(source).name or source for source in data.sources]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _context(data: ReportData, extras: Extras) -> dict[str, Any]:
    named = {quantity.name: quantity for quantity in data.quantities}
    return {
        "title": title_of(data),
        "version": __version__,
        "data": data,
        "facts": _facts(data),
        "lead": words.lead(data),
        "caveats": words.caveats(data),
        "tiles": [(title, named[name], _tile_note(data, name)) for name, title in _TILES],
        "splits": _splits(data),
        "vote_rows": vote_rows(data.population.answers),
        "gates": [_gate_column(data, i) for i in range(len(data.gates))],
        "adjustable": is_adjustable(data.gates[0].rule),
        "estimates": None if data.enforced is None else data.enforced.estimates,
        "certificate": words.certificate_sentences(extras.certificate) if extras.certificate else [],
        "changes": [_change(change) for change in extras.changes],
        "baseline": extras.baseline,
        "sweep": extras.sweep,
        "pareto": _pareto(extras.sweep.points) if extras.sweep is not None else None,
        "payload": to_safe_json(page_payload(data)),
        "style": "\n".join(map(_resource, _STYLES)),
        "script": "\n".join(map(_resource, _SCRIPTS)),
    }


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def _facts(data: ReportData) -> list[str]:
    overview = data.overview
    sizes = sorted(overview.sizes)
    size = f"G = {sizes[0]}" if len(sizes) == 1 else f"G = {sizes[0]} to {sizes[-1]}"
    models = dict.fromkeys(str(h["model"]) for h in data.headers if h.get("model"))
    return [
        f"{overview.groups:,} groups",
        f"{len(overview.tasks):,} tasks",
        size,
        f"{overview.rollouts:,} rollouts",
        f"{overview.steps:,} steps",
        *models,
    ]


def _tile_note(data: ReportData, name: str) -> str:
    account = data.population.accounts[0]
    notes = {
        "zero_variance": f"{account.all_fail:,} all fail, {account.all_success:,} all succeed",
        "zero_variance_steps": "nothing to learn from",
        "loss": f"{account.wrong:,} wrong of {account.cuts:,} cuts",
        "lossless": f"a gate without errors: {words.percent(account.oracle_saved)}",
        "efficiency": "1.00 is worth nothing",
    }
    return notes[name]


def _splits(data: ReportData) -> list[dict[str, Any]]:
    """Two bars: how the groups, and how their steps, divide over the kinds of label."""
    kinds = data.population.kinds
    bars = []
    for name in ("groups", "steps"):
        parts = [(kind, getattr(kinds[kind], name)) for kind in _KIND_ORDER if kind in kinds]
        total = sum(part for _, part in parts)
        shares = [(kind, part, part / total) for kind, part in parts if part]
        bars.append({"name": name, "total": total, "parts": shares})
    return bars


def _gate_column(data: ReportData, i: int) -> dict[str, Any]:
    quantities = {quantity.name: quantity for quantity in data.population.quantities(i)}
    return {
        "name": data.gates[i].name,
        "rule": words.rule_text(data.gates[i].rule),
        "account": data.population.accounts[i],
        "rows": [(quantities[name].words, quantities[name]) for name in _GATE_ROWS],
    }


def _change(change: Change) -> dict[str, Any]:
    difference, interval = words.change_text(change)
    return {
        "words": change.now.words,
        "before": words.value_text(change.before),
        "now": words.value_text(change.now),
        "value": difference,
        "interval": interval,
        "is_clear": change.is_clear,
    }


def _pareto(points: Sequence[Point]) -> dict[str, Any] | None:
    """Where each configuration lies: steps saved to the right, signal lost upward."""
    if not points:
        return None
    width = _SITE["width"] - _SITE["left"] - _SITE["right"]
    height = _SITE["height"] - _SITE["top"] - _SITE["bottom"]
    most_saved = _nice(max(point.saved for point in points))
    most_lost = _nice(max(point.loss for point in points))
    placed = [
        (
            point,
            _SITE["left"] + width * point.saved / most_saved,
            _SITE["top"] + height * (1 - point.loss / most_lost),
        )
        for point in points
    ]
    front = sorted(((x, y) for point, x, y in placed if point.on_front))
    return {
        **_SITE,
        "points": placed,
        "front": " ".join(f"{x:.1f},{y:.1f}" for x, y in front),
        "x_ticks": [(most_saved * i / 4, _SITE["left"] + width * i / 4) for i in range(5)],
        "y_ticks": [(most_lost * i / 4, _SITE["top"] + height * (1 - i / 4)) for i in range(5)],
    }


def _nice(value: float) -> float:
    """The next round number above, as the end of an axis."""
    for end in (0.02, 0.04, 0.1, 0.2, 0.4, 0.6, 0.8):
        if value <= end:
            return end
    return max(1.0, value)
