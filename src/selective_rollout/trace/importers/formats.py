"""The formats of other tools: how to recognise their records, and where in them things stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from selective_rollout.errors import ConfigError, TraceError
from selective_rollout.trace.importers.columns import Record, column_list
from selective_rollout.trace.importers.shapes import expand_choices, expand_paper, flatten_verifiers
from selective_rollout.trace.importers.verl import flatten_verl

Expand = Callable[[Record, str], list[Record]]


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes:
        name: as given on the command line.
        about: one line on where such files come from.
        what: one record of it, in words.
        signature: any of these sets of columns marks a record of the format; empty: any record may be one.
        usual: columns by role.
        expand: makes one flat record per rollout; None if every record is a rollout.
        whole_group: column whose presence says that the record holds a whole group.
        per_file: ids are unique within a file only.
        completions: texts are raw completions, not actions taken out of them.
        group_hint: how to map the group, where records have no group id of their own.
        answers_in_text: the last message of a conversation states the answer.
        error_prefix: how replies of tools that are errors start.
    """

    name: str
    about: str
    what: str
    signature: tuple[tuple[str, ...], ...] = ()
    usual: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    expand: Expand | None = None
    whole_group: str | None = None
    per_file: bool = False
    group_hint: str = "group=COLUMN+COLUMN"
    completions: bool = False
    answers_in_text: bool = False
    error_prefix: str | None = None

    def rollouts(self, record: Record, where: str) -> list[Record]:
        """The flat records of one record, one per rollout.

        Raises:
            TraceError: the record is of another format; the message says which one it looks like.
        """
        if record.get("type") == "header" and "trace_version" in record:
            raise TraceError(f"{where}: is a trace of this package; it needs no import")
        if self.signature and not any(all(name in record for name in names) for names in self.signature):
            raise TraceError(f"{where}: {_mismatch(self, record)}")
        return [record] if self.expand is None else self.expand(record, where)

    def group_advice(self, record: Record) -> str:
        """What to do about a record without a group id."""
        likely = _likely(record)
        if likely not in (None, self.name):
            return f"did you mean the format `{likely}`?"
        return f"map the columns that identify a group, such as {self.group_hint} ({column_list(record)})"


_GENERIC: Final[Mapping[str, tuple[str, ...]]] = {
    "group": ("group_id", "group"),
    "task": ("task_id",),
    "rollout": ("rollout_id", "rollout"),
    "attempt": ("attempt",),
    "size": ("group_size",),
    "status": ("status",),
    "error": ("error",),
    "actions": ("actions", "messages"),
    "observations": ("observations",),
    "is_error": ("is_error",),
    "finish_reason": ("finish_reasons", "finish_reason"),
    "reward": ("reward",),
    "answer": ("final_answer",),
    "tokens": ("tokens", "usage"),
    "prompt": ("prompt",),
    "policy_version": ("policy_version",),
}

_ALL: Final = (
    Format(
        "generic",
        "one rollout a record, columns mapped by --map",
        "a record of one rollout",
        usual=_GENERIC,
    ),
    Format(
        "tau-bench",
        "result files of tau-bench runs",
        "a tau-bench result",
        (("task_id", "traj"),),
        usual={
            "group": ("task_id",),
            "task": ("task_id",),
            "rollout": ("trial",),
            "actions": ("traj",),
            "reward": ("reward",),
            "error": ("info.error",),
            "prompt": ("info.task.instruction",),
        },
        per_file=True,
        error_prefix="Error",
    ),
    Format(
        "verifiers",
        "results.jsonl of verifiers evaluations",
        "a verifiers result",
        (("example_id", "completion"),),
        usual={
            "group": ("example_id",),
            "task": ("example_id",),
            "status": ("_status",),
            "actions": ("completion",),
            "reward": ("reward",),
            "error": ("error",),
            "tokens": ("_tokens",),
            "prompt": ("_prompt",),
        },
        expand=flatten_verifiers,
        per_file=True,
        completions=True,
        answers_in_text=True,
    ),
    Format(
        "trl",
        "completions logged by TRL trainers (Parquet, CSV or JSON lines); the group has to be mapped",
        "a row of TRL completions",
        (("prompt", "completion"),),
        usual={
            "group": ("group_id",),
            "task": ("task_id",),
            "actions": ("completion",),
            "reward": ("reward",),
            "prompt": ("prompt",),
            "policy_version": ("step",),
        },
        group_hint="group=step+prompt if no step holds a prompt twice",
        completions=True,
        answers_in_text=True,
    ),
    Format(
        "verl",
        "rollouts that verl dumps (trainer.rollout_data_dir), a folder of a file a step",
        "a line of verl's rollout dump",
        (("input", "output", "score", "step"),),
        usual={
            "group": ("_group",),
            "task": ("input",),
            "rollout": ("_rollout",),
            "attempt": ("_output",),
            "status": ("_status",),
            "actions": ("_turns",),
            "reward": ("score",),
            "prompt": ("input",),
            "policy_version": ("step",),
        },
        expand=flatten_verl,
        group_hint="group=step+input if no step holds a prompt twice",
        completions=True,
        answers_in_text=True,
    ),
    Format(
        "paper",
        "rollouts.jsonl of the selective-rollout paper's code, a group or a rollout a line",
        "a group of the paper's rollouts",
        (("trajectories",), ("task_id", "steps")),
        usual={
            "group": ("group_id", "task_id"),
            "task": ("task_id",),
            "rollout": ("rollout_id",),
            "size": ("group_size",),
            "status": ("_status",),
            "actions": ("_steps",),
            "reward": ("total_reward", "reward", "won"),
            "prompt": ("task_desc",),
        },
        expand=expand_paper,
        whole_group="trajectories",
        per_file=True,
    ),
    Format(
        "messages",
        "OpenAI-style conversations or responses, each with a group id",
        "a conversation or a response",
        (("messages",), ("choices",)),
        usual={**_GENERIC, "actions": ("messages",)},
        expand=expand_choices,
        completions=True,
        answers_in_text=True,
    ),
)

FORMATS: Final[Mapping[str, Format]] = {entry.name: entry for entry in _ALL}
"""Formats by name."""


def format_named(name: str) -> Format:
    """The format of a name.

    Raises:
        ConfigError: there is none.
    """
    if name not in FORMATS:
        raise ConfigError(f"unknown format {name!r} (known: {', '.join(FORMATS)})")
    return FORMATS[name]


def _mismatch(chosen: Format, record: Record) -> str:
    missing = min(([name for name in names if name not in record] for names in chosen.signature), key=len)
    likely = _likely(record)
    if likely is None and any(name in record for name in (*_GENERIC["actions"], *_GENERIC["reward"])):
        likely = "generic"
    hint = f"did you mean the format `{likely}`?" if likely else column_list(record)
    return f"not {chosen.what}: no {', '.join(f'`{name}`' for name in missing)}; {hint}"


def _likely(record: Record) -> str | None:
    """The first format whose signature the record bears."""
    signed = (f.name for f in _ALL if any(all(name in record for name in names) for names in f.signature))
    return next(signed, None)
