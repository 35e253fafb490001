"""The gateway's own endpoints, as harnesses use and misuse them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from selective_rollout.trace.reader import read_groups

Start = Callable[..., Awaitable[Any]]
NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture
async def running(start: Start) -> Any:
    made = await start(NOWHERE)
    assert (await made.call("PUT", "/groups/g", {"size": 2, "task": "t"}))[0] == 200
    return made


async def test_a_group_from_its_opening_to_its_end(running: Any) -> None:
    assert (await running.call("PUT", "/groups/g", {"size": 2}))[0] == 200
    first = await running.call("POST", "/groups/g/rollouts/0/end", {"answer": "42", "status": "truncated"})
    assert first == (200, {"status": "truncated", "reward": None, "recorded": True})
    again = await running.call("POST", "/groups/g/rollouts/0/end", {"reward": "0.5"})
    assert again == (200, {"status": "truncated", "reward": 0.5, "recorded": True})
    second = await running.call("POST", "/groups/g/rollouts/1/reward", {"reward": True})
    assert second == (200, {"status": "finished", "reward": 1.0, "recorded": True})
    status, view = await running.call("GET", "/groups/g")
    assert (status, view["state"], [m["reward"] for m in view["members"]]) == (200, "ended", [0.5, 1.0])
    (group,) = read_groups(running.trace)
    assert [(r.reward, r.late_reward) for r in group.group.rollouts] == [(0.5, True), (1.0, False)]


async def test_a_failure_has_no_reward(running: Any) -> None:
    said = await running.call("POST", "/groups/g/rollouts/0/end", {"status": "failed", "failure": "oom"})
    assert said[1]["status"] == "failed"
    late = await running.call("POST", "/groups/g/rollouts/0/reward", {"reward": 1})
    assert late == (200, {"status": "failed", "reward": None, "recorded": False})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/groups/other/rollouts/0/end", {}, 404, "no group"),
        ("POST", "/groups/g/rollouts/2/end", {}, 404, "numbered 0 to 1"),
        ("POST", "/groups/g/rollouts/-1/end", {}, 404, "numbered 0 to 1"),
        ("POST", "/groups/g/rollouts/\u00b2/end".replace("\u00b2", "%C2%B2"), {}, 404, "numbered"),
        ("POST", "/groups/g/rollouts/0/end", {"reward": "good"}, 400, "not a number"),
        ("POST", "/groups/g/rollouts/0/end", {"reward": 1e999}, 400, "not what is expected"),
        ("POST", "/groups/g/rollouts/0/end", {"status": "won"}, 400, "finished, truncated, failed"),
        ("POST", "/groups/g/rollouts/0/end", {"score": 1}, 400, "unknown field"),
        ("POST", "/groups/g/rollouts/0/reward", {}, 400, "missing required field"),
        ("POST", "/groups/g/rollouts/0/reward", [], 400, "Expected `object`"),
        ("POST", "/groups/g/rollouts/0/end", {"answer": "x" * 70_000}, 413, "larger"),
        ("PUT", "/groups/g", {"size": 3}, 409, "another size"),
        ("PUT", "/groups/g", {"size": 2, "task": "u"}, 409, "another size or task"),
        ("PUT", "/groups/h", {"size": 1}, 400, "size must be 2"),
        ("PUT", "/groups/h", {"size": 9999}, 400, "size must be 2"),
        ("PUT", "/groups/h", {"size": 2, "task": "a b"}, 400, "task must be"),
        ("PUT", "/groups/h", {"size": 2, "metadata": {"a": {}}}, 400, "metadata"),
        ("PUT", f"/groups/{'x' * 129}", {"size": 2}, 400, "1 to 128 characters"),
        ("GET", "/groups/none", None, 404, "no group"),
        ("GET", "/nothing", None, 404, "Not Found"),
        ("DELETE", "/groups/g", None, 405, "Method Not Allowed"),
    ],
)
async def test_misuse_is_said_and_changes_nothing(
    running: Any, method: str, path: str, body: Any, status: int, says: str
) -> None:
    said, answer = await running.call(method, path, body)
    assert said == status
    assert says in answer["error"]["message"]
    assert [g.group for g in running.gateway.view().groups] == ["g"]
    assert all(member.status == "running" for member in running.gateway.view().groups[0].members)
