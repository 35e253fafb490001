"""`run`: roll out groups of tasks, watched or gated, and record them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from selective_rollout.cli.console import print_json, progress, remark, stdout
from selective_rollout.cli.options import endpoint_options, json_option, rule_options, runs_options
from selective_rollout.cli.rule import require_uncertified_stream, rule_of, stream_rule_of, uncovered
from selective_rollout.cli.runfolder import RunFolder
from selective_rollout.cli.summary import RunSummary, accounting_table, run_table
from selective_rollout.cli.workload import (
    HouseholdTasks,
    environment_of,
    policy_of,
    score_of,
    shared_prompts,
    tasks_of,
)
from selective_rollout.engine.batch import run_groups
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.member import Score
from selective_rollout.engine.reconcile import ServerWatch
from selective_rollout.engine.resume import ResumePoint, resume_point
from selective_rollout.engine.rule import AcceptedRule
from selective_rollout.engine.runner import Workshop
from selective_rollout.env.base import EnvironmentFactory
from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import Workload, workload_differences
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.policy.base import Policy
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.trace.reader import ReadReport, read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Task

EPILOG = """
\b
Examples:
  selective-rollout run --env household --simulated --count 200
  selective-rollout run tasks.jsonl --env my_worlds:make_world --base-url http://127.0.0.1:8000/v1
