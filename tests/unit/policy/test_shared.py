"""How the tokens of one request are divided among its choices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.policy.shared import divided
from selective_rollout.policy.stream import Choice
from selective_rollout.types import Usage


def choices(*ended):
    """Choices of (chunks, finish_reason)."""
    return [Choice({"role": "assistant"}, reason, chunks) for chunks, reason in ended]


@pytest.mark.parametrize(
    ("total", "completions", "source"),
    [
        (Usage(9, 4, 8, None, "server"), [3, 5], "server"),
        (Usage(9, 4, 9, None, "server"), [4, 5], "server"),
        (Usage(9, 4, 30, None, "server"), [3, 5], "client"),
        (Usage(9, 4, 8, None, "client"), [3, 5], "client"),
        (Usage(), [3, 5], "client"),
    ],
    ids=["all shown", "an end token", "more than was seen", "counted here", "nothing reported"],
)
def test_completions_are_counted_by_choice(total, completions, source):
    shares = divided(total, choices((3, "stop"), (5, "length")), first=1)
    assert [shares[i].completion for i in range(2)] == completions
    assert {share.source for share in shares.values()} == {source}
    others = (None, None) if total.prompt is None else (0, 0)
    assert [(shares[i].prompt, shares[i].cached) for i in range(2)] == [others, (total.prompt, total.cached)]


def test_a_choice_that_nobody_counted_is_unknown():
    assert divided(Usage(), choices((0, "stop"), (2, "stop")), first=0) == {
        0: Usage(),
        1: Usage(completion=2, source="client"),
    }


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from(["stop", "length"])), min_size=2), st.data())
def test_the_parts_of_what_the_server_counted_add_up_to_it(ended, data):
    hidden = data.draw(st.sampled_from([0, sum(reason == "stop" for _, reason in ended)]))
    total = Usage(100, None, sum(chunks for chunks, _ in ended) + hidden, None, "server")
    shares = divided(total, choices(*ended), first=data.draw(st.integers(0, len(ended) - 1))).values()
    assert sum(share.completion for share in shares) == total.completion
    assert sum(share.prompt for share in shares) == total.prompt
    assert all(share.cached is None for share in shares)
