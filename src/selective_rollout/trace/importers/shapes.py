"""Records whose shape differs from one flat rollout, made flat. Added columns start with an underscore."""

from __future__ import annotations

from typing import Any, Final

from selective_rollout.errors import TraceError
from selective_rollout.trace.importers.columns import Record

_TRUNCATED: Final = "truncated"
_FINISHED: Final = "finished"
_CUT: Final = "cut"


def flatten_verifiers(record: Record, where: str) -> list[Record]:
    """Name how a verifiers rollout ended and what it used.

    Its `answer` column is the reference answer, so no usual name of ours points to it.
    """
    usage = record.get("token_usage")
    if usage is None and "completion_tokens" in record:
        usage = {name: record.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return [
        {
            **record,
            "_status": _TRUNCATED if record.get("is_truncated") is True and not record.get("error") else None,
            "_tokens": usage,
            "_prompt": record.get("prompt"),
        }
    ]


def expand_paper(record: Record, where: str) -> list[Record]:
    """One record per trajectory of a group; a record that is a single rollout stands as it is.

    The gate of that code ends a group's rollouts without their environment being done; it books 0 for them,
    which is no reward.
    """
    if "trajectories" not in record:
        return [_paper_rollout(record, where)]
    trajectories = record["trajectories"]
    if not isinstance(trajectories, list) or not all(isinstance(item, dict) for item in trajectories):
        raise TraceError(f"{where}: `trajectories` must be a list of objects")
    shared = {name: value for name, value in record.items() if name != "trajectories"}
    return [
        _paper_rollout({**shared, "rollout_id": number, **trajectory}, f"{where}: trajectory {number}")
        for number, trajectory in enumerate(trajectories)
    ]


def _paper_rollout(rollout: Record, where: str) -> Record:
    steps = rollout.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise TraceError(f"{where}: `steps` must be a list of objects")
    return {**rollout, "_steps": _with_replies(steps), "_status": _paper_status(rollout, steps)}


def _with_replies(steps: list[Record]) -> list[Record]:
    """Give each step the reply to its action: `obs` is what the agent saw before it acted."""
    following = [*(step.get("obs") for step in steps[1:]), None]
    return [
        step if "obs" not in step else {**step, "observation": reply}
        for step, reply in zip(steps, following, strict=True)
    ]


def _paper_status(rollout: Record, steps: list[Record]) -> str | None:
    if "terminated_at" not in rollout or not steps or rollout.get("won") is True:
        return None
    done = steps[-1].get("done") is True
    if rollout["terminated_at"] == -1:
        return _TRUNCATED
    if not done:
        return _CUT
    limit = rollout.get("max_steps")
    return _TRUNCATED if isinstance(limit, int) and len(steps) >= limit else _FINISHED


def expand_choices(record: Record, where: str) -> list[Record]:
    """One record per choice of a recorded response; a conversation stands as it is.

    The prompt was paid once, so the first choice carries its tokens and the others 0. Completion tokens told
    as one number for several choices belong to none of them and are kept for the group (`_group_tokens`).
    """
    if "choices" not in record:
        return [record]
    choices = record["choices"]
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise TraceError(f"{where}: `choices` must be a list of objects")
    shared = {name: value for name, value in record.items() if name not in ("choices", "usage")}
    told = record.get("usage")
    usage: Record = told if isinstance(told, dict) else {}
    counts = _completion_counts(usage, choices)
    prompt = usage.get("prompt_tokens")
    return [
        {
            **shared,
            **{name: value for name, value in choice.items() if name not in ("message", "usage")},
            "messages": _said(choice),
            "usage": {
                "prompt_tokens": prompt if number == 0 or prompt is None else 0,
                "completion_tokens": count,
            },
            "_group_tokens": usage if None in counts else None,
        }
        for number, (choice, count) in enumerate(zip(choices, counts, strict=True))
    ]


def _said(choice: Record) -> list[Any]:
    """The message of a choice; the older completions have a text instead."""
    if "message" in choice:
        return [choice["message"]]
    return [{"role": "assistant", "content": choice["text"]}] if "text" in choice else []


def _completion_counts(usage: Record, choices: list[Record]) -> list[Any]:
    """Completion tokens by choice, None where nobody told them apart."""
    told = usage.get("completion_tokens")
    if isinstance(told, list) and len(told) == len(choices):
        return told
    return [told] if len(choices) == 1 else list(map(_own_count, choices))


def _own_count(choice: Record) -> Any:
    """Completion tokens of one choice: told, or counted by its token ids or log probabilities."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    tokens = choice.get("token_ids") or content
    return len(tokens) if isinstance(tokens, list) else choice.get("completion_tokens")