"""

_CLIENT = ("temperature", "max_tokens", "constrain", "concurrency", "first_step")
"""Options that the policy is made with."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Everything a run was asked for, resolved."""

    tasks: Path | None
    environment: str
    score: str | None
    simulated: bool
    household: HouseholdTasks
    accepted: AcceptedRule
    config: RunConfig
    endpoint: Endpoint | None
    client: Mapping[str, Any]
    record_observations: bool
    record_completions: bool
    history: Path | None

    @property
    def rule(self) -> GateConfig:
        """The decision rule."""
        return self.accepted.rule

    def to_tables(self) -> dict[str, dict[str, Any]]:
        """For config.toml; never holds a key."""
        config = self.config
        return {
            "run": {
                "tasks": str(self.tasks) if self.tasks else None,
                "env": self.environment,
                "score": self.score,
                "simulated": self.simulated,
                "group_size": config.group_size,
                "max_steps": config.max_steps,
                "mode": config.mode,
                "hold": config.hold,
                "stop": config.stop,
                "concurrency": config.concurrency,
                "audit_rate": config.audit_rate,
                "seed": config.seed,
                "temperature": config.temperature,
            },
            "endpoint": {
                "base_url": self.endpoint.base_url,
                "model": self.endpoint.model,
                "first_step": self.client["first_step"],
            }
            if self.endpoint
            else {},
            "household": {
                "count": self.household.count,
                "workload": self.household.workload,
                "epochs": self.household.epochs,
                "task_seed": self.household.seed,
            }
            if self.tasks is None
            else {},
            "gate": self.rule.to_dict(),
            "stream": config.stream.to_dict() if config.stream else {},
        }


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run works with."""

    environment: EnvironmentFactory
    score: Score | None
    tasks: Sequence[Task]
    policy: Policy
    history: PromptHistory | None


@click.command(epilog=EPILOG)
@click.argument("tasks", required=False, type=click.Path(path_type=Path))
@click.option(
    "--env", "environment", default="prompt", show_default=True, help="household, prompt or module:factory."
)
@click.option(
    "--reward", "score", help="module:function, called as f(task, rollout); else the environment's own."
)
@click.option("--simulated", is_flag=True, help="Household only: a scripted agent instead of a model.")
@click.option("--count", type=int, default=100, show_default=True, help="Household: number of tasks.")
@click.option(
    "--workload", default="standard", show_default=True, help="Household: standard, hard or uniform."
)
@click.option(
    "--epochs", type=int, default=1, show_default=True, help="Household: how often each task comes."
)
@click.option(
    "--task-seed", type=int, default=0, show_default=True, help="Household: other seeds, other houses."
)
@click.option("--group-size", type=int, default=8, show_default=True)
@click.option("--max-steps", type=int, default=30, show_default=True)
@click.option("--mode", type=click.Choice(["observe", "enforce"]), default="observe", show_default=True)
@click.option("--hold", type=click.Choice(["none", "all", "followers"]), help="Who waits at a check.")
@click.option("--stop", type=click.Choice(["safe", "drain", "cancel"]), default="safe", show_default=True)
@click.option(
    "--gate", type=click.Path(path_type=Path), help="Rule and certificate; flags given override it."
)
@click.option(
    "--stream",
    metavar="RULE",
    help="Also watch completions inside a step, e.g. token,tau=0.1,start=256,check_every=64; or char,...",
)
@click.option("--history", type=click.Path(path_type=Path), help="Prompt history to read and to add to.")
@click.option("--uncertified", is_flag=True, help="Enforce a rule that no certificate covers.")
@click.option(
    "--audit-rate", type=float, default=0.0, show_default=True, help="Share of would-be cuts that run on."
)
@click.option("--concurrency", type=int, default=16, show_default=True, help="Requests in flight.")
@click.option("--temperature", type=float, help="Sampling temperature.")
@click.option("--max-tokens", type=int, help="Most tokens per completion.")
@click.option(
    "--constrain", type=click.Choice(["choice", "grammar", "json_schema"]), help="Keep to admissible actions."
)
@click.option(
    "--first-step",
    type=click.Choice(["each", "shared"]),
    default="each",
    show_default=True,
    help="shared: a group's first step is one request with n choices.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--record-observations", is_flag=True)
@click.option("--record-completions", is_flag=True)
@click.option("--resume", is_flag=True, help="Take up the run of this --name where it stopped.")
@endpoint_options
@rule_options
@runs_options
@json_option
@click.pass_context
def run(context: click.Context, /, **options: Any) -> None:
    """Roll out groups and record them.

    Observe mode, the default, stops nothing: it records what the gate would do. TASKS is a JSONL file with an
    "id" and a "prompt" per line.
    """
    request = _request(context, options)
    parts = _parts(request)
    folder = RunFolder(options["runs"], options["name"], request.to_tables(), resume=options["resume"])
    summary = asyncio.run(_run(request, parts, folder))
    if parts.history is not None:
        parts.history.save(request.history or folder.path / "history.json")
    folder.write_metrics(summary.to_dict())
    summary.picture(folder.path, f"{folder.path.name}: distance over steps, {summary.groups} groups")
    _show(request, folder, summary, options["as_json"])


def _request(context: click.Context, options: Mapping[str, Any]) -> RunRequest:
    accepted = rule_of(context, options)
    names = (
        "group_size",
        "max_steps",
        "mode",
        "hold",
        "stop",
        "audit_rate",
        "concurrency",
        "seed",
        "temperature",
    )
    stream = stream_rule_of(options["stream"])
    config = RunConfig(**{name: options[name] for name in names}, stream=stream)
    if stream is not None:
        require_uncertified_stream(accepted.rule, config.mode, uncertified=options["uncertified"])
        if stream.level == "token" and options["simulated"]:
            raise ConfigError("--stream token: the simulated agent has no token ids; use char")
    endpoint = None
    if not options["simulated"]:
        endpoint = Endpoint.resolve(options["base_url"], options["api_key"], options["model"])
    return RunRequest(
        tasks=options["tasks"],
        environment=options["environment"],
        score=options["score"],
        simulated=options["simulated"],
        household=HouseholdTasks(
            options["count"], options["workload"], options["epochs"], options["task_seed"]
        ),
        accepted=accepted,
        config=config,
        endpoint=endpoint,
        client={
            **{name: options[name] for name in _CLIENT},
            "token_ids": stream is not None and stream.level == "token",
        },
        record_observations=options["record_observations"],
        record_completions=options["record_completions"],
        history=options["history"],
    )


def _parts(request: RunRequest) -> Parts:
    """Make and check everything before anything is written; a bad task line is found here."""
    environment = environment_of(request.environment)
    score = score_of(request.score)
    tasks = list(tasks_of(request.tasks, request.environment, request.household))
    if not tasks:
        raise ConfigError("there are no tasks to run")
    policy = policy_of(request.simulated, request.environment, request.endpoint, **request.client)
    return Parts(environment, score, tasks, policy, _history(request))


def _history(request: RunRequest) -> PromptHistory | None:
    """The prompts' earlier rewards, if the rule reads them or the user keeps them."""
    rule = request.rule
    if request.history is not None and request.history.exists():
        return PromptHistory.load(request.history)
    reads = rule.history_mixed or (rule.score is not None and rule.score.reads_history)
    return PromptHistory() if reads or request.history is not None else None


