"""The small agent's tasks, world and first messages."""

from itertools import islice

import pytest

from selective_rollout.env.base import Observation
from selective_rollout.env.household_scenario import draw_scenario
from selective_rollout.errors import ConfigError
from selective_rollout.testing.small_agent import FindEnvironment, find_tasks, small_agent_opening
from selective_rollout.types import Task

TASKS = list(find_tasks(12))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_two_commands_reach_the_object(task: Task) -> None:
    scenario = draw_scenario(task.metadata["seed"])
    world = FindEnvironment(task, 0)
    first = world.start()
    assert first.text == f"You stand in the {next(iter(scenario.rooms))}."
    arrive, take = f"go to {scenario.source}", f"take {scenario.target}"
    assert first.admissible is not None
    assert arrive in first.admissible

    there = world.step(arrive)
    assert there.admissible is not None
    assert take in there.admissible
    assert (there.reward, there.terminated) == (0.0, False)

    taken = world.step(take)
    assert (taken.reward, taken.terminated, taken.is_error) == (1.0, True, False)
    world.close()


@pytest.mark.parametrize("task", TASKS[:4], ids=lambda task: task.id)
def test_neither_another_object_nor_words_alone_are_a_success(task: Task) -> None:
    world = FindEnvironment(task)
    world.start()
    too_early = world.step(f"take {task.metadata['target']}")
    assert (too_early.reward, too_early.terminated, too_early.is_error) == (0.0, False, True)
    for place in next(iter(draw_scenario(task.metadata["seed"]).rooms.values())):
        result = world.step(f"go to {place}")
        assert result.admissible is not None
        others = [
            c for c in result.admissible if c.startswith("take ") and c != f"take {task.metadata['target']}"
        ]
        for command in others:
            result = world.step(command)
            assert (result.reward, result.terminated, result.is_error) == (0.0, False, False)
            world.step(command.replace("take ", "put "))


def test_giving_an_answer_is_never_offered() -> None:
    world = FindEnvironment(TASKS[0])
    offered = [world.start().admissible]
    for _ in range(6):
        assert offered[-1]
        offered.append(world.step(offered[-1][0]).admissible)
    assert not any(action.startswith("answer") for actions in offered for action in actions or ())


def test_tasks_follow_from_their_seed() -> None:
    assert list(find_tasks(12)) == TASKS
    assert list(find_tasks(3)) == TASKS[:3]
    assert len({task.id for task in TASKS}) == len(TASKS)
    assert not {task.id for task in find_tasks(12, seed=1)} & {task.id for task in TASKS}
    assert list(find_tasks(0)) == []


def test_bad_numbers_and_foreign_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match="n >= 0"):
        find_tasks(-1)
    with pytest.raises(ConfigError, match=r"use find_tasks\(\)"):
        FindEnvironment(Task("other", "Find it."))


def test_first_messages_differ_in_the_last_only() -> None:
    openings = [small_agent_opening(task, Observation(f"At {task.id}.")) for task in islice(TASKS, 3)]
    shared = [messages[:-1] for messages in openings]
    assert shared[0] == shared[1] == shared[2]
    assert [m["role"] for m in openings[0]] == ["system", *["user", "assistant"] * 3, "user"]
    assert openings[0][-1]["content"] == f"{TASKS[0].prompt} At {TASKS[0].id}."
    assert openings[0][-1] is not openings[1][-1]
