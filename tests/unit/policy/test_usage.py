import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.policy import read_usage, response_usage, sum_usages
from selective_rollout.policy.usage import estimate_completion, read_timings
from selective_rollout.types import Usage


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (
            {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": None},
            Usage(5, None, 2, None, "server"),
        ),
        (
            {
                "prompt_tokens": 50,
                "completion_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 48},
                "completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": None},
            },
            Usage(50, 48, 9, 4, "server"),
        ),
        (
            {"input_tokens": 3, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 0}},
            Usage(3, 0, 1, None, "server"),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 8},
            Usage(9, 8, 1, None, "server"),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 2,
                "total_tokens": 19,
                "completion_tokens_details": {"reasoning_tokens": 7},
            },
            Usage(10, None, 9, 7, "server"),
        ),
        ({"prompt_tokens": 4}, Usage(4, None, None, None, "server")),
        ({"prompt_tokens": -1, "completion_tokens": True, "total_tokens": "7"}, Usage()),
        ({"prompt_tokens": 4.0, "completion_tokens": None}, Usage()),
        ({}, Usage()),
        (None, Usage()),
        ([1], Usage()),
    ],
)
def test_every_shape_is_read(reported, expected):
    assert read_usage(reported) == expected


def test_timings_of_llama_cpp():
    timings = {"prompt_n": 6, "cache_n": 40, "predicted_n": 16, "predicted_ms": 12.5}
    assert read_timings(timings) == Usage(46, 40, 16, None, "server")
    assert read_timings({"prompt_ms": 1.0}) == Usage()


def test_the_prompt_is_counted_once_for_n_choices():
    # Case usage-n-choices.
    usage = response_usage([{"prompt_tokens": 50, "completion_tokens": 10 + 12 + 9 + 11, "total_tokens": 92}])
    assert (usage.prompt, usage.completion, usage.prompt + usage.completion) == (50, 42, 92)


def test_one_usage_object_per_choice_is_summed():
    reported = [{"prompt_tokens": 50, "completion_tokens": tokens} for tokens in (10, 12, 9, 11)]
    assert response_usage(reported, [10, 12, 9, 11]) == Usage(50, None, 42, None, "server")


@pytest.mark.parametrize(
    ("completion", "source"), [(128, "server"), (129, "server"), (16, "client"), (17, "client")]
)
def test_usage_of_a_single_choice_is_seen_through(completion, source):
    usage = response_usage([{"prompt_tokens": 46, "completion_tokens": completion}], [16] * 8)
    assert (usage.prompt, usage.completion, usage.source) == (46, max(128, completion), source)


def test_fewer_chunks_than_tokens_are_no_reason_to_doubt_the_server():
    assert response_usage([{"prompt_tokens": 5, "completion_tokens": 40}], [10, 12]).completion == 40


def test_a_report_of_nothing_for_text_that_came_is_not_believed():
    usage = response_usage([{"prompt_tokens": 5, "completion_tokens": 0}], [3])
    assert usage == Usage(5, None, 3, None, "client")


def test_what_nobody_counted_is_unknown_and_never_zero():
    assert response_usage([]) == Usage()
    assert response_usage([None], [0]) == Usage()
    assert response_usage([], [2, 3]) == Usage(None, None, 5, None, "client")


def test_a_discarded_sample_was_still_paid_for():
    # Case usage-missing-on-truncated.
    cut = response_usage([{"prompt_tokens": 10, "completion_tokens": 4096}])
    kept = response_usage([{"prompt_tokens": 10, "completion_tokens": 30}])
    assert sum_usages([cut, kept]) == Usage(20, None, 4126, None, "server")


def test_an_unknown_count_makes_the_total_unknown():
    total = sum_usages([Usage(5, 1, 2, None, "server"), Usage(None, None, 3, None, "client")])
    assert total == Usage(None, None, 5, None, "client")
    assert sum_usages([Usage(5, 1, 2, 0, "server"), Usage()]).source == "unknown"
    assert sum_usages([]) == Usage()


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        ({"content": ""}, 0),
        ({"content": None}, 0),
        ({"content": "four"}, 1),
        ({"content": "fives"}, 2),
        ({"content": "four", "reasoning": "eight me"}, 3),
        ({"content": None, "tool_calls": [{"function": {"name": "open", "arguments": "{}"}}]}, 2),
    ],
)
def test_a_guess_goes_by_all_that_was_generated(message, tokens):
    assert estimate_completion(message) == tokens


@given(
    st.integers(0, 500),
    st.lists(st.integers(1, 50), min_size=1, max_size=8),
    st.sampled_from(["total", "per_choice", "one_choice", "none"]),
)
@settings(max_examples=150, deadline=None)
def test_completion_is_the_sum_in_whatever_way_it_is_reported(prompt, tokens, style):
    reported = {
        "total": [{"prompt_tokens": prompt, "completion_tokens": sum(tokens)}],
        "per_choice": [{"prompt_tokens": prompt, "completion_tokens": count} for count in tokens],
        "one_choice": [{"prompt_tokens": prompt, "completion_tokens": tokens[-1]}],
        "none": [],
    }[style]
    usage = response_usage(reported, tokens)
    assert usage.completion == sum(tokens)
    assert usage.prompt == (None if style == "none" else prompt)
