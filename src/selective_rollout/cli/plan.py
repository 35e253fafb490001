"""`plan`: how large a group has to be for a prompt to give a signal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from selective_rollout.cli.console import number, percent, print_json, stdout, table
from selective_rollout.cli.options import json_option
from selective_rollout.errors import ConfigError
from selective_rollout.gate.priors import BetaPrior, fit_beta_prior
from selective_rollout.rewards import ZERO_VARIANCE_TOLERANCE, group_label
from selective_rollout.trace.reader import read_groups


@click.command()
@click.argument("trace", required=False, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--pass-rate", "pass_rates", type=float, multiple=True, help="Pass rate of a prompt; repeatable."
)
@click.option(
    "--group-size", "group_sizes", type=int, multiple=True, help="Group size to look at; repeatable."
)
@json_option
def plan(trace: Path | None, pass_rates: Sequence[float], group_sizes: Sequence[int], as_json: bool) -> None:
    """Plan the group size: the chance that a group carries a signal, and its price.

    With a TRACE the prompts' pass rates are fitted to what was recorded (binary rewards); with --pass-rate
    you name them. Cost is in rollouts per signal-bearing group, without any gate.
    """
    sizes = sorted(set(group_sizes)) or [2, 4, 8, 16, 32]
    if any(size < 2 for size in sizes):
        raise ConfigError("plan: a group needs at least 2 rollouts (--group-size)")
    if any(not 0 <= rate <= 1 for rate in pass_rates):
        raise ConfigError("plan: a pass rate lies between 0 and 1 (--pass-rate)")
    if trace is not None and pass_rates:
        raise ConfigError("plan: give a trace or pass rates, not both")
    if trace is not None:
        prior, prompts = _fitted(trace)
        source = f"fitted to {prompts} recorded prompts (Beta({prior.a:.2f}, {prior.b:.2f}))"
        rows = [(source, size, 1 - prior.p_zero_variance(size)) for size in sizes]
    else:
        rates = pass_rates or (0.05, 0.25, 0.5, 0.75, 0.95)
        rows = [(f"pass rate {rate:g}", size, p_signal(rate, size)) for rate in rates for size in sizes]
    _print(rows, as_json)


def p_signal(pass_rate: float, group_size: int) -> float:
    """Chance that a group of binary rewards is not all equal: 1 - p^G - (1 - p)^G."""
    return 1 - pass_rate**group_size - (1 - pass_rate) ** group_size


def _fitted(trace: Path) -> tuple[BetaPrior, int]:
    counts: dict[str, tuple[float, float]] = {}
    for recorded in read_groups(trace):
        if group_label(recorded.group).cut:
            continue
        rewards = [r.reward for r in recorded.group.rollouts if r.reward is not None]
        if any(min(abs(reward), abs(reward - 1)) > ZERO_VARIANCE_TOLERANCE for reward in rewards):
            raise ConfigError(f"{recorded.where}: plan needs binary rewards (0 or 1); found {rewards}")
        trials, successes = counts.get(recorded.group.task_id, (0.0, 0.0))
        counts[recorded.group.task_id] = (trials + len(rewards), successes + sum(map(round, rewards)))
    usable = [pair for pair in counts.values() if pair[0] > 1]
    if len(usable) < 2:
        raise ConfigError(f"{trace}: plan needs at least two prompts with scored rollouts")
    return fit_beta_prior(usable), len(usable)


def _print(rows: Sequence[tuple[str, int, float]], as_json: bool) -> None:
    if as_json:
        cells = [
            {
                "prompts": source,
                "group_size": size,
                "p_signal": chance,
                "rollouts_per_signal_group": size / chance if chance > 0 else None,
            }
            for source, size, chance in rows
        ]
        print_json({"plan": cells})
        return
    shown = table("Chance of a signal", "prompts", "group_size", "P(signal)", "rollouts per signal group")
    for source, size, chance in rows:
        price = number(size / chance, 3) if chance > 0 else "never one"
        shown.add_row(source, number(size), percent(chance), price)
    stdout().print(shown)
