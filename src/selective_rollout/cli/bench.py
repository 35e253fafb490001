"""`bench`: a toy workload over loopback HTTP, with every number from the rollouts it is about."""

from __future__ import annotations

import asyncio
import hashlib
import warnings
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import click

from selective_rollout.analysis.accounting import Accounting, account_of
from selective_rollout.analysis.replay import replay
from selective_rollout.cli.console import number, percent, print_json, progress, stdout, table
from selective_rollout.cli.options import json_option
from selective_rollout.engine.batch import run_groups
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.rule import UncertifiedGateWarning
from selective_rollout.engine.runner import Workshop
from selective_rollout.env.prompt import PromptEnvironment
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.policy.endpoint import NO_KEY, Endpoint
from selective_rollout.stats import decimal_grid
from selective_rollout.testing import LoopbackServer, Reply, TutorialBrain
from selective_rollout.types import Rollout, Task


@dataclass(frozen=True, slots=True)
class ToyBrain:
    """The tutorial's convergent and divergent prompts, with some that agree first and split at the answer."""

    tutorial: TutorialBrain
    late_split: float

    def reply(self, request: dict[str, Any], *, choice: int, seed: int | None) -> Reply:
        """The tutorial's reply, except for the answer to a prompt that splits late."""
        said = self.tutorial.reply(request, choice=choice, seed=seed)
        prompt = request["messages"][0]["content"]
        if not (said.content or "").startswith("answer(") or not self.splits_late(prompt):
            return said
        return Reply(content=f"answer({('yes', 'no')[_draw('vote', prompt, seed) % 2]})")

    def splits_late(self, prompt: str) -> bool:
        """Whether a convergent prompt's rollouts answer differently after all."""
        return self.tutorial.is_convergent(prompt) and _draw("late", prompt) < self.late_split * 2**32


@dataclass(frozen=True, slots=True)
class Leg:
    """One run of all groups, with what the server counted."""

    outcomes: Sequence[GroupOutcome]
    requests: int
    tokens: int
    disconnects: int


@click.command()
@click.option("--prompts", type=int, default=30, show_default=True)
@click.option("--convergent-fraction", type=float, default=0.4, show_default=True)
@click.option(
    "--late-split",
    type=float,
    default=0.15,
    show_default=True,
    help="Share of convergent prompts that split at the answer.",
)
@click.option("--group-size", type=int, default=4, show_default=True)
@click.option("--max-steps", type=int, default=8, show_default=True, help="Length of every rollout.")
@click.option("--start-step", type=int, default=3, show_default=True)
@click.option("--tau", type=float, default=0.12, show_default=True)
@click.option("--outcome", type=click.Choice(["drop", "survivor"]), default="survivor", show_default=True)
@click.option("--sweep", help="Thresholds to compare, e.g. 0,0.05,0.1,0.2 or 0.05:0.3:0.05.")
@json_option
def bench(
    prompts: int,
    convergent_fraction: float,
    late_split: float,
    group_size: int,
    max_steps: int,
    start_step: int,
    tau: float,
    outcome: str,
    sweep: str | None,
    as_json: bool,
) -> None:
    """Compare a gate with no gate on a toy workload, over real HTTP.

    Right, wrong, lossless and lossy come from one observe run in which every rollout goes to its end; the
    enforced run of the same seeds stands beside it with what the server counted. The workload is a toy whose
    agreement is built in: it shows the mechanics, not what a gate will save on your agents.
    """
    if prompts < 1:
        raise ConfigError(f"--prompts must be at least 1, not {prompts}")
    if not 0 <= late_split <= 1:
        raise ConfigError(f"--late-split must lie in [0, 1], not {late_split}")
    rule = GateConfig.from_dict({"tau": tau, "start_step": start_step, "outcome": outcome})
    taus = _taus(sweep, tau)
    brain = ToyBrain(TutorialBrain(convergent_fraction, max_steps), late_split)
    config = RunConfig(group_size=group_size, max_steps=max_steps)
    with LoopbackServer(brain) as server:
        observed = asyncio.run(_leg(server, rule, config, prompts, "observe"))
        enforced = asyncio.run(_leg(server, rule, replace(config, mode="enforce"), prompts, "enforce"))
    replays = [replay(o.group, rule) for o in observed.outcomes]
    rows = [(value, account_of(replays, rule, value)) for value in taus]
    _report(rule, rows, observed, enforced, as_json)


