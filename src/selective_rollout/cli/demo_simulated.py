"""First part of the demo: simulated agents, observed, calibrated and enforced."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import click

from selective_rollout.analysis.accounting import Accounting, account_of
from selective_rollout.analysis.curve import GroupLine, distance_curve
from selective_rollout.analysis.plots import plot_distances
from selective_rollout.analysis.replay import Replay, replay
from selective_rollout.cli.console import number, percent, progress, stdout, table
from selective_rollout.cli.summary import accounting_table
from selective_rollout.engine.batch import run_groups
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.rule import UncertifiedGateWarning
from selective_rollout.engine.runner import Workshop
from selective_rollout.env import HouseholdEnvironment, household_tasks
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.langgraph import GroupInput, GroupResult, build_graph
from selective_rollout.policy.endpoint import NO_KEY, Endpoint
from selective_rollout.rewards import group_label
from selective_rollout.stats import decimal_grid, fixed_sequence, upper_bound
from selective_rollout.testing import CounterSnapshot, LoopbackServer
from selective_rollout.testing.household import HouseholdBrain, SimulatedPolicy
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Task

ALPHA, DELTA = 0.10, 0.05
AUDIT_RATE = 0.2
GRID = decimal_grid("0.005:0.300:0.005")
GROUP_SIZE, MAX_STEPS = 8, 30


@dataclass(frozen=True, slots=True)
class Choice:
    """The largest threshold whose false-cut bound holds."""

    tau: float | None
    false_cuts: int
    signal: int
    bound: float | None
    """Upper bound of P(cut | signal-bearing) at confidence 1 - DELTA."""


@dataclass(frozen=True, slots=True)
class Enforced:
    """Fresh groups, stopped for real."""

    results: Sequence[GroupResult]
    counters: CounterSnapshot
    full: Sequence[GroupOutcome]
    """The same simulated rollouts carried on to their end, which only a simulation can know."""

    @property
    def cut(self) -> list[int]:
        """Indices of the groups that were cut."""
        return [i for i, result in enumerate(self.results) if result.cut_at is not None]

    @property
    def audited_cuts(self) -> list[GroupResult]:
        """Groups whose cut was not carried out because they had been drawn for an audit."""
        return [result for result in self.results if result.audited and result.would_cut_at is not None]

    @property
    def right_audited_cuts(self) -> int:
        """Audited would-be cuts that ended with equal rewards."""
        return sum(group_label(result.group).zero_variance is True for result in self.audited_cuts)

    @property
    def ungated_requests(self) -> int:
        """Requests that the same rollouts take without a gate."""
        return sum(len(rollout.steps) for outcome in self.full for rollout in outcome.group.rollouts)

    @property
    def kept_answers(self) -> int:
        """Cut groups whose survivor answered what the full vote would have."""
        return sum(self.results[i].answer == self.full[i].answer for i in self.cut)


def show_simulated(
    folder: Path, recorded: int, enforced: int, seed: int, *, quiet: bool
) -> dict[str, object]:
    """Record, choose, enforce; print as it goes unless quiet.

    Returns:
        What was measured, as plain data.
    """
    rule = GateConfig()
    groups = asyncio.run(_record(folder / "observed.jsonl", rule, recorded, seed))
    replays = [replay(outcome.group, rule) for outcome in groups]
    observed = account_of(replays, rule, rule.tau)
    _picture(folder / "distance.png", replays, rule)
    choice = choose(replays)
    if not quiet:
        _print_observed(observed, choice, folder)
    document: dict[str, object] = {
        "observed": observed.to_dict(),
        "chosen": {
            "tau": choice.tau,
            "false_cuts": choice.false_cuts,
            "n_signal": choice.signal,
            "bound": choice.bound,
        },
        "enforced": None,
    }
    run = None
    if choice.tau is not None:
        gate = replace(rule, tau=choice.tau, outcome="survivor")
        fresh = list(islice(household_tasks(recorded + enforced, seed), recorded, None))
        run = asyncio.run(_enforce(folder / "enforced.jsonl", gate, fresh))
        document["enforced"] = _enforced_dict(run)
        if not quiet:
            _print_enforced(run, gate)
    if not quiet:
        _print_in_short(observed, choice, run)
    return document


def choose(replays: Sequence[Replay]) -> Choice:
    """Walk the grid upward while the exact binomial bound holds (Learn-then-Test, fixed sequence)."""
    signal = [r for r in replays if group_label(r.group).zero_variance is False]
    false_cuts = [sum(r.fires_at(tau) is not None for r in signal) for tau in GRID]
    last = fixed_sequence(false_cuts, len(signal), ALPHA, DELTA)
    if last < 0:
        return Choice(None, 0, len(signal), None)
    return Choice(
        GRID[last], false_cuts[last], len(signal), upper_bound(false_cuts[last], len(signal), 1 - DELTA)
    )


async def _record(path: Path, rule: GateConfig, count: int, seed: int) -> list[GroupOutcome]:
    config = RunConfig(group_size=GROUP_SIZE, max_steps=MAX_STEPS)
    with Recorder(path, metadata={"model": "simulated household agent"}) as recorder:
        shop = Workshop(SimulatedPolicy(), HouseholdEnvironment, rule, config, recorder)
        return await _all(household_tasks(count, seed), shop, "recording simulated groups", count)


async def _all(tasks: Iterable[Task], shop: Workshop, what: str, count: int) -> list[GroupOutcome]:
    outcomes: list[GroupOutcome] = []
    with progress(what, count) as bar:
        async with aclosing(run_groups(tasks, shop)) as groups:
            async for outcome in groups:
                outcomes.append(outcome)
                bar.advance()
    return outcomes


async def _enforce(path: Path, gate: GateConfig, tasks: Sequence[Task]) -> Enforced:
    from selective_rollout.policy.openai_client import OpenAIPolicy  # noqa: PLC0415 (takes 400 ms)

    config = RunConfig(group_size=GROUP_SIZE, max_steps=MAX_STEPS, mode="enforce", audit_rate=AUDIT_RATE)
    with LoopbackServer(HouseholdBrain()) as server, Recorder(path) as recorder:
        endpoint = Endpoint(base_url=server.base_url, api_key=server.api_key or NO_KEY, model=server.model)
        policy = OpenAIPolicy(endpoint)
        graph = build_graph(policy, HouseholdEnvironment, gate=gate, config=config, recorder=recorder)
        results = []
        with warnings.catch_warnings(), progress("enforcing through LangGraph and HTTP", len(tasks)) as bar:
            warnings.simplefilter("ignore", UncertifiedGateWarning)  # step 2 has just bounded its harm
            for task in tasks:
                results.append(GroupResult.from_state(await graph.ainvoke(_input(task))))
                bar.advance()
        await policy.aclose()
        counters = await server.until(lambda now: now.in_flight == 0)
    observe = Workshop(SimulatedPolicy(), HouseholdEnvironment, gate, replace(config, mode="observe"))
    full = await _all(iter(tasks), observe, "carrying the same rollouts on", len(tasks))
    order = {task.id: i for i, task in enumerate(tasks)}
    return Enforced(results, counters, sorted(full, key=lambda outcome: order[outcome.group.task_id]))


def _input(task: Task) -> GroupInput:
    return {"prompt": task.prompt, "task_id": task.id, "group_id": task.id, "metadata": dict(task.metadata)}


def _picture(path: Path, replays: Sequence[Replay], rule: GateConfig) -> None:
    lines = [
        GroupLine(distance_curve(r.group), group_label(r.group).kind, r.fires_at(rule.tau)) for r in replays
    ]
    title = f"{len(lines)} groups of simulated household agents, G = {GROUP_SIZE}"
    plot_distances(lines, tau=rule.tau, start_step=rule.start_step, title=title, path=path)


def _print_observed(observed: Accounting, choice: Choice, folder: Path) -> None:
    console = stdout()
    click.echo(
        f"\n1. Observe: {observed.groups} groups of {GROUP_SIZE} simulated household agents (no model runs), "
        "recorded to\n   their end; the paper's gate (step 10, tau 0.12) only watches.\n"
    )
    console.print(accounting_table("What that gate would have done", observed))
    console.print(f"Picture: {folder / 'distance.png'}", markup=False)
    click.echo(
        f"\n2. Calibrate: the largest tau that loses at most {ALPHA:.0%} of the signal-bearing groups."
    )
    if choice.tau is None or choice.bound is None:
        click.echo("   None: too few recorded groups for that bound, so the gate stays off.")
        return
    click.echo(
        f"   tau = {choice.tau:g}: {choice.false_cuts} of {choice.signal} signal-bearing groups cut; "
        f"with {1 - DELTA:.0%} confidence at most {percent(choice.bound)} (exact binomial)."
    )


def _print_enforced(run: Enforced, gate: GateConfig) -> None:
    click.echo(
        f"\n3. Enforce: {len(run.results)} fresh groups through LangGraph over loopback HTTP, "
        f"tau {gate.tau:g}; one survivor\n   answers for a cut group.\n"
    )
    counters, cut = run.counters, len(run.cut)
    shown = table("Counted by the server", "what", "value")
    shown.add_row("groups cut", f"{cut} of {len(run.results)}")
    shown.add_row("requests answered", number(counters.requests))
    shown.add_row("tokens generated", number(counters.completion_tokens))
    shown.add_row("requests cancelled midway", number(counters.disconnects))
    shown.add_row("tokens generated after a cancel (overrun)", number(counters.tokens_after_disconnect))
    stdout().print(shown)
    click.echo(
        f"   The same simulated rollouts without a gate take {run.ungated_requests:,} requests. In "
        f"{run.kept_answers} of the {cut} cut groups\n   the survivor's answer was the full vote's "
        "(only a simulation can be carried on to know that)."
    )


def _print_in_short(observed: Accounting, choice: Choice, run: Enforced | None) -> None:
    zero_variance, efficiency = percent(observed.base_rate.value), number(observed.efficiency)
    cuts = f"{observed.cuts} ({observed.right} right, {observed.wrong} wrong)"
    lines = [
        f"observe    {observed.groups} groups, {zero_variance} zero variance; the gate cuts {cuts}, "
        f"efficiency {efficiency}"
    ]
    if run is None or choice.tau is None:
        lines.append("calibrate  no threshold holds that bound here, so the gate stays off")
    else:
        requests = f"{run.counters.requests:,} requests instead of {run.ungated_requests:,}"
        lines += [
            f"calibrate  tau {choice.tau:g} loses at most {percent(choice.bound)} of the signal-bearing "
            f"groups (95% confidence, {choice.signal} of them)",
            f"enforce    {len(run.cut)} of {len(run.results)} fresh groups cut: {requests}",
            f"audit      {len(run.audited_cuts)} would-be cuts ran on to be checked: "
            f"{run.right_audited_cuts} had equal rewards",
        ]
    click.echo("\nIn short:\n  " + "\n  ".join(lines))


def _enforced_dict(run: Enforced) -> dict[str, object]:
    counters = run.counters
    return {
        "groups": len(run.results),
        "cut": len(run.cut),
        "answers_kept": run.kept_answers,
        "requests": counters.requests,
        "requests_without_gate": run.ungated_requests,
        "audited_cuts": len(run.audited_cuts),
        "audited_cuts_right": run.right_audited_cuts,
        "completion_tokens": counters.completion_tokens,
        "disconnects": counters.disconnects,
        "tokens_after_disconnect": counters.tokens_after_disconnect,
    }
