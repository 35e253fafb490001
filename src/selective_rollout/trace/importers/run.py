"""Importing: files of another tool in, one trace out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from selective_rollout.actions import DEFAULT_OPTIONS, ActionOptions, default_answer
from selective_rollout.errors import TraceError
from selective_rollout.trace.importers.checks import tally, warnings
from selective_rollout.trace.importers.columns import ColumnMapping, Columns
from selective_rollout.trace.importers.formats import Format, format_named
from selective_rollout.trace.importers.index import Index, IndexedGroup
from selective_rollout.trace.importers.late import LateRewards
from selective_rollout.trace.importers.members import Members, read_members
from selective_rollout.trace.importers.opening import input_files
from selective_rollout.trace.importers.output import write_group
from selective_rollout.trace.importers.report import ImportReport
from selective_rollout.trace.importers.rollouts import AnswerFn, RolloutReader
from selective_rollout.trace.importers.settle import remembering
from selective_rollout.trace.importers.turns import Reading
from selective_rollout.trace.recorder import Recorder


def import_rollouts(
    format_name: str,
    paths: Iterable[Path | str] | Path | str,
    out: Recorder,
    *,
    mapping: ColumnMapping | None = None,
    reward_key: str | None = None,
    actions: ActionOptions = DEFAULT_OPTIONS,
    answer_fn: AnswerFn = default_answer,
    rewards_file: Path | str | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> ImportReport:
    """Turn recorded rollouts of another tool into groups of a trace.

    Groups go by explicit ids. Attempts at one rollout count once, by the last that ended normally. What
    infrastructure broke is a failure without reward. Files are gone through twice, so that memory holds one
    group and the places of the others only.

    Args:
        format_name: one of `FORMATS`.
        paths: files and folders; JSON lines, JSON arrays, CSV or Parquet, whatever the format.
        out: takes the events; see `replacing_recorder`.
        mapping: columns declared by the user; the format's usual names fill the rest.
        reward_key: key of rewards that are objects.
        actions: what counts as the same action.
        answer_fn: makes an answer of a text, in a form that equal answers share.
        rewards_file: rewards scored later, records of `group`, `rollout` and `reward`; they become late
            rewards, which no replayed decision reads.
        on_bytes: told how far the work has come, in bytes out of the size of all files.

    Raises:
        ConfigError: the format is unknown.
        TraceError: a record cannot be read; the message starts with file:line. What was written by then is
            no complete trace.
        RewardError: a reward cannot be read as one number.
        MissingExtraError: a Parquet file needs pyarrow.
    """
    form = format_named(format_name)
    mapping = mapping or ColumnMapping()
    files = input_files([paths] if isinstance(paths, (str, Path)) else paths)
    if out.path.resolve() in {path.resolve() for path in files}:
        raise TraceError(f"{out.path}: is both read and written")
    report = ImportReport(form.name)
    columns = Columns(mapping, form.usual, form.group_advice)
    late = LateRewards(Path(rewards_file), columns, reward_key, report) if rewards_file is not None else None
    reading = Reading(actions, mapping.separator, form.completions, form.error_prefix)
    reader = RolloutReader(
        columns, reading, remembering(actions), reward_key, answer_fn, form.answers_in_text
    )
    run = _Import(form, out, reader, late, report)
    index = Index(form, columns, files, report)
    try:
        run.all_groups(index, on_bytes or (lambda done: None))
    finally:
        index.close()
    report.warnings = warnings(report, index.groups.values(), columns, late is not None)
    return report


class _Import:
    """The second pass: reads and writes group after group, and counts."""

    def __init__(
        self,
        form: Format,
        out: Recorder,
        reader: RolloutReader,
        late: LateRewards | None,
        report: ImportReport,
    ) -> None:
        self._form = form
        self._out = out
        self._reader = reader
        self._late = late
        self._report = report

    def all_groups(self, index: Index, on_bytes: Callable[[int], None]) -> None:
        report = self._report
        index.build(lambda done: on_bytes(done // 2))
        if not index.groups:
            raise TraceError(
                f"no rollouts in {report.files} file(s); is the format `{self._form.name}` right?"
            )
        done = 0
        for group in index.groups.values():
            members = read_members(index.records(group), self._reader, group.id)
            late = self._late_rewards(group, members)
            write_group(self._out, group, members, late)
            tally(self._report, group, members, late)
            done += len(group.places) // 3
            on_bytes((report.bytes + report.bytes * done // max(report.records, 1)) // 2)
        for where, name, rollout in self._late.left() if self._late else ():
            report.skip(where, f"no rollout {rollout!r} in group {name!r}")

    def _late_rewards(self, group: IndexedGroup, members: Members) -> dict[int, float | None]:
        found: dict[int, float | None] = {}
        for rollout in members.rollouts if self._late else ():
            assert self._late is not None
            name = rollout.source_id if rollout.source_id is not None else str(rollout.index)
            taken = self._late.take((group.id, group.key), name)
            if taken is None:
                continue
            where, reward = taken
            if not rollout.status.ended_normally:
                self._report.skip(where, f"rollout {name!r} of group {group.id!r} is {rollout.status}")
            elif rollout.reward is None:
                found[rollout.index] = reward
            elif rollout.reward != reward:
                raise TraceError(
                    f"{where}: rollout {name!r} of group {group.id!r} has reward {rollout.reward:g} at "
                    f"{rollout.where} already; take one of them out"
                )
        return found
