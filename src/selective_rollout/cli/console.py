"""Printing: results to stdout, progress and remarks to stderr, one JSON document with --json."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from selective_rollout.analysis.rates import Rate


def stdout() -> Console:
    """Console for results; as wide as the terminal, and wide enough for tables where there is none."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 110, highlight=False)


def stderr() -> Console:
    """Console for progress and remarks."""
    return Console(file=sys.stderr, width=None if sys.stderr.isatty() else 110, highlight=False)


def print_json(document: Mapping[str, object]) -> None:
    """Print exactly one JSON document to stdout."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))


def remark(text: str) -> None:
    """Say something beside the result."""
    stderr().print(text, markup=False, soft_wrap=True)


class Bar:
    """A progress bar on a terminal; a line now and then elsewhere."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._progress: Progress | None = None
        if sys.stderr.isatty():
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=stderr(),
                transient=True,
            )
            self._task = self._progress.add_task(what, total=total, note="")
            self._progress.start()

    def advance(self, by: int = 1, note: str = "") -> None:
        """Move on; `note` says what has come out so far."""
        before, self._done = self._done, self._done + by
        if self._progress is not None:
            self._progress.update(self._task, advance=by, note=note)
        elif self._total and before * 4 // self._total != self._done * 4 // self._total:
            remark(f"{self._what}: {self._done} of {self._total}{f' ({note})' if note else ''}")

    def reach(self, position: int, note: str = "") -> None:
        """Move on to a position, such as a file's that is being read."""
        self.advance(position - self._done, note)

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Bar]:
    """A bar for a piece of work with a known or unknown number of parts."""
    bar = Bar(what, total)
    try:
        yield bar
    finally:
        bar.close()


def table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right", no_wrap=number != 0)
    return made


def facts_table(title: str, what: str, facts: Iterable[tuple[str, str]]) -> Table:
    """A table of facts, each with its value in words."""
    made = table(title, what, "value")
    made.columns[1].justify = "left"
    made.columns[1].no_wrap = False
    for name, value in facts:
        made.add_row(name, value)
    return made


def number(value: float | int | None, digits: int = 3) -> str:
    """A number for people; unknown is never printed as 0."""
    if value is None:
        return "unknown"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{digits}g}"


def percent(share: float | None) -> str:
    """A share in percent, one decimal."""
    return "unknown" if share is None else f"{100 * share:.1f}%"


def rate(value: Rate) -> str:
    """A rate with its counts and exact interval."""
    interval = value.interval
    if interval is None:
        return "none to count"
    return (
        f"{percent(value.value)} ({value.hits} of {value.trials}; "
        f"95% {percent(interval.low)} to {percent(interval.high)})"
    )