async def _leg(server: LoopbackServer, rule: GateConfig, config: RunConfig, prompts: int, what: str) -> Leg:
    from selective_rollout.policy.openai_client import OpenAIPolicy  # noqa: PLC0415 (takes 400 ms)

    before = server.counters
    endpoint = Endpoint(base_url=server.base_url, api_key=server.api_key or NO_KEY, model=server.model)
    tasks = [Task(str(i), f"Toy question {i}: yes or no?") for i in range(prompts)]
    policy = OpenAIPolicy(endpoint)
    shop = Workshop(policy, PromptEnvironment, rule, config, score=_score)
    with warnings.catch_warnings(), progress(what, prompts) as bar:
        warnings.simplefilter("ignore", UncertifiedGateWarning)
        outcomes = []
        async with aclosing(run_groups(tasks, shop)) as groups:
            async for outcome in groups:
                outcomes.append(outcome)
                bar.advance()
    await policy.aclose()
    after = await server.until(lambda counters: counters.in_flight == 0)
    return Leg(
        outcomes,
        after.requests - before.requests,
        after.completion_tokens - before.completion_tokens,
        after.disconnects - before.disconnects,
    )


def _score(task: Task, rollout: Rollout) -> float:
    """Right or wrong, by a coin that belongs to the prompt."""
    return float(rollout.answer == ("yes", "no")[_draw("truth", task.prompt) % 2])


def _draw(*key: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:4], "big")


def _taus(sweep: str | None, tau: float) -> list[float]:
    if sweep is None:
        return [tau]
    values = decimal_grid(sweep)
    for value in values:
        GateConfig(tau=value)
    return values


def _report(
    rule: GateConfig, rows: list[tuple[float, Accounting]], observed: Leg, enforced: Leg, as_json: bool
) -> None:
    cut = sum(outcome.cut_as is not None for outcome in enforced.outcomes)
    if as_json:
        print_json(
            {
                "gate": rule.to_dict(),
                "observed": [{"tau": tau, **account.to_dict()} for tau, account in rows],
                "no_gate": {"requests": observed.requests, "tokens": observed.tokens},
                "enforced": {
                    "tau": rule.tau,
                    "groups_cut": cut,
                    "requests": enforced.requests,
                    "tokens": enforced.tokens,
                    "disconnects": enforced.disconnects,
                },
            }
        )
        return
    console = stdout()
    base = rows[0][1]
    shown = table(
        f"Observed on {base.groups} toy groups (zero variance {percent(base.base_rate.value)})",
        *("tau", "cuts", "right", "wrong", "missed", "steps lossless", "lossy", "efficiency"),
    )
    for tau, account in rows:
        shown.add_row(
            f"{tau:g}",
            *(number(n) for n in (account.cuts, account.right, account.wrong, account.missed)),
            *(number(n) for n in (account.lossless.steps, account.lossy.steps)),
            number(account.efficiency),
        )
    console.print(shown)
    shown = table(
        f"Counted by the server, tau {rule.tau:g}", "run", "groups cut", "requests", "tokens generated"
    )
    shown.add_row("no gate", "0", number(observed.requests), number(observed.tokens))
    shown.add_row(
        f"enforced ({rule.outcome})", number(cut), number(enforced.requests), number(enforced.tokens)
    )
    console.print(shown)
    console.print("A toy with built-in agreement: measure your own agents with `run` and `import`.")