async def _run(request: RunRequest, parts: Parts, folder: RunFolder) -> RunSummary:
    summary = RunSummary(request.rule)
    resume = _resume(folder, parts.environment, summary)
    for warning in _warnings(request, parts.tasks):
        remark(f"warning: {warning}")
    alarm = request.accepted.alarm(request.config)
    watch, asked = ServerWatch(request.endpoint), Ledger()
    await watch.start()
    with _recorder(request, folder) as recorder:
        shop = Workshop(
            parts.policy, parts.environment, request.rule, request.config, recorder, score=parts.score
        )
        outcomes = run_groups(
            iter(parts.tasks),
            shop,
            history=parts.history,
            resume=resume,
            certified=request.accepted.certified,
            tau_of=lambda task: request.accepted.tau_for(task.metadata),
            alarm=alarm,
        )
        try:
            with progress("groups", len(parts.tasks) - len(resume.done)) as bar:
                async with aclosing(outcomes):
                    async for outcome in outcomes:
                        summary.add(outcome)
                        asked.merge(outcome.ledger)
                        bar.advance(note=f"{summary.cut} cut, {summary.ledger.completion:,} tokens")
        finally:
            await parts.policy.aclose()
    summary.server = await watch.compare(asked)
    if alarm is not None:
        remark(f"audit: {alarm.describe()}")
    return summary


def _warnings(request: RunRequest, tasks: Sequence[Task]) -> list[str]:
    certificate = request.accepted.certificate
    differing = [] if certificate is None else workload_differences(certificate, _workload(request))
    found = [f"another workload than the certified one: {line}" for line in differing]
    return [*found, *filter(None, (uncovered(request.accepted, tasks), shared_prompts(tasks)))]


def _recorder(request: RunRequest, folder: RunFolder) -> Recorder:
    return Recorder(
        folder.path,
        record_observations=request.record_observations,
        record_completions=request.record_completions,
        metadata=_metadata(request),
    )


def _resume(folder: RunFolder, environment: Any, summary: RunSummary) -> ResumePoint:
    """Where the run stopped; the groups that had ended count in the summary again."""
    if not folder.resumed:
        return ResumePoint()
    report = ReadReport()
    replayable = bool(getattr(environment, "replayable", False))
    point = resume_point([folder.path], replayable=replayable, gate=summary.gate, report=report)
    for recorded in read_groups(folder.path):
        if recorded.group.id in point.done:
            summary.add_recorded(recorded)
    for problem in report.problems:
        remark(problem)
    remark(f"resuming: {len(point.done)} groups done, {len(point.unfinished)} interrupted")
    return point


def _workload(request: RunRequest) -> Workload:
    config = request.config
    return Workload(model=_model(request), max_steps=config.max_steps, group_size=config.group_size)


def _model(request: RunRequest) -> str | None:
    return "simulated household agent" if request.simulated else getattr(request.endpoint, "model", None)


def _metadata(request: RunRequest) -> dict[str, Any]:
    return {
        "model": _model(request),
        "env": request.environment,
        "group_size": request.config.group_size,
        "max_steps": request.config.max_steps,
        "temperature": request.config.temperature,
    }


def _show(request: RunRequest, folder: RunFolder, summary: RunSummary, as_json: bool) -> None:
    if as_json:
        print_json({"run": str(folder.path), **summary.to_dict()})
        return
    console = stdout()
    console.print(run_table(f"{folder.path.name} ({request.config.mode})", summary))
    if summary.accounting.groups:
        title = f"This gate on the {summary.accounting.groups} groups that ran to their end"
        console.print(accounting_table(title, summary.accounting))
    console.print(f"Recorded in {folder.path}", markup=False)
