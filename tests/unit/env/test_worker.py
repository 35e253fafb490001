import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from selective_rollout.env import HouseholdEnvironment, ProcessEnvironment, household_reply, household_tasks
from selective_rollout.errors import ConfigError, EnvironmentFault
from selective_rollout.types import Task

WORLDS = '''
import asyncio, decimal, os, signal, sys, time
from pathlib import Path
from selective_rollout.env.base import Observation, StepResult

class World:
    replayable = False

    def __init__(self, task, rollout):
        self.folder, self.rollout = Path(task.metadata["folder"]), rollout

    def start(self):
        return Observation(f"{os.getpid()}", None)

    def step(self, action):
        verb, _, rest = action.partition(" ")
        return getattr(self, verb)(rest)

    def fail(self, rest):
        raise LookupError(f"no {rest}")

    def kill(self, rest):
        os.kill(os.getpid(), signal.SIGKILL)

    def exit(self, rest):
        sys.exit(int(rest))

    def sleep(self, rest):
        (self.folder / f"asleep-{self.rollout}").touch()
        time.sleep(float(rest))
        return StepResult("awake", ("a", "b"))

    def pay(self, rest):
        return StepResult("paid", reward=decimal.Decimal(rest))

    def meet(self, rest):
        """Wait until as many rollouts as named stand here at the same time."""
        (self.folder / f"here-{self.rollout}").touch()
        while len(list(self.folder.glob("here-*"))) < int(rest):
            time.sleep(0.01)
        return StepResult("met")

    def say(self, rest):
        print(rest, flush=True)
        return StepResult("said")

    def close(self):
        (self.folder / f"closed-{self.rollout}").touch()

class SlowToClose(World):
    def close(self):
        time.sleep(60)

class SlowToStart(World):
    def start(self):
        time.sleep(60)

class Coroutines(World):
    async def start(self):
        await asyncio.sleep(0)
        return Observation("hello", ("x",))

    async def step(self, action):
        await asyncio.sleep(0)
        return StepResult(action * 2, None, 0.5, True, False, True, "42", "key")
'''


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes process environments of the worlds above and closes them in the end."""
    (tmp_path / "worlds_in_workers.py").write_text(WORLDS)
    monkeypatch.syspath_prepend(tmp_path)
    made: list[ProcessEnvironment] = []

    def factory(world: str = "World", rollout: int = 0, **timeouts: float) -> ProcessEnvironment:
        task = Task("the-task", "", {"folder": str(tmp_path)})
        made.append(ProcessEnvironment(f"worlds_in_workers:{world}", task, rollout, **timeouts))
        return made[-1]

    yield factory
    for environment in made:
        environment.close()
    assert multiprocessing.active_children() == []


def is_gone(pid: int) -> bool:
    """True if the process has ended and was reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def appears(file: Path) -> None:
    async with asyncio.timeout(60):
        while not file.exists():
            await asyncio.sleep(0.01)


async def test_a_household_rollout_is_the_same_in_a_worker():
    task = next(household_tasks(1))
    inside = HouseholdEnvironment(task)
    outside = ProcessEnvironment("selective_rollout.env.household:HouseholdEnvironment", task, 0)
    try:
        assert outside.replayable is False
        seen = inside.start()
        assert await outside.start() == seen
        assert outside.replayable is True
        messages = [{"role": "system", "content": task.prompt}, {"role": "user", "content": seen.text}]
        result = None
        while result is None or not result.terminated:
            action = household_reply(messages, seed=1)
            result = inside.step(action)
            assert await outside.step(action) == result
            messages += [
                {"role": "assistant", "content": action},
                {"role": "user", "content": result.observation},
            ]
    finally:
        outside.close()


async def test_environments_with_coroutines_work_in_a_worker(make):
    environment = make("Coroutines")
    assert (await environment.start()).admissible == ("x",)
    result = await environment.step("ab\ud800")
    assert (result.observation, result.reward, result.terminated) == ("ab\ud800" * 2, 0.5, True)
    assert (result.truncated, result.is_error, result.answer, result.state_key) == (False, True, "42", "key")


async def test_what_the_environment_raises_becomes_a_fault_and_the_worker_lives_on(make):
    environment = make()
    pid = int((await environment.start()).text)
    with pytest.raises(EnvironmentFault) as caught:
        await environment.step("fail key")
    assert str(caught.value).startswith(
        "environment worker worlds_in_workers:World (task 'the-task', rollout 0)"
    )
    assert "raised during step: LookupError: no key (worlds_in_workers.py:" in str(caught.value)
    with pytest.raises(EnvironmentFault, match=r"Decimal is not JSON serializable"):
        await environment.step("pay 1")
    os.kill(pid, signal.SIGINT)
    assert (await environment.step("sleep 0")).admissible == ("a", "b")
    assert not is_gone(pid)


@pytest.mark.parametrize(
    ("action", "says"),
    [("kill", r"was ended by signal 9 \(Killed\) during step"), ("exit 3", "exited with code 3 during step")],
)
async def test_a_dead_worker_is_a_fault_that_names_the_cause(make, action: str, says: str):
    environment = make(close_timeout=30)
    pid = int((await environment.start()).text)
    with pytest.raises(EnvironmentFault, match=says):
        await environment.step(action)
    with pytest.raises(EnvironmentFault, match="exited|was ended|is not running"):
        await environment.step("sleep 0")
    environment.close()
    assert is_gone(pid)


