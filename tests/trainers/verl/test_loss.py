"""What cut groups do to verl's own advantages and loss where no filter evicts them: their rows are masked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from verl.trainer.ppo.core_algos import agg_loss, compute_grpo_outcome_advantage
from verl_world import SIZE, batch_of

LOGITS = torch.randn(300, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TOKEN_MODES = ["token-mean", "token-sum"]
ROW_MODES = ["seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
KEPT = torch.tensor([True] * SIZE + [False] * SIZE + [True] * SIZE + [False] * SIZE)


@pytest.fixture
async def rows(local: Callable[..., Any]) -> Any:
    """Four groups, of which the second and the last were cut."""
    made = local(rewarded=True, reward_extra_keys="[acc]")
    output = await made.worker.generate_sequences(batch_of(["b", "a=", "e", "c="]))
    output.non_tensor_batch["uid"] = batch_of(["b", "a=", "e", "c="]).non_tensor_batch["uid"]
    assert (output.batch["response_mask"].any(-1) == KEPT).all()
    return output


def gradient(rows: Any, keep: torch.Tensor, mode: str, **options: Any) -> torch.Tensor:
    """Of one optimizer step on these rows, for a model that looks back one token."""
    mask, tokens = rows.batch["response_mask"][keep], rows.batch["input_ids"][keep]
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards=rows.batch["rm_scores"][keep].double(),
        response_mask=mask,
        index=rows.non_tensor_batch["uid"][keep.numpy()],
    )
    logits = LOGITS.clone().requires_grad_()
    logprobs = logits[tokens[:, :-1]].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    losses = -advantages * logprobs[:, -mask.shape[1] :]
    agg_loss(losses, mask, mode, **options).backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize("mode", TOKEN_MODES)
async def test_over_tokens_it_is_as_if_the_rows_were_not_there(rows: Any, mode: str) -> None:
    found, wanted = gradient(rows, torch.ones_like(KEPT), mode), gradient(rows, KEPT, mode)
    assert wanted.abs().sum() > 0
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("mode", ROW_MODES)
async def test_over_rows_they_count_where_verl_gives_the_size_of_the_batch(rows: Any, mode: str) -> None:
    """Both trainers give it, so that the step is what it is with any other group without a spread."""
    wanted = gradient(rows, KEPT, mode)
    torch.testing.assert_close(gradient(rows, torch.ones_like(KEPT), mode), wanted)
    found = gradient(rows, torch.ones_like(KEPT), mode, global_batch_size=4 * SIZE)
    torch.testing.assert_close(found, wanted / 2)


async def test_a_step_of_cut_rows_only_moves_nothing(rows: Any) -> None:
    """Its loss reads NaN, in the metrics."""
    assert not gradient(rows, ~KEPT, "token-mean").any()
    mask = rows.batch["response_mask"][~KEPT]
    assert agg_loss(torch.zeros_like(mask, dtype=torch.float64), mask, "token-mean").isnan()
