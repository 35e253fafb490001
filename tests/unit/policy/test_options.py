import pytest

from selective_rollout.errors import ConfigError
from selective_rollout.policy import RequestLimits, SamplingParams


def test_unset_settings_are_absent_from_the_body():
    assert SamplingParams().to_body() == {}
    tool = {"type": "function", "function": {"name": "open"}}
    params = SamplingParams(
        temperature=0.0,
        top_p=0.9,
        max_tokens=64,
        stop="\n",
        tools=[tool],
        tool_choice="auto",
        extra_body={"top_k": 5},
    )
    assert params.to_body() == {
        "temperature": 0.0,
        "top_p": 0.9,
        "max_tokens": 64,
        "stop": ["\n"],
        "tools": [tool],
        "tool_choice": "auto",
        "top_k": 5,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "temperature must lie in"),
        ({"temperature": float("nan")}, "temperature must lie in"),
        ({"top_p": 1.5}, "top_p must lie in"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"tool_choice": "auto"}, "tool_choice needs tools"),
        ({"extra_body": {"n": 4, "top_k": 1}}, "extra_body cannot set n"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        SamplingParams(**settings)


@pytest.mark.parametrize("limits", [{"timeout_s": 0}, {"max_retries": -1}, {"stall_timeout_s": -1.0}])
def test_bad_limits_are_refused(limits):
    with pytest.raises(ConfigError, match=next(iter(limits))):
        RequestLimits(**limits)
