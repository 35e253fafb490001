"""Running one group: observe, cut, hold, survive, vote, fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.idle_time import skip_idle_time

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.runner import run_group
from selective_rollout.engine.survivor import survivor_order
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.errors import EnvironmentFault, PolicyError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.policy.base import Completion, Message, RequestInfo
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Rollout, RolloutStatus, Task, Usage

TASK = Task("t", "Find the mug.")
RULE = GateConfig(start_step=3)
G = 4
LEADER, *FOLLOWERS = survivor_order("t", G)


@pytest.fixture(autouse=True)
async def _exact_times() -> None:
    skip_idle_time()


class Walker:
    """A policy of one line: says `script[rollout]` at each step; every word costs a token and a pause."""

    def __init__(self, script: Sequence[Sequence[str]], pause_s: float = 0.0) -> None:
        self.script = script
        self.pause_s = pause_s
        self.asked: list[tuple[int, int]] = []
        self.cancelled: list[tuple[int, int]] = []

    async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
        self.asked.append((info.rollout, info.step))
        info.meter.started = True
        text = self.script[info.rollout][info.step - 1]
        try:
            for _ in text.split():
                await asyncio.sleep(self.pause_s)
                info.meter.completion += 1
        except asyncio.CancelledError:
            self.cancelled.append((info.rollout, info.step))
            raise
        usage = Usage(prompt=len(messages), completion=len(text.split()), source="server")
        return Completion({"role": "assistant", "content": text}, usage, "stop")

    async def aclose(self) -> None:
        pass


class World:
    """Ends at `answer(x)`: reward 1 for the desk."""

    replayable = True

    def __init__(self, task: Task, rollout: int, log: list[tuple[int, str]] | None = None) -> None:
        self.rollout = rollout
        self.log = log if log is not None else []
        self.closed = False

    def start(self) -> Observation:
        return Observation("You stand in a room.")

    def step(self, action: str) -> Any:
        self.log.append((self.rollout, action))
        if action.startswith("answer("):
            place = action.removeprefix("answer(").rstrip(")")
            return StepResult("done", reward=float(place == "desk"), terminated=True, answer=place)
        return StepResult(f"you did {action}")

    def close(self) -> None:
        self.closed = True


def last_to_arrive(walker: Walker) -> type[World]:
    """A world whose rollout 0 completes the check only when another one is in the middle of step 4."""

    class LastToArrive(World):
        async def step(self, action: str) -> StepResult:
            while self.rollout == 0 and not any(step == 4 for _, step in walker.asked):
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.002)
            result: StepResult = World.step(self, action)
            return result

    return LastToArrive


def same(length: int, answer: str = "desk") -> list[list[str]]:
    return [[*(f"go {t}" for t in range(length)), f"answer({answer})"]] * G


def split(length: int) -> list[list[str]]:
    return [[*(f"go {g} {t}" for t in range(length)), f"answer(place {g})"] for g in range(G)]


async def run(
    script: Sequence[Sequence[str]],
    gate: GateConfig = RULE,
    *,
    policy: Walker | None = None,
    environment: Any = World,
    **config: Any,
) -> tuple[GroupOutcome, Walker]:
    walker = policy or Walker(script)
    extra = {key: config.pop(key) for key in ("recorder", "score") if key in config}
    settings = RunConfig(group_size=G, **{"mode": "enforce", **config})
    outcome = await run_group(
        TASK, policy=walker, environment=environment, gate=gate, config=settings, **extra
    )
    return outcome, walker


def statuses(outcome: GroupOutcome) -> list[str]:
    return [rollout.status.value for rollout in outcome.group.rollouts]


class TestObserve:
    async def test_nobody_is_held_or_stopped_and_the_decision_is_on_record(self) -> None:
        outcome, walker = await run(same(5), mode="observe")
        assert statuses(outcome) == ["finished"] * G
        assert (outcome.cut_at, outcome.would_cut_at, outcome.trainable) == (None, 3, True)
        assert len(walker.asked) == 6 * G
        assert outcome.votes == {"desk": G}
        assert outcome.ledger.completion == sum(len(text.split()) for text in same(5)[0]) * G

    async def test_a_diverged_group_has_its_decision_too(self) -> None:
        outcome, _ = await run(split(5), mode="observe")
        assert [d.reason for d in outcome.decisions] == [Reason.DISTANCE]
        assert outcome.would_cut_at is None


class TestDrop:
    async def test_a_converged_group_stops_at_the_check_with_no_step_beyond(self) -> None:
        outcome, walker = await run(same(9))
        assert statuses(outcome) == ["cut"] * G
        assert (outcome.cut_as, outcome.cut_at, outcome.trainable) == ("drop", 3, False)
        assert max(step for _, step in walker.asked) == 3
        assert [r.reward for r in outcome.group.rollouts] == [None] * G
        assert outcome.answer is None

    async def test_a_diverged_group_runs_to_its_end(self) -> None:
        outcome, _ = await run(split(5))
        assert statuses(outcome) == ["finished"] * G
        assert outcome.trainable

    async def test_held_members_wait_for_the_slowest(self) -> None:
        log: list[tuple[int, str]] = []

        class SlowFirst(World):
            async def step(self, action: str) -> StepResult:
                if self.rollout == 0:
                    await asyncio.sleep(0.01)
                result: StepResult = World.step(self, action)
                return result

        await run(split(5), environment=lambda task, i: SlowFirst(task, i, log))
        last_third = max(n for n, (_, action) in enumerate(log) if action.endswith(" 2"))
        assert all(not action.endswith((" 3", " 4")) for _, action in log[:last_third])

    async def test_without_hold_the_requests_in_flight_are_cancelled(self) -> None:
        script = [["go"] * 9 + ["answer(desk)"]] + [["go"] * 3 + ["a b c d e f g h"] * 7] * (G - 1)
        slow = Walker(script, pause_s=0.005)
        outcome, walker = await run(script, policy=slow, environment=last_to_arrive(slow), hold="none")
        assert statuses(outcome) == ["cut"] * G
        assert walker.cancelled
        assert outcome.ledger.requests == len(walker.asked)
        assert outcome.ledger.overrun == 0, "a cancelled request sends nothing more"

    async def test_drained_requests_are_accounted_as_overrun(self) -> None:
        script = [["go"] * 9 + ["answer(desk)"]] + [["go"] * 3 + ["a b c d e f g h"] * 7] * (G - 1)

        slow = Walker(script, pause_s=0.005)
        world = last_to_arrive(slow)
        outcome, walker = await run(script, policy=slow, environment=world, hold="none", stop="drain")
        assert statuses(outcome) == ["cut"] * G
        assert not walker.cancelled
        assert 0 < outcome.ledger.overrun < outcome.ledger.completion

    @pytest.mark.parametrize(("stop", "completed"), [("safe", True), ("drain", True), ("cancel", False)])
    async def test_a_running_tool_is_interrupted_only_on_request(self, stop: str, completed: bool) -> None:
        """Rollout 0 is inside a tool when rollout 1 completes the check; the others wait for that tool."""
        done: list[str] = []
        tool_runs, tool_ended = asyncio.Event(), asyncio.Event()

        class SlowTool(World):
            async def step(self, action: str) -> StepResult:
                if action == "go 3":
                    await (self.use_tool() if self.rollout == 0 else tool_ended.wait())
                elif (self.rollout, action) == (1, "go 2"):
                    await tool_runs.wait()
                result: StepResult = World.step(self, action)
                return result

            async def use_tool(self) -> None:
                tool_runs.set()
                try:
                    await asyncio.sleep(0.03)
                    done.append("tool")
                finally:
                    tool_ended.set()

        outcome, _ = await run(same(9), environment=SlowTool, hold="none", stop=stop)
        assert statuses(outcome) == ["cut"] * G
        assert bool(done) is completed


class TestSurvivor:
    RULE = replace(RULE, outcome="survivor")

    async def test_one_member_answers_for_all_and_nobody_claims_votes(self) -> None:
        outcome, walker = await run(same(9), self.RULE)
        assert outcome.survivor == LEADER
        assert outcome.answer == "desk"
        assert outcome.group.rollouts[LEADER].status is RolloutStatus.FINISHED
        assert sum(rollout.status is RolloutStatus.CUT for rollout in outcome.group.rollouts) == G - 1
        assert outcome.votes == {"desk": 1}
        assert outcome.inferred_votes == G - 1
        assert len(walker.asked) == 3 * G + 7

    async def test_the_leader_does_not_wait(self) -> None:
        walker = Walker(split(6), pause_s=0.001)

        class SlowFollower(World):
            async def step(self, action: str) -> StepResult:
                if self.rollout == FOLLOWERS[0] and action.endswith(" 2"):
                    await asyncio.sleep(0.1)
                result: StepResult = World.step(self, action)
                return result

        await run([], self.RULE, policy=walker, environment=SlowFollower)
        before_slow = walker.asked[: walker.asked.index((FOLLOWERS[0], 4))]
        assert (LEADER, 7) in before_slow
        assert all((other, 4) not in before_slow for other in FOLLOWERS[1:])

    async def test_if_the_survivor_breaks_the_next_in_order_resumes(self) -> None:
        class Fragile(World):
            def step(self, action: str) -> StepResult:
                if self.rollout == LEADER and action == "go 5":
                    raise EnvironmentFault("the stove exploded")
                result: StepResult = World.step(self, action)
                return result

        outcome, _ = await run(same(9), self.RULE, environment=Fragile, hold="all")
        assert outcome.survivor == FOLLOWERS[0]
        assert outcome.answer == "desk"
        assert outcome.group.rollouts[LEADER].status is RolloutStatus.FAILED

    async def test_a_survivor_that_had_finished_answers_at_once(self) -> None:
        script = [list(row) for row in same(9)]
        script[LEADER] = ["go 0", "go 1", "answer(desk)"]
        outcome, walker = await run(script, replace(self.RULE, tau=0.5))
        assert outcome.survivor == LEADER
        assert outcome.answer == "desk"
        assert max(step for _, step in walker.asked) == 3

    async def test_a_group_that_is_kept_answers_by_the_full_vote(self) -> None:
        script = split(5)
        script[1][-1] = script[2][-1]
        outcome, _ = await run(script, self.RULE)
        assert outcome.answer == "place 2"
        assert outcome.votes["place 2"] == 2

    async def test_known_answers_that_differ_keep_the_group(self) -> None:
        script = [["go", f"answer(place {g})"] for g in range(2)] + [["go"] * 6 + ["answer(x)"]] * 2
        outcome, _ = await run(script, replace(self.RULE, tau=1.0))
        assert [d.reason for d in outcome.decisions] == [Reason.KNOWN_ANSWERS_DIFFER]
        assert outcome.cut_at is None


class TestVote:
    RULE = replace(RULE, outcome="vote")

    async def test_a_unanimous_bare_majority_spares_the_rest(self) -> None:
        outcome, walker = await run(same(3), self.RULE)
        assert {rollout for rollout, _ in walker.asked} == set(survivor_order("t", G)[:3])
        assert (outcome.cut_as, outcome.answer) == ("vote", "desk")
        assert outcome.votes == {"desk": 3}

    async def test_an_open_vote_runs_to_its_end(self) -> None:
        outcome, walker = await run(split(3), self.RULE)
        assert {rollout for rollout, _ in walker.asked} == set(range(G))
        assert outcome.cut_as is None
        assert outcome.answer == f"place {LEADER}", "a tie goes to the first in the group's order"


class TestAudit:
    async def test_an_audited_cut_runs_on_and_is_on_record(self, tmp_path: Path) -> None:
        with Recorder(tmp_path / "t.jsonl") as recorder:
            outcome, _ = await run(same(5), recorder=recorder, audit_rate=1.0)
        assert statuses(outcome) == ["finished"] * G
        assert (outcome.audited, outcome.would_cut_at, outcome.cut_at) == (True, 3, None)
        [recorded] = read_groups(tmp_path)
        assert recorded.begin.audit is True


class TestFailures:
    async def test_failed_rollouts_are_data_and_nobody_waits_for_them(self) -> None:
        class Breaks(World):
            def step(self, action: str) -> StepResult:
                if self.rollout == 0 and action == "go 1":
                    raise EnvironmentFault("the sandbox is gone")
                if self.rollout == 1 and action == "go 1":
                    raise ValueError("a bug")
                result: StepResult = World.step(self, action)
                return result

        outcome, _ = await run(same(5), environment=Breaks)
        assert statuses(outcome) == ["failed", "failed", "cut", "cut"]
        first, second = outcome.group.rollouts[:2]
        assert first.failure is not None
        assert (first.failure.kind, first.failure.message) == ("environment", "the sandbox is gone")
        assert second.failure is not None
        assert second.failure.message == "ValueError: a bug"
        assert [d.facts.members for d in outcome.decisions if d.facts] == [(2, 3)]

    async def test_a_broken_endpoint_fails_the_rollout_with_its_kind(self) -> None:
        class Refusing(Walker):
            async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
                if info.rollout == 2:
                    raise PolicyError("connection refused by 127.0.0.1", kind="connection")
                return await super().complete(messages, info)

        outcome, _ = await run([], policy=Refusing(same(5)))
        assert statuses(outcome) == ["cut", "cut", "failed", "cut"]
        assert outcome.group.rollouts[2].failure is not None
        assert outcome.group.rollouts[2].failure.kind == "connection"

    async def test_an_environment_that_cannot_be_made_fails_its_rollout(self) -> None:
        def factory(task: Task, rollout: int) -> World:
            if rollout == 3:
                raise RuntimeError("no seats left")
            return World(task, rollout)

        outcome, _ = await run(split(3), environment=factory)
        assert statuses(outcome) == ["finished"] * 3 + ["failed"]

    async def test_a_rollout_that_takes_too_long_fails_and_the_rest_decides(self) -> None:
        class Hangs(World):
            async def step(self, action: str) -> StepResult:
                if self.rollout == 1:
                    await asyncio.sleep(60)
                result: StepResult = World.step(self, action)
                return result

        outcome, _ = await run(same(5), environment=Hangs, rollout_timeout_s=0.2)
        assert statuses(outcome) == ["cut", "failed", "cut", "cut"]
        assert outcome.group.rollouts[1].failure is not None
        assert outcome.group.rollouts[1].failure.kind == "timeout"

    async def test_a_long_hold_releases_everybody_and_switches_the_gate_off(self) -> None:
        class Dawdles(World):
            async def step(self, action: str) -> StepResult:
                if self.rollout == 1 and action == "go 1":
                    await asyncio.sleep(0.3)
                result: StepResult = World.step(self, action)
                return result

        outcome, _ = await run(same(5), environment=Dawdles, hold_timeout_s=0.05)
        assert statuses(outcome) == ["finished"] * G
        assert outcome.decisions == ()

    async def test_work_cancelled_from_within_is_a_failure_not_an_endless_loop(self) -> None:
        class Suicidal(World):
            async def step(self, action: str) -> StepResult:
                raise asyncio.CancelledError

        outcome, _ = await run(same(5), environment=Suicidal)
        assert statuses(outcome) == ["failed"] * G

    async def test_environments_are_closed_however_it_ends(self) -> None:
        worlds: list[World] = []

        def factory(task: Task, rollout: int) -> World:
            worlds.append(World(task, rollout))
            return worlds[-1]

        await run(same(5), environment=factory)
        assert len(worlds) == G
        assert all(world.closed for world in worlds)

    async def test_foreign_cancellation_passes_and_leaves_the_group_open(self, tmp_path: Path) -> None:
        worlds: list[World] = []

        class Hangs(World):
            def __init__(self, task: Task, rollout: int) -> None:
                super().__init__(task, rollout)
                worlds.append(self)

            async def step(self, action: str) -> StepResult:
                if action == "go 2":
                    await asyncio.sleep(60)
                result: StepResult = World.step(self, action)
                return result

        with Recorder(tmp_path / "t.jsonl") as recorder:
            running = asyncio.create_task(run(same(5), environment=Hangs, recorder=recorder))
            await asyncio.sleep(1)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        [recorded] = read_groups(tmp_path)
        assert recorded.end is None
        assert [len(rollout.actions) for rollout in recorded.group.rollouts] == [2] * G
        assert all(world.closed for world in worlds)

    async def test_a_foreign_cancellation_that_is_lost_ends_a_rollout_at_its_next_step(self) -> None:
        asked: list[str] = []

        class Deaf(World):
            async def step(self, action: str) -> StepResult:
                asked.append(action)
                if action == "go 2":
                    with suppress(asyncio.CancelledError):  # as `wait_for` of Python 3.11 may
                        await asyncio.sleep(60)
                result: StepResult = World.step(self, action)
                return result

        running = asyncio.create_task(run(same(5), environment=Deaf))
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert "go 3" not in asked


class TestLimits:
    async def test_max_steps_truncates(self) -> None:
        outcome, _ = await run(split(9), max_steps=5)
        assert statuses(outcome) == ["truncated"] * G
        assert {len(r.actions) for r in outcome.group.rollouts} == {5}

    async def test_nothing_is_asked_after_a_completion_that_was_cut_off(self) -> None:
        class CutsOff(Walker):
            async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
                completion = await super().complete(messages, info)
                return replace(completion, finish_reason="length" if info.step == 3 else "stop")

        outcome, walker = await run([], mode="observe", policy=CutsOff(split(9)))
        assert statuses(outcome) == ["truncated"] * G
        assert {len(r.actions) for r in outcome.group.rollouts} == {2}, "half an action is no action"
        assert max(step for _, step in walker.asked) == 3
        assert outcome.ledger.requests == 3 * G, "what was discarded was still paid for"


class TestScore:
    async def test_a_separate_scorer_counts_instead_of_the_environment(self, tmp_path: Path) -> None:
        async def score(task: Task, rollout: Rollout) -> float:
            return len(rollout.actions) / 10

        with Recorder(tmp_path / "t.jsonl") as recorder:
            outcome, _ = await run(split(3), score=score, recorder=recorder)
        assert [r.reward for r in outcome.group.rollouts] == [0.4] * G
        [recorded] = read_groups(tmp_path)
        assert [r.reward for r in recorded.group.rollouts] == [0.4] * G

    async def test_a_slow_judge_is_interrupted_by_the_cut(self) -> None:
        async def judge(task: Task, rollout: Rollout) -> float:
            await asyncio.sleep(60)
            return 1.0

        script = [["go 0", "go 1", "answer(desk)"], *same(9)[1:]]
        clock = asyncio.get_running_loop().time
        began = clock()
        outcome, _ = await run(script, replace(RULE, tau=0.5), score=judge)
        assert clock() - began < 1, "the judge takes a minute"
        assert statuses(outcome) == ["finished", "cut", "cut", "cut"]
        assert outcome.group.rollouts[0].reward is None, "a late result is ignored"

    async def test_a_scorer_that_breaks_leaves_the_rollout_unscored(self) -> None:
        def score(task: Task, rollout: Rollout) -> object:
            return {"exact": 1.0}

        outcome, _ = await run(split(3), score=score)
        assert statuses(outcome) == ["finished"] * G
        assert [r.reward for r in outcome.group.rollouts] == [None] * G
        assert outcome.group.rollouts[0].failure is not None
        assert "exact" in outcome.group.rollouts[0].failure.message


class TestSampling:
    async def test_greedy_siblings_are_copies_and_never_cut(self) -> None:
        outcome, _ = await run(same(5), temperature=0.0)
        assert [d.reason for d in outcome.decisions] == [Reason.IDENTICAL_SAMPLING]
        assert outcome.trainable


class TestLedger:
    async def test_trace_and_ledger_agree_whatever_became_of_a_completion(self, tmp_path: Path) -> None:
        """Steps, completions that the world never answered, cancelled ones: none is lost or doubled."""

        class Breaks(World):
            def step(self, action: str) -> StepResult:
                if self.rollout == 0 and action == "go 1":
                    raise EnvironmentFault("gone")
                result: StepResult = World.step(self, action)
                return result

        with Recorder(tmp_path / "t.jsonl") as recorder:
            outcome, _ = await run(same(5), environment=Breaks, recorder=recorder)
        [recorded] = read_groups(tmp_path)
        steps = [step.usage for r in recorded.group.rollouts for step in r.steps if step.usage is not None]
        on_record = sum(usage.completion or 0 for usage in steps) + recorded.lost
        assert recorded.lost == 2
        assert on_record == outcome.ledger.completion
