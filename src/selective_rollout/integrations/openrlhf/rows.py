"""What stands in OpenRLHF's batch for a rollout that was cut.

Every group has to return all its rows, so a dropped one returns rows that teach nothing. Each is the prompt
and the first token that the model said, all rewards equal. One token and not none: OpenRLHF divides by the
trained tokens of a row for its KL metric, and by those of all rows of an optimizer step for its loss, and
0 / 0 would end in the weights.
"""

from __future__ import annotations

from typing import Any, Final

from selective_rollout.integrations.openrlhf.engine import SpokenTurn

DROPPED_SCORE: Final = -1e9
"""Score of dropped rows under dynamic filtering: below any `--algo.dynamic_filtering_range`."""

STAND_IN_REWARD: Final = 0.0


def dropped_row(
    prompt: Any,
    label: Any,
    images: Any,
    *,
    first: SpokenTurn | None,
    tokenizer: Any,
    with_logprobs: bool,
    score: float,
    extra_logs: dict[str, Any],
) -> dict[str, Any]:
    """A response, as `execute` returns it, of a rollout that counts for nothing.

    Args:
        prompt: as given to `execute`.
        label: as given to `execute`.
        images: as given to `execute`.
        first: the model's opening turn; None if it said nothing.
        tokenizer: knows what to put in its place.
        with_logprobs: whether rows carry the rollout's log-probabilities.
        score: what the filter looks at.
        extra_logs: what is logged of the row; OpenRLHF needs the same names in all of them.
    """
    if first is not None and first.said:
        tokens, logprob = [*first.prompt, first.said[0]], first.first_logprob or 0.0
    else:
        end = getattr(tokenizer, "eos_token_id", None) or 0
        tokens, logprob = [end, end], 0.0
    return {
        "prompt": prompt,
        "label": label,
        "images": images,
        "mm_train_inputs": None,
        "reward": STAND_IN_REWARD,
        "scores": score,
        "observation_tokens": tokens,
        "action_ranges": [(len(tokens) - 1, len(tokens))],
        "rollout_log_probs": [0.0] * (len(tokens) - 1) + [logprob] if with_logprobs else None,
        "truncated": False,
        "extra_logs": extra_logs,
    }
