"""The checkup against the loopback server's personalities, which imitate measured servers."""

import asyncio
import threading

import pytest

from selective_rollout.policy import Endpoint, abort, doctor, doctor_probe
from selective_rollout.policy.doctor import check_endpoint
from selective_rollout.policy.doctor_verdicts import fit, judge
from selective_rollout.testing import N_IGNORED, EchoBrain, Fault, LoopbackServer, ScriptedBrain

STEP_S = 0.005


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Long answers of a third of a second instead of four; an abort is given up by no slow machine."""
    monkeypatch.setattr(doctor_probe, "_LONG_S", 0.3)
    monkeypatch.setattr(abort, "_ORDER_TIMEOUT_S", 30.0)


def talk(request, choice, seed):
    return " ".join(f"word{seed}" for _ in range(500))


def lasts(context):
    """The fault of a long answer: after some tokens it stands still until its client leaves or aborts it."""
    is_long = context.body.get("max_tokens", 0) > 2 * doctor_probe.SHORT
    return Fault("stall", after_steps=20) if is_long else None


def endpoint_of(server, **fields):
    return Endpoint(
        **{"base_url": server.base_url, "api_key": server.api_key, "model": server.model} | fields
    )


async def test_vllm_with_aborts_passes_everything():
    brain = ScriptedBrain(talk)
    with LoopbackServer(brain, step_delay_s=STEP_S, abort_endpoint=True, faults=lasts) as server:
        report = await check_endpoint(endpoint_of(server))
        counters = await server.until(lambda c: c.in_flight == 0)
    assert {check.verdict for check in judge(report)} == {"pass"}
    assert (counters.aborts, counters.disconnects) == (1, 2)
    assert report.abort.exact_usage
    assert report.abort.tokens_after < 20
    assert report.stop_stream.tokens_after < 20
    assert report.constraints == {
        "choice": True,
        "grammar": False,
        "json_schema": True,
        "guided_choice": False,
    }
    assert report.server == "vLLM imitated on loopback"


async def test_llama_cpp_shows_its_traps():
    def faults(context):
        if context.body.get("stream"):
            return lasts(context)
        # Left or not, it is generated to its end; that it is being generated has to be noticed before.
        return Fault("slow_first_token", delay_s=1) if lasts(context) else None

    brain = ScriptedBrain(talk)
    with LoopbackServer(brain, "llama.cpp", step_delay_s=STEP_S, faults=faults) as server:
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


async def test_siblings_that_are_copies_are_not_fit(monkeypatch):
    monkeypatch.setattr(doctor_probe, "_LONG_S", 16.0)  # an answer seen in the making has 2 s to end
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


async def test_no_server(closed_port):
    report = await check_endpoint(Endpoint(base_url=f"http://127.0.0.1:{closed_port}/v1"))
    assert (report.reachable, report.authorized) == (False, None)
    assert "is the server running there?" in report.problem
    assert [(check.name, check.verdict) for check in judge(report)] == [("reachable", "fail")]


async def test_a_server_that_never_answers(monkeypatch):
    class Impatient(doctor_probe.Probe):
        def stream(self, seed):
            self._timeout_s = 0.1
            return super().stream(seed)

    monkeypatch.setattr(doctor, "Probe", Impatient)
    with LoopbackServer(EchoBrain(), first_token_delay_s=60) as server:
        report = await check_endpoint(endpoint_of(server))
    assert (report.reachable, report.streams) == (True, None)
    assert "in time" in report.problem


async def test_it_ends_in_bounded_time_with_what_it_has(monkeypatch):
    """Two streams and a refused model are done; two choices are being generated as the time runs out."""
    under_way = threading.Event()

    def faults(context):
        if context.body.get("n") != 2:
            return None
        under_way.set()
        return "stall"

    loop = asyncio.get_running_loop()
    with LoopbackServer(ScriptedBrain(talk), faults=faults) as server:
        checking = asyncio.create_task(check_endpoint(endpoint_of(server), within_s=150))
        await server.until(lambda c: under_way.is_set())
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + 150)
        report = await checking
        await server.until(lambda c: c.in_flight == 0)
    assert report.out_of_time
    assert (report.streams, report.model_checked) == (True, True)
    assert (report.honours_n, report.dropped) == (None, None)
    assert {check.verdict for check in judge(report)} == {"pass", "unknown"}
