"""The checkup against the loopback server's personalities, which imitate measured servers."""

import time

import pytest

from selective_rollout.policy import Endpoint, doctor_probe
from selective_rollout.policy.doctor import check_endpoint
from selective_rollout.policy.doctor_verdicts import fit, judge
from selective_rollout.testing import N_IGNORED, EchoBrain, LoopbackServer, ScriptedBrain

STEP_S = 0.005


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Long answers of a third of a second instead of four."""
    monkeypatch.setattr(doctor_probe, "_LONG_S", 0.3)


def talk(request, choice, seed):
    return " ".join(f"word{seed}" for _ in range(500))


def endpoint_of(server, **fields):
    return Endpoint(
        **{"base_url": server.base_url, "api_key": server.api_key, "model": server.model} | fields
    )


async def test_vllm_with_aborts_passes_everything():
    with LoopbackServer(ScriptedBrain(talk), step_delay_s=STEP_S, abort_endpoint=True) as server:
        report = await check_endpoint(endpoint_of(server))
        counters = await server.until(lambda c: c.in_flight == 0)
    assert {check.verdict for check in judge(report)} == {"pass"}
    assert (counters.aborts, counters.disconnects) == (1, 2)
    assert report.abort.exact_usage
    assert report.abort.tokens_after < 40
    assert report.stop_stream.tokens_after < 40
    assert report.constraints == {
        "choice": True,
        "grammar": False,
        "json_schema": True,
        "guided_choice": False,
    }
    assert report.server == "vLLM imitated on loopback"


async def test_llama_cpp_shows_its_traps():
    with LoopbackServer(ScriptedBrain(talk), "llama.cpp", step_delay_s=STEP_S) as server:
        report = await check_endpoint(endpoint_of(server, model="other"))
    assert (report.model_listed, report.problem) == (False, None)
    verdicts = {check.name: check.verdict for check in judge(report)}
    verdicts.pop("keep-alive")  # it hangs up after a stream; whether the next request meets that is a race
    assert {name for name, verdict in verdicts.items() if verdict != "pass"} == {
        "model",
        "usage of n choices",
        "closing stops without a stream",
        "abort by id",
    }
    assert set(verdicts.values()) == {"pass", "warn"}
    assert (report.model_checked, report.usage_of_n, report.abort.offered) == (False, "one_choice", False)
    assert (report.stop_stream.stopped, report.stop_whole.stopped) == (True, False)
    assert report.constraints["grammar"]
    assert not report.constraints["choice"]


async def test_a_server_that_ignores_n_and_every_constraint():
    with LoopbackServer(ScriptedBrain(talk), N_IGNORED, step_delay_s=STEP_S) as server:
        report = await check_endpoint(endpoint_of(server, model=None))
    assert (report.model, report.model_listed) == (server.model, True), "the first one listed is tried"
    assert (report.honours_n, report.usage_of_n) == (False, None)
    assert not any(report.constraints.values())
    assert fit(judge(report))


async def test_a_server_that_goes_on_generating_is_not_fit():
    with LoopbackServer(ScriptedBrain(talk), step_delay_s=STEP_S, stops_on_disconnect=False) as server:
        report = await check_endpoint(endpoint_of(server))
    failed = [check.name for check in judge(report) if check.verdict == "fail"]
    assert failed == ["closing stops a stream"]
    assert report.stop_stream.tokens_after > 40
    (abort,) = [check for check in judge(report) if check.name == "abort by id"]
    assert (abort.verdict, report.abort.offered) == ("warn", False)
    assert "--enable-scale-out" in abort.advice


async def test_siblings_that_are_copies_are_not_fit():
    with LoopbackServer(EchoBrain()) as server:
        report = await check_endpoint(endpoint_of(server))
    assert report.seeds_differ is False
    assert not fit(judge(report))
    assert report.stop_whole is None, "an answer too short to be stopped proves nothing"


async def test_an_unknown_model_that_is_refused_ends_the_checkup():
    with LoopbackServer(ScriptedBrain(talk)) as server:
        report = await check_endpoint(endpoint_of(server, model="other"))
    assert report.model_listed is False
    assert [check.name for check in judge(report) if check.verdict == "fail"] == ["model"]


async def test_a_wrong_key_ends_the_checkup():
    with LoopbackServer(EchoBrain()) as server:
        report = await check_endpoint(endpoint_of(server, api_key="sk-wrong-key"))
        assert server.counters.requests == 0
    assert (report.reachable, report.authorized, report.streams) == (True, False, None)
    assert [check.name for check in judge(report) if check.verdict == "fail"] == ["key"]
    assert "check the API key" in report.problem
    assert "sk-wrong" not in repr(report)


async def test_no_server(unused_tcp_port):
    report = await check_endpoint(Endpoint(base_url=f"http://127.0.0.1:{unused_tcp_port}/v1"))
    assert (report.reachable, report.authorized) == (False, None)
    assert "is the server running there?" in report.problem
    assert [(check.name, check.verdict) for check in judge(report)] == [("reachable", "fail")]


async def test_a_server_that_never_answers():
    with LoopbackServer(EchoBrain(), first_token_delay_s=60) as server:
        report = await check_endpoint(endpoint_of(server), timeout_s=2)
    assert (report.reachable, report.streams) == (True, None)
    assert "in time" in report.problem


async def test_it_ends_in_bounded_time_with_what_it_has():
    with LoopbackServer(ScriptedBrain(talk), first_token_delay_s=0.3) as server:
        began = time.monotonic()
        report = await check_endpoint(endpoint_of(server), within_s=1.5)
        took = time.monotonic() - began
        await server.until(lambda c: c.in_flight == 0)
    assert took < 4
    assert report.out_of_time
    assert (report.streams, report.dropped) == (True, None)
    assert {check.verdict for check in judge(report)} == {"pass", "unknown"}
