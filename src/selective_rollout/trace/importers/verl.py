"""Rollouts that verl dumps (`trainer.rollout_data_dir`): one line a rollout, a file a training step.

verl writes the whole response as one text, in which the tools' replies stand between the model's turns, and
the default trainer writes `uid` as group, session and output in one.
"""

from __future__ import annotations

import re
from typing import Any, Final

from selective_rollout.trace.importers.columns import Record

_KEY: Final = re.compile(r"(.+)_(\d+)_(\d+)")
_REPLIES: Final = re.compile(
    r"(?:\s*(?:<\|im_start\|>)?(?:user|tool)\n)?((?:\s*<tool_response>.*?</tool_response>)+)"
    r"(?:\s*<\|im_end\|>)?\s*(?:(?:<\|im_start\|>)?assistant\n)?",
    re.DOTALL,
)
_REPLY: Final = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
_STAND_IN: Final = -(2.0**-7)
"""What `integrations.verl` puts for the reward of a rollout that it cut; no reward function gives it."""


def flatten_verl(record: Record, where: str) -> list[Record]:
    """Take the ids apart, and the turns where the tools' replies are marked.

    The rollout of an agent loop that makes several outputs is its last one, which verl scores.
    """
    flat = {**record, "_turns": turns_of(record.get("output"))}
    uid = record.get("uid")
    key = _KEY.fullmatch(uid) if isinstance(uid, str) else None
    if key is not None:
        flat |= {"_group": key[1], "_rollout": key[2], "_output": int(key[3])}
    if record.get("score") == _STAND_IN:
        flat["_status"] = "cut"
    return [flat]


def turns_of(output: Any) -> Any:
    """A conversation of the turns and replies of a response; what holds no reply stands as it is."""
    if not isinstance(output, str) or "<tool_response>" not in output:
        return output
    *turns, last = _REPLIES.split(output)
    messages: list[Record] = []
    for said, replies in zip(turns[::2], turns[1::2], strict=True):
        reply = "\n".join(_REPLY.findall(replies))
        messages += [{"role": "assistant", "content": said}, {"role": "tool", "content": reply}]
    return [*messages, {"role": "assistant", "content": last}] if last.strip() else messages
