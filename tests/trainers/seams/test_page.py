"""The versions that the page names, and `member`, the coroutine that several of its sketches share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from needs import need

from selective_rollout.types import RolloutFailure


@pytest.mark.parametrize(
    ("name", "distribution"),
    [
        ("SkyRL", "skyrl"),
        ("AReaL", "areal"),
        ("tinker-cookbook", "tinker-cookbook"),
        ("ART", "openpipe-art"),
    ],
)
def test_the_page_names_the_version_that_was_tested(page_text: str, name: str, distribution: str) -> None:
    assert f"| {name} {need(distribution)} |" in page_text


@pytest.fixture
def member(sketch: Callable[..., Any]) -> Any:
    return sketch("").member


async def answer(text: str) -> str:
    await asyncio.sleep(0)
    return text


def talk(texts: list[str], reward: float) -> Any:
    """A loop that asks for these texts, one after the other."""

    async def play(ask: Any) -> tuple[list[str], float]:
        return [await ask(text) for text in texts], reward

    return play


async def test_it_returns_what_the_loop_made(member: Any, gate_of: Any) -> None:
    group = gate_of().open("g", 2)
    plays = [talk(["a", "b", "c"], 1.0), talk(["d", "e", "f"], 0.0)]
    made = await asyncio.gather(*(member(group, i, play, answer, str) for i, play in enumerate(plays)))
    outcome = group.close()
    assert made == [["a", "b", "c"], ["d", "e", "f"]]
    assert [[step.action for step in each.steps] for each in outcome.group.rollouts] == made
    assert [each.reward for each in outcome.group.rollouts] == [1.0, 0.0]


@pytest.mark.parametrize(("rewards", "trainable"), [((1.0, 0.0), True), ((0.0, 0.0), True), (None, False)])
async def test_the_last_step_and_the_end_are_told_at_once(
    member: Any, gate_of: Any, rewards: tuple[float, float] | None, trainable: bool
) -> None:
    """At the check all have ended, and then there is nothing to stop; one step more, and there is."""
    texts = ["a", "b"] if rewards else ["a", "b", "c"]
    group = gate_of().open("g", 2)
    plays = [talk(texts, reward) for reward in rewards or (1.0, 0.0)]
    made = await asyncio.gather(*(member(group, i, play, answer, str) for i, play in enumerate(plays)))
    assert group.close().trainable is trainable
    assert made == ([texts, texts] if trainable else [None, None])


async def test_a_loop_that_breaks_keeps_nobody_waiting(member: Any, gate_of: Any) -> None:
    async def broken(ask: Any) -> Any:
        await ask("a")
        raise OSError("the tool is gone")

    group = gate_of().open("g", 3)
    plays = [talk(["a", "b", "c"], 0.0), talk(["a", "b", "c"], 0.0), broken]
    running = (member(group, i, play, answer, str) for i, play in enumerate(plays))
    first, second, third = await asyncio.gather(*running, return_exceptions=True)
    outcome = group.close()
    assert (first, second) == (None, None)
    assert isinstance(third, OSError)
    assert outcome.group.rollouts[2].failure == RolloutFailure("OSError", "the tool is gone")
    assert not outcome.trainable


async def test_a_cancellation_from_outside_passes(member: Any, gate_of: Any) -> None:
    async def never(text: str) -> str:
        return await asyncio.Future()

    group = gate_of().open("g", 2)
    running = asyncio.ensure_future(member(group, 0, talk(["a"], 0.0), never, str))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert group.close().trainable
