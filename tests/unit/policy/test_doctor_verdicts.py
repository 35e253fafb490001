from dataclasses import replace

import pytest

from selective_rollout.policy.doctor import EndpointReport
from selective_rollout.policy.doctor_probe import AbortFinding, StopFinding
from selective_rollout.policy.doctor_verdicts import fit, judge

SOUND = EndpointReport(
    base_url="http://h/v1",
    server="vLLM 0.32.0",
    counters=True,
    reachable=True,
    authorized=True,
    models=("m",),
    model="m",
    model_listed=True,
    model_checked=True,
    streams=True,
    pieces=16,
    usage_in_stream=True,
    seeds_differ=True,
    first_token_s=0.1,
    tokens_per_s=50.0,
    honours_n=True,
    usage_of_n="all_choices",
    stop_stream=StopFinding(True, 0.05, 1),
    stop_whole=StopFinding(True, 0.05, None),
    abort=AbortFinding(True, 0.02, True, 0),
    constraints={"choice": True},
    repeated_prompt=200,
    repeated_cached=192,
    dropped=0,
)
GOES_ON = StopFinding(False, 4.0, 300)


def verdict(name, **changes):
    (check,) = [check for check in judge(replace(SOUND, **changes)) if check.name == name]
    return check


def test_a_sound_server_passes_everything():
    assert {check.verdict for check in judge(SOUND)} == {"pass"}


def test_what_was_not_found_out_is_unknown_and_never_a_pass():
    checks = judge(EndpointReport(base_url="http://h/v1", reachable=True))
    assert {check.verdict for check in checks if check.name != "reachable"} == {"unknown"}
    assert [check.name for check in checks] == [check.name for check in judge(SOUND)]


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("key", {"authorized": False, "problem": "401"}, "fail"),
        ("model", {"problem": "404"}, "fail"),
        ("model", {"model_listed": False}, "warn"),
        ("model", {"model_checked": False}, "warn"),
        ("model", {"model_checked": None}, "unknown"),
        ("streams", {"streams": False}, "fail"),
        ("streams", {"pieces": 1}, "warn"),
        ("siblings differ", {"seeds_differ": False}, "fail"),
        ("usage in a stream", {"usage_in_stream": False}, "warn"),
        ("n choices", {"honours_n": False}, "warn"),
        ("usage of n choices", {"usage_of_n": "one_choice"}, "warn"),
        ("usage of n choices", {"usage_of_n": "none"}, "warn"),
        ("closing stops a stream", {"stop_stream": GOES_ON, "abort": None}, "fail"),
        ("closing stops a stream", {"stop_stream": GOES_ON, "abort": AbortFinding(offered=True)}, "fail"),
        ("closing stops a stream", {"stop_stream": GOES_ON}, "warn"),
        ("closing stops without a stream", {"stop_whole": GOES_ON}, "warn"),
        ("abort by id", {"abort": AbortFinding(offered=False)}, "warn"),
        ("abort by id", {"abort": AbortFinding(offered=True)}, "warn"),
        ("constrained output", {"constraints": {"choice": False, "guided_choice": True}}, "warn"),
        ("prefix cache", {"repeated_cached": 0}, "warn"),
        ("prefix cache", {"repeated_cached": None}, "unknown"),
        ("keep-alive", {"dropped": 4}, "warn"),
        ("server counters", {"counters": False}, "warn"),
    ],
)
def test_every_trouble_has_its_verdict_and_advice(name, changes, expected):
    check = verdict(name, **changes)
    assert check.verdict == expected
    assert check.finding
    assert "\n" not in check.finding + check.advice
    assert check.advice or expected == "unknown"
    assert fit(judge(replace(SOUND, **changes))) == (expected != "fail")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"busy": True}, "busy with other clients"),
        ({"counters": False}, "shows no counters"),
        ({"out_of_time": True}, "out of time"),
    ],
)
def test_a_stop_that_could_not_be_proven_says_why(changes, why):
    check = verdict("closing stops a stream", stop_stream=None, **changes)
    assert check.verdict == "unknown"
    assert why in check.finding


def test_no_advice_names_a_constraint_that_only_the_old_field_offers():
    check = verdict(
        "constrained output", constraints={"grammar": True, "guided_choice": True, "choice": False}
    )
    assert check.advice == "--constrain grammar"