async def test_a_step_that_takes_too_long_ends_its_worker(make):
    environment = make(step_timeout=0.2)
    pid = int((await environment.start()).text)
    with pytest.raises(EnvironmentFault, match=r"had no reply to step within 0\.2 s"):
        await environment.step("sleep 60")
    assert is_gone(pid)
    with pytest.raises(EnvironmentFault, match="is not running"):
        await environment.step("sleep 0")


async def test_a_start_that_takes_too_long_is_a_fault(make):
    with pytest.raises(EnvironmentFault, match=r"had no reply to start within 0\.5 s"):
        await make("SlowToStart", start_timeout=0.5).start()


async def test_close_lets_the_environment_close_itself(make, tmp_path: Path):
    environment = make(close_timeout=30)
    pid = int((await environment.start()).text)
    environment.close()
    assert (tmp_path / "closed-0").exists()
    assert is_gone(pid)


async def test_an_environment_that_does_not_close_is_killed(make):
    environment = make("SlowToClose", close_timeout=0.1)
    pid = int((await environment.start()).text)
    before = time.monotonic()
    environment.close()
    assert time.monotonic() - before < 30, "the world takes a minute"
    assert is_gone(pid)


async def test_close_ends_a_step_whose_caller_was_cancelled(make, tmp_path: Path):
    environment = make()
    pid = int((await environment.start()).text)
    step = asyncio.create_task(environment.step("sleep 60"))
    await appears(tmp_path / "asleep-0")
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    environment.close()
    assert is_gone(pid)


async def test_close_wakes_a_step_that_still_waits(make, tmp_path: Path):
    environment = make()
    await environment.start()
    step = asyncio.create_task(environment.step("sleep 60"))
    await appears(tmp_path / "asleep-0")
    environment.close()
    with pytest.raises(EnvironmentFault, match="was closed during step"):
        await step


async def test_close_while_starting_leaves_nothing_behind(make):
    for delay in (0, 0.01, 0.05):
        environment = make("SlowToStart", close_timeout=0.1)
        start = asyncio.create_task(environment.start())
        await asyncio.sleep(delay)
        environment.close()
        with pytest.raises(EnvironmentFault, match="single-use|is not running|was closed"):
            await start
    assert multiprocessing.active_children() == []


async def test_environments_are_single_use(make):
    unstarted = make()
    unstarted.close()
    unstarted.close()
    with pytest.raises(EnvironmentFault, match="single-use: it was started or closed before"):
        await unstarted.start()
    started = make()
    await started.start()
    with pytest.raises(EnvironmentFault, match="single-use: it was started or closed before"):
        await started.start()


async def test_a_step_before_the_start_is_a_fault(make):
    with pytest.raises(EnvironmentFault, match="is not running: step needs a started environment"):
        await make().step("sleep 0")


async def test_a_factory_that_cannot_be_loaded_is_a_fault_that_says_why(make):
    with pytest.raises(EnvironmentFault, match="raised during start: ConfigError: .* has no 'Wolrd'"):
        await make("Wolrd").start()


async def test_a_task_that_does_not_pickle_is_a_fault(make):
    environment = ProcessEnvironment("worlds_in_workers:World", Task("t", "", {"f": lambda: 0}), 0)
    with pytest.raises(EnvironmentFault, match="could not be started"):
        await environment.start()
    environment.close()


async def test_rollouts_run_side_by_side(make):
    environments = [make(rollout=i) for i in range(3)]
    await asyncio.gather(*(environment.start() for environment in environments))
    results = await asyncio.gather(*(environment.step("meet 3") for environment in environments))
    assert [result.observation for result in results] == ["met"] * 3


async def test_what_a_world_prints_stays_off_stdout(make, capfd: pytest.CaptureFixture[str]):
    environment = make()
    await environment.start()
    await environment.step("say hello from the world")
    environment.close()
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "hello from the world" in printed.err


@pytest.mark.parametrize("name", ["start_timeout", "step_timeout", "close_timeout"])
def test_timeouts_are_above_zero(make, name: str):
    with pytest.raises(ConfigError, match="seconds above 0"):
        make(**{name: 0})


def test_a_partial_is_a_factory():
    factory = partial(ProcessEnvironment, "selective_rollout.env.household:HouseholdEnvironment")
    assert isinstance(factory(next(household_tasks(1)), 3), ProcessEnvironment)


def test_a_worker_does_not_outlive_its_engine(make, tmp_path: Path):
    script = f"""
import asyncio, os, sys
sys.path.insert(0, {str(tmp_path)!r})
from selective_rollout.env import ProcessEnvironment
from selective_rollout.types import Task

async def main():
    task = Task("t", "", {{"folder": {str(tmp_path)!r}}})
    environment = ProcessEnvironment("worlds_in_workers:World", task, 0)
    print((await environment.start()).text, flush=True)
    os._exit(0)

if __name__ == "__main__":
    asyncio.run(main())
"""
    (tmp_path / "engine_script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "engine_script.py")], capture_output=True, text=True, check=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "closed-0").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (tmp_path / "closed-0").exists(), done.stderr
