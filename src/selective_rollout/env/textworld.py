"""TextWorld games as environments (extra `textworld`; Côté et al. 2018, arXiv:1806.11532).

TextWorld is not thread-safe. Used directly, its games take turns on the event loop's own thread, which is
correct but blocks the loop for milliseconds a step and up to seconds a start. To run games side by side, give
each a process: `partial(ProcessEnvironment, "selective_rollout.env.textworld:TextWorldEnvironment")`.

The Inform games that `make_game` builds run on every Python. TextWorld's PDDL games (`.tw-pddl`, the format
of ALFWorld) do not on CPython 3.13 and later, where their grammar cannot write to `locals()` (PEP 667).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from selective_rollout.env.base import Observation, StepResult
from selective_rollout.errors import ConfigError, MissingExtraError
from selective_rollout.types import Task

try:
    import textworld
    from textworld import generator
except ImportError as error:
    raise MissingExtraError("textworld", "textworld") from error

_STATUS_LINE = re.compile(r"\n>[^\n]*\Z")
"""Prompt and status line behind a reply; its count of moves would make every observation new."""


class TextWorldEnvironment:
    """One game; the class itself is an `EnvironmentFactory`.

    Args:
        task: `metadata["game"]` is the path of a game file with its `.json` beside it, as `make_game` writes.
        rollout: not used, since all rollouts of a task play the same game.

    Raises:
        ConfigError: the metadata name no existing game file.
    """

    replayable: Final = True

    def __init__(self, task: Task, rollout: int = 0) -> None:
        game = _existing(task.metadata.get("game"), f"task {task.id!r} metadata['game']")
        wanted = textworld.EnvInfos(admissible_commands=True, objective=True, won=True)
        self._game = textworld.start(str(game), wanted)
        self._game.seed(0)  # unless told, the interpreter takes its seed from the clock
        self._admissible: tuple[str, ...] = ()

    def start(self) -> Observation:
        """Begin the game; the observation holds the game's own statement of the goal."""
        state = self._game.reset()
        self._admissible = tuple(sorted(state.admissible_commands))
        _, _, scene = _STATUS_LINE.sub("", state.feedback).rpartition(state.objective)
        return Observation(f"{state.objective}\n\n{scene.strip()}", self._admissible)

    def step(self, action: str) -> StepResult:
        """Perform one command; one outside the admissible list is an error, though the game may know it."""
        understood = action in self._admissible
        state, _, done = self._game.step(action)
        self._admissible = tuple(sorted(state.admissible_commands))
        return StepResult(
            observation=_STATUS_LINE.sub("", state.feedback).strip(),
            admissible=self._admissible,
            reward=float(bool(state.won)),
            terminated=bool(done),
            is_error=not understood,
        )

    def close(self) -> None:
        """End the game's interpreter."""
        self._game.close()


def make_game(
    path: str | Path, seed: int, *, rooms: int = 3, objects: int = 6, quest_length: int = 4
) -> Path:
    """Generate and compile a game with TextWorld's own generator; needs no network, takes seconds.

    Args:
        path: file to write; the suffix is replaced by `.z8`, and `.json` and `.ni` files go beside it.
        seed: equal seeds and sizes give equal games.
        rooms: number of rooms.
        objects: number of objects.
        quest_length: commands in the shortest way to win.

    Returns:
        The path of the game file.
    """
    options = textworld.GameOptions()
    options.seeds = seed
    options.nb_rooms, options.nb_objects, options.quest_length = rooms, objects, quest_length
    options.path = str(Path(path).with_suffix(".z8"))
    options.force_recompile = True
    return Path(generator.compile_game(generator.make_game(options), options))


def textworld_task(game: str | Path, task_id: str | None = None) -> Task:
    """Return the task of playing one game; its id is the file's name unless given.

    Raises:
        ConfigError: the game file or the `.json` beside it does not exist.
    """
    path = _existing(game, "game").resolve()
    objective = generator.Game.load(str(_existing(path.with_suffix(".json"), "game description"))).objective
    prompt = (
        "You play a text game. Reply with exactly one command per turn, such as look, inventory, go east, "
        f"open box, take key from table, insert key into box, put key on table.\nTask: {objective}"
    )
    return Task(id=task_id or path.stem, prompt=prompt, metadata={"game": str(path)})


def _existing(path: Any, what: str) -> Path:
    if not isinstance(path, str | Path) or not Path(path).is_file():
        raise ConfigError(f"{what} must be the path of an existing file, not {path!r}")
    return Path(path)
