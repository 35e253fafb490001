import pytest

from selective_rollout.policy import Endpoint
from selective_rollout.policy.doctor import check_endpoint
from selective_rollout.testing import EchoBrain, LoopbackServer, ScriptedBrain


def talk(request, choice, seed):
    return " ".join(f"word{seed}" for _ in range(40))


def endpoint_of(server, **fields):
    return Endpoint(
        **{"base_url": server.base_url, "api_key": server.api_key, "model": server.model} | fields
    )


@pytest.mark.parametrize(
    ("personality", "honours_n", "usage_of_n"),
    [("vllm", True, "all_choices"), ("llama.cpp", True, "one_choice"), ("n_ignored", False, None)],
)
async def test_personalities_are_told_apart(personality, honours_n, usage_of_n):
    with LoopbackServer(ScriptedBrain(talk), personality) as server:
        report = await check_endpoint(endpoint_of(server))
        assert server.counters.requests == 3
    assert report.problem is None
    assert (report.reachable, report.authorized, report.streams, report.usage_in_stream) == (True,) * 4
    assert (report.models, report.model_listed) == ((server.model,), True)
    assert (report.honours_n, report.usage_of_n, report.seeds_differ) == (honours_n, usage_of_n, True)


async def test_an_ignored_seed_shows():
    with LoopbackServer(EchoBrain()) as server:
        assert (await check_endpoint(endpoint_of(server))).seeds_differ is False


async def test_without_a_model_the_first_listed_one_is_tried():
    with LoopbackServer(ScriptedBrain(talk)) as server:
        report = await check_endpoint(endpoint_of(server, model=None))
    assert (report.model, report.model_listed, report.problem) == (server.model, True, None)


async def test_unlisted_models():
    for personality, usable in (("vllm", False), ("llama.cpp", True)):
        with LoopbackServer(ScriptedBrain(talk), personality) as server:
            report = await check_endpoint(endpoint_of(server, model="other"))
        assert report.model_listed is False
        assert (report.problem is None) == usable


async def test_a_wrong_key_ends_the_checkup():
    with LoopbackServer(EchoBrain()) as server:
        report = await check_endpoint(endpoint_of(server, api_key="sk-wrong-key"))
        assert server.counters.requests == 0
    assert (report.reachable, report.authorized, report.streams) == (True, False, None)
    assert "check the API key" in report.problem
    assert "sk-wrong" not in repr(report)


async def test_no_server(unused_tcp_port):
    report = await check_endpoint(Endpoint(base_url=f"http://127.0.0.1:{unused_tcp_port}/v1"))
    assert (report.reachable, report.authorized) == (False, None)
    assert "is the server running there?" in report.problem


async def test_a_server_that_never_answers():
    with LoopbackServer(EchoBrain(), first_token_delay_s=5) as server:
        report = await check_endpoint(endpoint_of(server), timeout_s=0.2)
    assert (report.reachable, report.streams) == (True, None)
    assert "in time" in report.problem
