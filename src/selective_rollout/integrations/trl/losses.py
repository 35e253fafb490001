"""What dropping rows does to each of TRL's losses, and what it takes to be exact.

A dropped row stays in its batch, since ranks must agree on shapes: its loss mask and its advantage are zero.
Losses that divide by unmasked tokens then equal those of a batch without the row. Losses that average over
rows still count it, and are diluted by kept / sampled rows: `denominator="kept"` takes that back by scaling
the advantages, in which all of them are positively homogeneous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from selective_rollout.errors import ConfigError

Denominator: TypeAlias = Literal["kept", "sampled"]
"""kept: the gradient of a batch in which dropped rows never were. sampled: dropped rows count as zeros."""

TOKEN_MEAN: Final = ("dapo", "cispo", "vespo")
"""Divide by the unmasked tokens of the whole generation batch."""
MICRO_BATCH_MEAN: Final = ("bnpo",)
"""Divide by the unmasked tokens of a micro-batch, then average over micro-batches, empty ones included."""
ROW_MEAN: Final = ("grpo", "dr_grpo", "sapo", "luspo")
"""Average over rows, masked or not."""


class NotLosslessWarning(UserWarning):
    """Dropping a zero-variance group changes the training step, and how."""


@dataclass(frozen=True, slots=True)
class Lossless:
    """Whether a zero-variance group can be dropped without a change to what the others teach.

    `lossless`: its gradient is zero and nothing else depends on it. `lossless_pg`: its policy gradient is
    zero, and other terms of the loss are lost with it. `rescaled`: other groups' terms depend on it.
    """

    kind: Literal["lossless", "lossless_pg", "rescaled"]
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.kind if not self.reasons else f"{self.kind}: {'; '.join(self.reasons)}"


def lossless(args: Any, *, aux_loss: bool = False) -> Lossless:
    """Read off a `GRPOConfig` what a drop does.

    Args:
        args: the trainer's arguments.
        aux_loss: whether a router's balancing loss is on.
    """
    coupled = coupled_terms(args)
    extra = []
    if args.beta != 0.0:
        extra.append(f"beta={args.beta:g}: a dropped group gives no KL term")
    if args.entropy_coef != 0.0 or args.use_adaptive_entropy:
        extra.append("the entropy bonus does not see a dropped group")
    if aux_loss:
        extra.append("the router's balancing loss still sees what a dropped row has left")
    if coupled:
        return Lossless("rescaled", (*coupled, *extra))
    return Lossless("lossless_pg", tuple(extra)) if extra else Lossless("lossless")


def coupled_terms(args: Any) -> tuple[str, ...]:
    """Settings under which a group's loss depends on the other groups of its batch."""
    coupled = []
    if args.scale_rewards == "batch":
        coupled.append('scale_rewards="batch": the standard deviation is taken over the kept rows')
    if args.multi_objective_aggregation == "normalize_then_sum":
        coupled.append(
            'multi_objective_aggregation="normalize_then_sum": advantages are scaled over the batch'
        )
    if args.top_entropy_quantile < 1.0:
        coupled.append(
            f"top_entropy_quantile={args.top_entropy_quantile:g}: the quantile is over kept tokens"
        )
    return tuple(coupled)


def require_denominator(args: Any, denominator: str, *, picks_prompts: bool = False) -> None:
    """Refuse a denominator that the loss cannot have.

    Args:
        args: the trainer's arguments.
        denominator: the one asked for.
        picks_prompts: whether prompts are skipped or replaced.

    Raises:
        ConfigError: unknown loss or denominator, or one that makes no sense of the other.
    """
    loss_type = args.loss_type
    if denominator not in ("kept", "sampled"):
        raise ConfigError(f"denominator must be kept or sampled, not {denominator!r}")
    if loss_type not in (*TOKEN_MEAN, *MICRO_BATCH_MEAN, *ROW_MEAN):
        raise ConfigError(
            f"loss_type {loss_type!r} is not known to this version: no drop is known to be exact"
        )
    if denominator == "kept":
        return
    if loss_type not in ROW_MEAN:
        raise ConfigError(
            f'denominator="sampled" needs a loss that averages over rows ({", ".join(ROW_MEAN)}): '
            f"{loss_type} divides by tokens, and nobody knows how many a cut group would have had"
        )
    biased = [*coupled_terms(args)]
    if picks_prompts:
        biased.append("skip_probability or refill: other prompts are trained on than were drawn")
    if biased:
        raise ConfigError(f'denominator="sampled" cannot be unbiased with {"; ".join(biased)}')


def row_scale(loss_type: str, kept: int, sampled: int) -> float:
    """Factor on the advantages that makes a loss over `sampled` rows one over the `kept` of them."""
    return sampled / kept if loss_type in ROW_MEAN and kept else 1.0


def micro_batch_scale(loss_type: str, filled: int, micro_batches: int) -> float:
    """The same for losses that average micro-batches, of which only `filled` hold a kept row."""
    return micro_batches / filled if loss_type in MICRO_BATCH_MEAN and filled else 1.0
