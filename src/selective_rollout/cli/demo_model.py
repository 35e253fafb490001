"""Second part of the demo: a real small language model on this machine's CPU."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import click

from selective_rollout.analysis.accounting import Accounting
from selective_rollout.analysis.curve import GroupLine, distance_curve
from selective_rollout.analysis.plots import plot_distances
from selective_rollout.cli.console import number, progress, stdout, table
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.runner import run_group
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.rewards import group_label
from selective_rollout.testing.local_model import LocalModel
from selective_rollout.testing.small_agent import (
    SMALL_AGENT_SAMPLING,
    SMALL_AGENT_TEMPLATE,
    FindEnvironment,
    find_tasks,
    small_agent_opening,
)
from selective_rollout.trace.recorder import Recorder

GROUP_SIZE, MAX_STEPS = 4, 6
RULE = GateConfig(start_step=3)


def show_real_model(folder: Path, count: int, seed: int, *, quiet: bool) -> dict[str, object]:
    """Let a real model act in the household world and watch its groups.

    Returns:
        What was measured, as plain data.

    Raises:
        PrerequisiteError: no weights, or no `llm` extra.
    """
    began = time.monotonic()
    with LocalModel(slots=GROUP_SIZE, context_per_slot=512, chat_template=SMALL_AGENT_TEMPLATE) as model:
        outcomes = asyncio.run(_roll_out(model, folder / "real-model.jsonl", count, seed))
        name = model.model
    seconds = time.monotonic() - began
    account = Accounting(RULE.start_step)
    for outcome in outcomes:
        account.add(outcome.group, outcome.would_cut_at)
    picture = _picture(folder / "real-model.png", outcomes, name)
    if not quiet:
        _print(outcomes, account, name, seconds, picture)
    return {"model": name, "seconds": round(seconds, 1), **account.to_dict()}


async def _roll_out(model: LocalModel, path: Path, count: int, seed: int) -> list[GroupOutcome]:
    from selective_rollout.policy.openai_client import OpenAIPolicy  # noqa: PLC0415 (takes 400 ms)

    endpoint = Endpoint(base_url=model.base_url, api_key=model.api_key, model=model.model)
    policy = OpenAIPolicy(
        endpoint, SMALL_AGENT_SAMPLING, constrain="grammar", concurrency=GROUP_SIZE, keep_alive=False
    )
    config = RunConfig(
        group_size=GROUP_SIZE,
        max_steps=MAX_STEPS,
        concurrency=GROUP_SIZE,
        temperature=SMALL_AGENT_SAMPLING.temperature,
    )
    outcomes: list[GroupOutcome] = []
    with Recorder(path, metadata={"model": model.model}) as recorder, progress("real model", count) as bar:
        for task in find_tasks(count, seed):  # one group at a time: the server keeps one history per slot
            outcomes.append(
                await run_group(
                    task,
                    policy=policy,
                    environment=FindEnvironment,
                    gate=RULE,
                    config=config,
                    recorder=recorder,
                    opening=small_agent_opening,
                )
            )
            bar.advance()
    await policy.aclose()
    return outcomes


def _picture(path: Path, outcomes: Sequence[GroupOutcome], name: str) -> Path:
    lines = [GroupLine(distance_curve(o.group), group_label(o.group).kind, o.would_cut_at) for o in outcomes]
    title = f"{len(lines)} groups of a real model ({name}), G = {GROUP_SIZE}"
    return plot_distances(lines, tau=RULE.tau, start_step=RULE.start_step, title=title, path=path)


def _print(
    outcomes: Sequence[GroupOutcome], account: Accounting, name: str, seconds: float, picture: Path
) -> None:
    click.echo(
        f"\n4. A real model on this CPU: {len(outcomes)} groups of {GROUP_SIZE} x at most {MAX_STEPS} steps, "
        f"{seconds:.0f} s\n   with {name}, told to find an object. It is very small: where its\n"
        "   rollouts agree they mostly loop together rather than succeed.\n"
    )
    shown = table(
        "Observed, check at step 3, tau 0.12", "group", "distance at 3", "rewards", "the gate would"
    )
    for outcome in outcomes:
        rewards = [rollout.reward for rollout in outcome.group.rollouts]
        distance = next((decision.distance for decision in outcome.decisions), None)
        shown.add_row(
            outcome.group.id,
            number(distance),
            " ".join("?" if reward is None else f"{reward:g}" for reward in rewards),
            _verdict(outcome),
        )
    stdout().print(shown)
    fired = (
        "none fired, and that is what is shown"
        if not account.cuts
        else (f"{account.cuts} would be cut: {account.right} right, {account.wrong} wrong")
    )
    click.echo(
        f"   {account.zero_variance} of {account.groups} groups have equal rewards; {fired}; "
        f"{account.missed} missed.\n   So few groups certify nothing. Picture: {picture}"
    )


def _verdict(outcome: GroupOutcome) -> str:
    if outcome.would_cut_at is not None:
        return "cut"
    ended = any(decision.reason is Reason.NOBODY_RUNNING for decision in outcome.decisions)
    return "keep: all had ended" if ended else "keep"
