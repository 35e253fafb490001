"""Real TextWorld games, built by TextWorld's own generator."""

import asyncio
import importlib.util
import random
from functools import partial
from pathlib import Path

import pytest

from selective_rollout.env import ProcessEnvironment, load_factory
from selective_rollout.env.base import StepResult
from selective_rollout.errors import ConfigError, MissingExtraError
from selective_rollout.types import Task

FACTORY = "selective_rollout.env.textworld:TextWorldEnvironment"
INSTALLED = importlib.util.find_spec("textworld") is not None
pytestmark = pytest.mark.filterwarnings(
    "ignore:Game .* is not fully supported"
)  # TextWorld says it of its own
needs_textworld = pytest.mark.skipif(not INSTALLED, reason='needs pip install "selective-rollout[textworld]"')


@pytest.mark.skipif(INSTALLED, reason="textworld is installed")
def test_without_the_extra_the_import_says_what_to_install():
    with pytest.raises(MissingExtraError, match=r'Run: pip install "selective-rollout\[textworld\]"'):
        load_factory(FACTORY)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    from selective_rollout.env.textworld import make_game, textworld_task

    game = make_game(tmp_path_factory.mktemp("games") / "small", seed=7, rooms=3, objects=5, quest_length=3)
    return textworld_task(game)


def walk(task: Task, seed: int, steps: int) -> list[str]:
    """Actions of a random player: the same for equal seeds."""
    environment = load_factory(FACTORY)(task, 0)
    rng, actions = random.Random(seed), []
    admissible = environment.start().admissible
    for _ in range(steps):
        actions.append(rng.choice(admissible))
        result = environment.step(actions[-1])
        admissible = result.admissible
        if result.terminated:
            break
    environment.close()
    return actions


def replay(task: Task, actions: list[str]) -> list[StepResult]:
    environment = load_factory(FACTORY)(task, 0)
    environment.start()
    results = [environment.step(action) for action in actions]
    environment.close()
    return results


@pytest.mark.textworld
@needs_textworld
def test_the_task_tells_the_goal_and_the_game_shows_a_clean_scene(task: Task):
    environment = load_factory(FACTORY)(task, 0)
    first = environment.start()
    assert environment.replayable
    assert environment._game.state.objective in task.prompt
    assert first.text.startswith(environment._game.state.objective)
    assert "$$" not in first.text
    assert not first.text.endswith(">")
    assert list(first.admissible) == sorted(set(first.admissible))
    environment.close()


@pytest.mark.textworld
@needs_textworld
def test_winning_pays_one_at_the_end_and_mistakes_are_errors(task: Task):
    import textworld

    game = textworld.start(task.metadata["game"], textworld.EnvInfos(policy_commands=True))
    solution = game.reset().policy_commands
    game.close()
    results = replay(task, ["sing loudly", *solution])
    assert [result.is_error for result in results] == [True] + [False] * len(solution)
    assert [result.reward for result in results] == [0.0] * len(solution) + [1.0]
    assert [result.terminated for result in results] == [False] * len(solution) + [True]


@pytest.mark.textworld
@needs_textworld
def test_games_are_replayable_and_equal_seeds_make_equal_games(task: Task, tmp_path: Path):
    from selective_rollout.env.textworld import make_game, textworld_task

    again = textworld_task(make_game(tmp_path / "again", seed=7, rooms=3, objects=5, quest_length=3))
    assert again.prompt == task.prompt
    actions = walk(task, seed=1, steps=25)
    assert replay(task, actions) == replay(task, actions) == replay(again, actions)
    looks = replay(task, ["look", "look"])
    assert looks[0].observation == looks[1].observation


@pytest.mark.textworld
@needs_textworld
async def test_games_in_processes_run_side_by_side_exactly_as_alone(task: Task):
    walks = [walk(task, seed, steps=15) for seed in range(3)]
    alone = [replay(task, actions) for actions in walks]
    environments = [partial(ProcessEnvironment, FACTORY)(task, i) for i in range(3)]

    async def play(environment: ProcessEnvironment, actions: list[str]) -> list[StepResult]:
        await environment.start()
        return [await environment.step(action) for action in actions]

    try:
        assert await asyncio.gather(*map(play, environments, walks)) == alone
    finally:
        for environment in environments:
            environment.close()


@pytest.mark.textworld
@needs_textworld
def test_a_missing_game_is_one_clear_line(tmp_path: Path):
    from selective_rollout.env.textworld import textworld_task

    with pytest.raises(
        ConfigError, match=r"task 't' metadata\['game'\] must be the path of an existing file"
    ):
        load_factory(FACTORY)(Task("t", "", {"game": str(tmp_path / "none.z8")}), 0)
    with pytest.raises(ConfigError, match="metadata"):
        load_factory(FACTORY)(Task("t", ""), 0)
    (tmp_path / "lonely.z8").touch()
    with pytest.raises(ConfigError, match=r"game description must be the path of an existing file"):
        textworld_task(tmp_path / "lonely.z8")
