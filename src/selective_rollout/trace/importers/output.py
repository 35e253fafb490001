"""Writing one group into the trace, and the trace into its place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from selective_rollout.errors import TraceError
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.trace.importers.index import IndexedGroup
from selective_rollout.trace.importers.members import Members
from selective_rollout.trace.importers.rollouts import ImportedRollout
from selective_rollout.trace.importers.tokens import total
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import RolloutStatus, Usage

PROMPT_HASH: Final = "prompt_hash"


@contextmanager
def replacing_recorder(target: Path | str, *, overwrite: bool = False, **options: Any) -> Iterator[Recorder]:
    """A recorder whose trace appears under its name only when the block has ended without an error.

    Args:
        target: the trace to write, `*.jsonl`.
        overwrite: an existing file may be replaced.
        options: passed on to `Recorder`.

    Raises:
        TraceError: the target exists, is no `.jsonl` name, or its folder cannot be written.
    """
    target = Path(target)
    if target.suffix != ".jsonl":
        raise TraceError(f"{target}: a trace is a .jsonl file")
    if target.exists() and not overwrite:
        raise TraceError(f"{target}: exists already; choose another name, or allow it to be overwritten")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.stem}-", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise TraceError(f"{target}: cannot write the trace ({error.strerror})") from None
    try:
        # Two levels down, where no reader of the folder looks for traces.
        with Recorder(partial / "unfinished" / target.name, **options) as recorder:
            yield recorder
        os.replace(recorder.path, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_group(out: Recorder, group: IndexedGroup, members: Members, late: dict[int, float | None]) -> None:
    """Write the events of one group.

    Of the prompt only a hash is kept (`prompt_hash` in the metadata), to notice groups that share one.
    Tokens that the source tells only for a whole rollout or request are no usage of any step; they go into
    the group's metadata as `recorded_tokens`: `prompt` and `completion` of the group (None if unknown for one
    of its rollouts) and `rollouts`, the same by rollout index.

    Args:
        out: takes the events.
        group: the group's identity.
        members: its rollouts.
        late: rewards that became known later, by rollout index.
    """
    log = GroupLog(
        out.write,
        group.id,
        record_observations=out.record_observations,
        record_completions=out.record_completions,
    )
    log.begin(
        size=members.size,
        task_id=group.task or group.id,
        policy_version=members.policy_version,
        metadata=_metadata(group, members),
    )
    for rollout in members.rollouts:
        for step in rollout.steps:
            log.write_step(rollout.index, step)
        _write_end(log, rollout)
    for index, reward in late.items():
        log.reward(index, reward)
    cut_at = max((len(r.steps) for r in members.rollouts if r.status is RolloutStatus.CUT), default=0)
    log.end(outcome="drop" if cut_at else None, cut_at=cut_at or None)


def _write_end(log: GroupLog, rollout: ImportedRollout) -> None:
    index, lost, wasted = rollout.index, rollout.lost, rollout.wasted
    if rollout.status.ended_normally:
        truncated = rollout.status is RolloutStatus.TRUNCATED
        log.finish(index, rollout.reward, rollout.answer, truncated=truncated, lost=lost, wasted=wasted)
    elif rollout.status is RolloutStatus.CUT:
        log.cut(index, lost=lost, wasted=wasted)
    elif rollout.failure is not None:
        log.fail(index, rollout.failure.kind, rollout.failure.message, lost=lost, wasted=wasted)


def _metadata(group: IndexedGroup, members: Members) -> dict[str, Any]:
    metadata = dict(members.facts)
    if len(group.prompts) == 1:
        [metadata[PROMPT_HASH]] = (prompt.hex() for prompt in group.prompts)
    ids = [rollout.source_id for rollout in members.rollouts]
    if any(ids) and ids != [str(number) for number in range(len(ids))]:
        metadata["rollout_ids"] = ids
    totals = [rollout.total for rollout in members.rollouts]
    whole = members.request or total(totals)
    if whole is not None or any(totals):
        metadata["recorded_tokens"] = {
            **(_counts(whole) or {"prompt": None, "completion": None}),
            "rollouts": [_counts(usage) for usage in totals],
        }
    return metadata


def _counts(usage: Usage | None) -> dict[str, int | None] | None:
    return None if usage is None else {"prompt": usage.prompt, "completion": usage.completion}
