"""What dropped rows do to OpenRLHF's own advantages and loss where nothing filters them out."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from internals import (
    Experience,
    PolicyLoss,
    RemoteExperienceMaker,
    masked_mean,
    optimizer_step_loss_norm,
)
from worlds import Corridor

from selective_rollout.engine.training import TrainingGate
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.openrlhf import GatedMultiTurnExecutor

G = 4
LOGITS = torch.randn(257, 257, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
async def rows(local: Callable[..., Any]) -> list[dict[str, Any]]:
    """Four groups, of which the second and the last were cut."""
    gate = TrainingGate(GateConfig(start_step=2, tau=0.5), mode="enforce", certified=True)
    bench = local(
        GatedMultiTurnExecutor(
            Corridor, gate=gate, group_size=G, dynamic_filtering=False, extra_logs=["turns"]
        )
    )
    made = [row for prompt in ("b", "a=", "e", "c=") for row in await bench.rollouts(prompt)]
    assert gate.meter.cut == 2
    return made


def advantages(generator: Any, rows: list[dict[str, Any]], estimator: str) -> Any:
    """One batch of the rows with OpenRLHF's advantages."""
    args = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=G),
        reward=SimpleNamespace(clip_range=None, overlong_buffer_len=None, stop_properly_penalty_coef=None),
        algo=SimpleNamespace(
            advantage=SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
        ),
    )
    maker = RemoteExperienceMaker(
        None, None, None, None, SimpleNamespace(value=0.0), SimpleNamespace(args=args), None
    )
    made = [generator._process_response_into_experience(row, max_len=400) for row in rows]
    for place, sample in enumerate(made):
        sample.index = [place]
    batch = Experience.concat_experiences(made, 0)
    batch.kl = torch.zeros_like(batch.action_mask, dtype=torch.float32)
    return maker.compute_advantages_and_returns([batch])[0]


def gradient(batch: Any, *, token_mean: bool) -> torch.Tensor:
    """Of one optimizer step on the whole batch, for a model that looks back one token."""
    logits = LOGITS.clone().requires_grad_()
    tokens = batch.sequences
    logprobs = logits[tokens[:, :-1]].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    norm = optimizer_step_loss_norm([batch.action_mask], None, 1, 1)
    loss = PolicyLoss(token_level_loss=token_mean)(
        logprobs, logprobs.detach(), batch.advantages, action_mask=batch.action_mask, **norm
    )[0]
    loss.backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize("estimator", ["group_norm", "dr_grpo", "rloo"])
async def test_the_token_mean_is_that_of_the_kept_rows_but_for_one_token_a_row(
    rows: list[dict[str, Any]], generator: Any, estimator: str
) -> None:
    kept = [row for row in rows if row["extra_logs"]["gate/kept"]]
    whole, alone = advantages(generator, rows, estimator), advantages(generator, kept, estimator)
    found, wanted = gradient(whole, token_mean=True), gradient(alone, token_mean=True)
    tokens = int(alone.action_mask.sum())
    assert int(whole.action_mask.sum()) == tokens + 2 * G
    torch.testing.assert_close(found, wanted * tokens / (tokens + 2 * G), rtol=1e-6, atol=1e-12)


async def test_a_mean_over_rows_still_counts_them(rows: list[dict[str, Any]], generator: Any) -> None:
    kept = [row for row in rows if row["extra_logs"]["gate/kept"]]
    found = gradient(advantages(generator, rows, "group_norm"), token_mean=False)
    wanted = gradient(advantages(generator, kept, "group_norm"), token_mean=False)
    torch.testing.assert_close(found, wanted / 2, rtol=1e-6, atol=1e-12)


async def test_a_step_of_dropped_rows_only_moves_nothing(rows: list[dict[str, Any]], generator: Any) -> None:
    cut = [row for row in rows if not row["extra_logs"]["gate/kept"]]
    for token_mean in (True, False):
        found = gradient(advantages(generator, cut, "group_norm"), token_mean=token_mean)
        assert torch.equal(found, torch.zeros_like(found))


async def test_why_a_dropped_row_trains_one_token(rows: list[dict[str, Any]], generator: Any) -> None:
    """Rows without any make OpenRLHF divide by zero: in the KL metric, and in the weights."""
    cut = [row | {"action_ranges": []} for row in rows if not row["extra_logs"]["gate/kept"]]
    batch = advantages(generator, cut, "group_norm")
    assert gradient(batch, token_mean=True).isnan().any()
    assert kl_metric(batch).isnan().all()
    assert not kl_metric(advantages(generator, rows, "group_norm")).isnan().any()


def kl_metric(batch: Any) -> torch.Tensor:
    """As OpenRLHF takes it, row by row."""
    return masked_mean(torch.ones_like(batch.advantages), batch.action_mask, dim=-1)
