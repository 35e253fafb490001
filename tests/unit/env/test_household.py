import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.env import WORKLOADS, HouseholdEnvironment, household_tasks
from selective_rollout.env.household import NOTHING_HAPPENS, split_command
from selective_rollout.env.household_scenario import STATIONS, draw_scenario
from selective_rollout.errors import ConfigError, EnvironmentFault
from selective_rollout.types import Task


def task_with(seed: int) -> Task:
    return Task(id="t", prompt="", metadata={"seed": seed})


def way_to(scenario, place: str) -> list[str]:
    """Commands to an opened place; those that are not needed now do no harm."""
    room = next(room for room, places in scenario.rooms.items() if place in places)
    return [f"enter {room}", f"go to {place}", f"open {place}"]


def solution(seed: int) -> list[str]:
    s = draw_scenario(seed)
    treat = [*way_to(s, STATIONS[s.treatment]), f"{s.treatment} {s.target}"] if s.treatment else []
    return [
        *way_to(s, s.source),
        f"take {s.target}",
        *treat,
        *way_to(s, s.destination),
        f"put {s.target}",
        f"answer({s.source})",
    ]


def play(seed: int, actions: list[str]):
    world = HouseholdEnvironment(task_with(seed))
    world.start()
    return [world.step(action) for action in actions]


@pytest.mark.parametrize("seed", range(30))
def test_every_task_can_be_solved_and_pays_only_at_the_end(seed: int):
    results = play(seed, solution(seed))
    assert [r.reward for r in results] == [0.0] * (len(results) - 1) + [1.0]
    assert [r.terminated for r in results] == [False] * (len(results) - 1) + [True]
    assert [r.answer for r in results[:-1]] == [None] * (len(results) - 1)
    assert results[-1].answer == draw_scenario(seed).source
    assert not results[-1].truncated


@pytest.mark.parametrize("seed", range(30))
def test_reward_needs_object_treatment_and_answer(seed: int):
    scenario = draw_scenario(seed)
    right = solution(seed)
    wrong_answer = [*right[:-1], f"answer({scenario.destination})"]
    not_put = [action for action in right if not action.startswith("put")]
    untreated = [action for action in right if action.partition(" ")[0] not in STATIONS]
    assert play(seed, wrong_answer)[-1].reward == 0.0
    assert play(seed, not_put)[-1].reward == 0.0
    assert play(seed, untreated)[-1].reward == (0.0 if scenario.treatment else 1.0)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), choices=st.lists(st.floats(0, 0.999), max_size=30))
def test_admissible_actions_are_sorted_unique_complete_and_accepted(seed: int, choices: list[float]):
    world = HouseholdEnvironment(task_with(seed))
    admissible = world.start().admissible
    vocabulary = all_commands(seed)
    for choice in choices:
        assert list(admissible) == sorted(set(admissible))
        for command in vocabulary - set(admissible):
            refused = world.step(command)
            assert (refused.observation, refused.is_error) == (NOTHING_HAPPENS, True)
            assert refused.admissible == admissible
        result = world.step(admissible[int(choice * len(admissible))])
        assert result.is_error is False
        assert result.observation != NOTHING_HAPPENS
        admissible = result.admissible
        if result.terminated:
            assert admissible == ()
            break


def all_commands(seed: int) -> set[str]:
    scenario = draw_scenario(seed)
    places = [place for places in scenario.rooms.values() for place in places]
    return {
        *(f"enter {room}" for room in scenario.rooms),
        *(f"{verb} {place}" for verb in ("go to", "open") for place in places),
        *(f"{verb} {thing}" for verb in ("take", "put", *STATIONS) for thing in scenario.objects),
        "answer(nowhere)",
        "dance",
        "",
    }


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), choices=st.lists(st.floats(0, 0.999), max_size=40))
def test_recorded_actions_replay_to_the_same_observations(seed: int, choices: list[float]):
    first, second = HouseholdEnvironment(task_with(seed), 0), HouseholdEnvironment(task_with(seed), 7)
    assert first.replayable
    assert first.start() == second.start()
    admissible = first._admissible()
    for choice in choices:
        result = first.step(admissible[int(choice * len(admissible))])
        assert second.step(admissible[int(choice * len(admissible))]) == result
        admissible = result.admissible
        if result.terminated:
            return


def test_state_key_identifies_the_state_and_not_the_way_to_it():
    seed = next(seed for seed in range(100) if draw_scenario(seed).source not in draw_scenario(seed).doors)
    scenario = draw_scenario(seed)
    go, take = way_to(scenario, scenario.source), f"take {scenario.target}"
    here = [r.state_key for r in play(seed, [*go, take, f"put {scenario.target}"])]
    assert here[-1] == here[-3] != here[-2]
    assert play(seed, ["dance"])[-1].state_key == play(seed, ["", "sing"])[-1].state_key


@pytest.mark.parametrize(
    ("action", "command"),
    [
        ("  Go  to SINK ", ("go to", "sink")),
        ("answer( study desk )", ("answer", "study desk")),
        ("enter hall", ("enter", "hall")),
        ("enter", ("", "enter")),
        ("sing", ("", "sing")),
        ("", ("", "")),
    ],
)
def test_split_command(action: str, command: tuple[str, str]):
    assert split_command(action) == command


def test_no_step_after_the_answer():
    world = HouseholdEnvironment(task_with(1))
    world.start()
    world.step("answer(sink)")
    with pytest.raises(EnvironmentFault, match="has ended with an answer"):
        world.step("answer(sink)")


def test_a_task_without_a_seed_is_refused():
    with pytest.raises(ConfigError, match="task 'x' has no integer metadata"):
        HouseholdEnvironment(Task(id="x", prompt=""))


def test_tasks_recur_across_epochs_and_differ_within_one():
    tasks = list(household_tasks(20, seed=3, epochs=2))
    assert tasks[:20] == tasks[20:]
    assert len({task.id for task in tasks}) == len({task.prompt for task in tasks}) == 20
    assert [t.id for t in household_tasks(5, seed=3)] == [t.id for t in tasks[:5]]
    assert {t.prompt for t in household_tasks(20, seed=4)}.isdisjoint(t.prompt for t in tasks)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_prompt_says_all_that_the_goal_needs_but_not_where_the_object_lies(workload: str):
    for task in household_tasks(30, workload=workload):
        scenario = draw_scenario(task.metadata["seed"])
        goal = task.prompt.splitlines()[-1]
        assert scenario.target in goal
        assert scenario.destination in goal
        assert [verb for verb in STATIONS if f"{verb} it," in goal] == [scenario.treatment] * bool(
            scenario.treatment
        )
        assert scenario.source not in goal
        for place in (place for places in scenario.rooms.values() for place in places):
            assert (f"{place}*" in task.prompt) == (place in scenario.doors)
        assert task.metadata["type"] == (scenario.treatment or "move")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"workload": "easy"}, "unknown household workload 'easy'"),
        ({"epochs": 0}, "epochs >= 1"),
        ({"n": -1}, "n >= 0"),
    ],
)
def test_wrong_task_arguments_fail_at_the_call(arguments, says):
    with pytest.raises(ConfigError, match=says):
        household_tasks(**{"n": 1, **arguments})


def test_tasks_do_not_depend_on_the_process():
    code = (
        "from selective_rollout.env import household_tasks, household_habits\n"
        "print([(t, household_habits(t.prompt)) for t in household_tasks(3)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_importing_the_package_does_not_import_textworld():
    code = "import sys, selective_rollout.env; print('textworld' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
