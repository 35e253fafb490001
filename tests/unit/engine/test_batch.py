"""Many groups: bounded, resumable, with history."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from selective_rollout.engine.batch import group_ids, run_groups
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.resume import ResumePoint, resume_point
from selective_rollout.engine.rule import UncertifiedGateWarning
from selective_rollout.engine.runner import Workshop
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.errors import ConfigError, EnvironmentFault
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.policy.base import Completion, Message, RequestInfo
from selective_rollout.testing import ScriptedBrain, ScriptedPolicy, count_tokens
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import RolloutStatus, Task

STEPS = 4


class Counting:
    """Ends after STEPS actions; reward is 1 for tasks whose id starts with "win"."""

    replayable = True
    open = 0
    peak = 0

    def __init__(self, task: Task, rollout: int) -> None:
        self.task = task
        self.taken: list[str] = []
        Counting.open += 1
        Counting.peak = max(Counting.peak, Counting.open)

    def start(self) -> Observation:
        return Observation("begin")

    def step(self, action: str) -> StepResult:
        self.taken.append(action)
        ended = len(self.taken) == STEPS
        reward = float(self.task.id.startswith("win"))
        return StepResult(f"{len(self.taken)} {action}", reward=reward, terminated=ended, answer="x")

    def close(self) -> None:
        Counting.open -= 1


def say(request: dict[str, object], choice: int, seed: int | None) -> str:
    messages = request["messages"]
    assert isinstance(messages, list)
    return f"go {len(messages)} {seed if 'split' in messages[0]['content'] else ''}"


def shop(policy: ScriptedPolicy | None = None, gate: GateConfig | None = None, **config: object) -> Workshop:
    settings = RunConfig(group_size=4, **{"concurrency": 8, **config})  # type: ignore[arg-type]
    rule = gate or GateConfig(start_step=2)
    return Workshop(policy or ScriptedPolicy(ScriptedBrain(say)), Counting, rule, settings)


def tasks(n: int, prefix: str = "win") -> Iterator[Task]:
    return (Task(f"{prefix}{i}", prefix) for i in range(n))


async def all_of(*args: object, **kwargs: object) -> list[GroupOutcome]:
    return [outcome async for outcome in run_groups(*args, **kwargs)]  # type: ignore[arg-type]


def test_a_recurring_task_is_another_visit() -> None:
    ids = [group_id for _, group_id in group_ids([Task("a", ""), Task("b", ""), Task("a", "")])]
    assert ids == ["a", "b", "a@2"]


async def test_a_thousand_groups_need_the_memory_of_a_few() -> None:
    Counting.open = Counting.peak = 0
    drawn = 0

    def stream() -> Iterator[Task]:
        nonlocal drawn
        for task in tasks(1000):
            drawn += 1
            yield task

    done = 0
    async for outcome in run_groups(stream(), shop(max_steps=2)):
        done += 1
        assert len(outcome.group.rollouts) == 4
        assert drawn - done <= 3
    assert done == 1000
    assert Counting.peak <= 3 * 4
    assert Counting.open == 0


async def test_depth_first_even_with_many_slots() -> None:
    assert RunConfig(group_size=8, concurrency=4).open_groups == 2
    assert RunConfig(group_size=8, concurrency=64).open_groups == 9


async def test_environments_must_suffice_for_a_group() -> None:
    with pytest.raises(ConfigError, match="a group needs 4 environments at once, but only 3 can be open"):
        await all_of(tasks(2), shop(), capacity=3)
    Counting.open = Counting.peak = 0
    assert len(await all_of(tasks(5), shop(), capacity=7)) == 5
    assert Counting.peak <= 7


async def test_a_gate_that_can_never_fire_is_pointed_out() -> None:
    with pytest.warns(UserWarning, match="max_steps 1 is below start_step 2: this gate can never fire"):
        await all_of(tasks(1), shop(max_steps=1))


async def test_enforcing_without_a_certificate_is_pointed_out() -> None:
    with pytest.warns(UncertifiedGateWarning, match="nothing bounds how many signal-bearing groups"):
        [outcome] = await all_of(tasks(1), shop(mode="enforce"))
    assert outcome.cut_at == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await all_of(tasks(1), shop(mode="enforce"), certified=True)


async def test_leaving_early_stops_what_is_under_way() -> None:
    policy = ScriptedPolicy(ScriptedBrain(say), token_delay_s=0.01)
    Counting.open = 0
    async with asyncio.timeout(60):
        groups = run_groups(tasks(50), shop(policy))
        await anext(groups)
        await groups.aclose()
    assert Counting.open == 0
    assert policy.in_flight == 0


class TestHistory:
    RULE = GateConfig(start_step=2, history_mixed=4)

    async def test_a_prompt_is_cut_only_after_it_was_seen_to_be_of_one_outcome(self) -> None:
        history = PromptHistory()
        twice = [Task("win", "win"), Task("win", "win"), Task("win", "win")]
        outcomes = await all_of(
            twice, shop(gate=self.RULE, mode="enforce", concurrency=1), history=history, certified=True
        )
        assert [outcome.cut_at for outcome in outcomes if outcome.group.id == "win"] == [None]
        assert outcomes[-1].cut_at == 2
        assert len(history.last("win", 99)) == 4 * sum(outcome.cut_at is None for outcome in outcomes)

    async def test_a_resumed_run_remembers_what_its_first_part_saw(self, tmp_path: Path) -> None:
        with Recorder(tmp_path / "a.jsonl") as recorder:
            plain = shop(gate=self.RULE)
            first = Workshop(plain.policy, Counting, plain.gate, plain.config, recorder)
            await all_of(tasks(2), first, history=PromptHistory())
        point, history = resume_point([tmp_path], replayable=True), PromptHistory()
        twice = [*tasks(2), *tasks(2)]
        outcomes = await all_of(
            twice, shop(gate=self.RULE, mode="enforce"), history=history, resume=point, certified=True
        )
        assert {outcome.group.id: outcome.cut_at for outcome in outcomes} == {"win0@2": 2, "win1@2": 2}
        assert history.last("win0", 99) == (1.0,) * 4

    async def test_some_prompts_of_one_outcome_are_skipped_but_never_all(self) -> None:
        history = PromptHistory()
        for i in range(60):
            history.record(f"win{i}", "before", [1.0] * 4)
        outcomes = await all_of(tasks(60), shop(gate=self.RULE), history=history, skip_probability=0.5)
        assert 15 < len(outcomes) < 45


class TestFaults:
    async def test_with_a_fifth_of_all_steps_failing_every_rollout_is_accounted_for(
        self, tmp_path: Path
    ) -> None:
        dice = random.Random(7)

        class Flaky(Counting):
            def step(self, action: str) -> StepResult:
                if dice.random() < 0.2:
                    raise EnvironmentFault("injected")
                return super().step(action)

        with Recorder(tmp_path / "t.jsonl") as recorder:
            plain = shop(mode="enforce")
            flaky = Workshop(plain.policy, Flaky, plain.gate, plain.config, recorder)
            async with asyncio.timeout(60):
                outcomes = await all_of(tasks(200, "split"), flaky, certified=True)
        ended = [rollout.status for outcome in outcomes for rollout in outcome.group.rollouts]
        assert len(ended) == 800
        assert RolloutStatus.RUNNING not in ended
        assert RolloutStatus.FAILED in ended
        recorded = list(read_groups(tmp_path))
        assert len(recorded) == 200
        assert all(group.end is not None and len(group.group.rollouts) == 4 for group in recorded)


class TestResume:
    async def interrupted(self, path: Path) -> None:
        """Run two groups to their end and leave the third in the middle of its third step."""
        reached: list[int] = []

        class Stuck(ScriptedPolicy):
            async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
                if info.group_id == "split2" and info.step == 3:
                    reached.append(info.rollout)
                    await asyncio.sleep(60)
                return await super().complete(messages, info)

        with Recorder(path) as recorder:
            work = Workshop(
                Stuck(ScriptedBrain(say)), Counting, GateConfig(start_step=2), shop().config, recorder
            )
            running = run_groups(tasks(3, "split"), work)
            assert {(await anext(running)).group.id, (await anext(running)).group.id} == {"split0", "split1"}
            while len(reached) < 4:
                await asyncio.sleep(0.001)
            last = asyncio.ensure_future(anext(running))
            await asyncio.sleep(0)
            last.cancel()
            with pytest.raises(asyncio.CancelledError):
                await last

    async def test_ended_groups_are_not_run_again_and_open_ones_start_anew(self, tmp_path: Path) -> None:
        await self.interrupted(tmp_path / "a.jsonl")
        point = resume_point([tmp_path], replayable=False)
        assert point.done == {"split0", "split1"}
        assert set(point.unfinished) == {"split2"}
        with Recorder(tmp_path / "b.jsonl") as recorder:
            again = Workshop(
                ScriptedPolicy(ScriptedBrain(say)), Counting, GateConfig(), shop().config, recorder
            )
            outcomes = await all_of(tasks(6, "split"), again, resume=point)
        assert {o.group.id for o in outcomes} == {f"split{i}" for i in range(2, 6)}
        [restarted] = [o for o in outcomes if o.group.id == "split2"]
        assert restarted.group.attempt == 2
        recorded = {r.group.id: r for r in read_groups(tmp_path)}
        assert len(recorded) == 6
        assert all(r.end is not None for r in recorded.values())
        two_steps = 2 * 4 * (count_tokens("go 2 0") + 1)  # each completion ends with a stop token
        assert restarted.ledger.abandoned == recorded["split2"].abandoned == two_steps

    async def test_replayable_worlds_take_the_recorded_steps_over(self, tmp_path: Path) -> None:
        await self.interrupted(tmp_path / "a.jsonl")
        point = resume_point([tmp_path], replayable=True)
        taken = {(g, i): len(s) for g, e in point.unfinished.items() for i, s in e.steps.items()}
        assert taken
        policy = ScriptedPolicy(ScriptedBrain(say))
        with Recorder(tmp_path / "b.jsonl") as recorder:
            again = Workshop(policy, Counting, GateConfig(), shop().config, recorder)
            outcomes = await all_of(tasks(6, "split"), again, resume=point)
        asked = {(r.group_id, r.rollout, r.step) for r in policy.requests}
        for (group, rollout), steps in taken.items():
            assert all((group, rollout, step) not in asked for step in range(1, steps + 1))
        assert all(len(r.actions) == STEPS for o in outcomes for r in o.group.rollouts)

    async def test_a_world_that_answers_differently_is_started_from_scratch(self, tmp_path: Path) -> None:
        class Changed(Counting):
            def step(self, action: str) -> StepResult:
                result = super().step(action)
                return StepResult("changed " + result.observation, terminated=result.terminated, reward=0.0)

        await self.interrupted(tmp_path / "a.jsonl")
        point = resume_point([tmp_path], replayable=True)
        policy = ScriptedPolicy(ScriptedBrain(say))
        again = Workshop(policy, Changed, GateConfig(), shop().config)
        outcomes = await all_of(tasks(6, "split"), again, resume=point)
        assert all(r.status is RolloutStatus.FINISHED for o in outcomes for r in o.group.rollouts)
        asked = {(r.group_id, r.rollout, r.step) for r in policy.requests}
        assert all((group, 0, 1) in asked for group in point.unfinished)

    async def test_audit_draws_are_read_not_drawn_again(self, tmp_path: Path) -> None:
        with Recorder(tmp_path / "a.jsonl") as recorder:
            first = shop(mode="enforce", audit_rate=1.0)
            with pytest.raises(KeyboardInterrupt):
                with recorder.group("win0", 4, task_id="win0") as group:
                    raise KeyboardInterrupt
            assert group.group_id == "win0"
        point = resume_point([tmp_path], replayable=False)
        assert point.unfinished["win0"].audit is None
        drawn = ResumePoint(
            unfinished={"win0": type(point.unfinished["win0"])(1, True, {}, 0)},
        )
        [outcome] = await all_of(tasks(1), shop(mode="enforce", audit_rate=0.0), resume=drawn, certified=True)
        assert outcome.audited
        assert outcome.would_cut_at == 2
        assert first.config.audit_rate == 1.0


SCRIPT = """
import asyncio, sys
from selective_rollout.engine.batch import run_groups
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.runner import Workshop
from selective_rollout.gate.config import GateConfig
from selective_rollout.testing import ScriptedBrain, ScriptedPolicy, count_tokens
from selective_rollout.trace.recorder import Recorder
from selective_rollout.env.household import HouseholdEnvironment
from selective_rollout.env.household_scenario import household_tasks

async def main():
    # Answers of another length in each group, so that groups do not all end at once, with none under way.
    brain = ScriptedBrain(lambda request, choice, seed: "enter kitchen" + " now" * ((seed >> 3) % 16))
    policy = ScriptedPolicy(brain, token_delay_s=0.002)
    with Recorder(sys.argv[1]) as recorder:
        shop = Workshop(policy, HouseholdEnvironment, GateConfig(), RunConfig(group_size=4), recorder)
        async for outcome in run_groups(household_tasks(200), shop):
            print(outcome.group.id, flush=True)

asyncio.run(main())
"""


async def test_a_killed_run_is_taken_up_where_it_stopped(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "a.jsonl")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline().strip()
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split()
    process.wait()
    process.stdout.close()
    point = resume_point([tmp_path], replayable=True)
    assert {first, *rest} <= point.done
    assert len(point.done) < 200
    assert point.unfinished
