import pytest

from selective_rollout.policy import Endpoint
from selective_rollout.policy.server_metrics import (
    ServerCounters,
    parse_metrics,
    read_counters,
    read_when_idle,
)
from selective_rollout.policy.transport import Transport
from selective_rollout.testing import EchoBrain, LoopbackServer

# Lines as vLLM 0.32.0 and llama.cpp (xllamacpp 2026.10) print them; two engines behind the first address.
VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 368.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7960027742432418e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 322.0
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="1",model_name="m"} 28.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="m"} 9.0
"""
LLAMA = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 6
llamacpp:prompt_tokens_cached_total 40
llamacpp:tokens_predicted_total 16
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
llamacpp:predicted_tokens_seconds nan
"""


def test_vllm_is_summed_over_engines():
    assert parse_metrics(VLLM) == ServerCounters("vLLM", 4, 368, 322, 128)


def test_llama_cpp_counts_cached_prompt_tokens_apart_from_the_others():
    assert parse_metrics(LLAMA) == ServerCounters("llama.cpp", 3, 46, 40, 16)


@pytest.mark.parametrize("text", ["", "not metrics", "process_cpu_seconds_total 4", "vllm:other_total 3"])
def test_other_pages_are_unknown(text):
    assert parse_metrics(text) is None


def test_what_one_server_does_not_count_stays_unknown():
    only = parse_metrics("vllm:generation_tokens_total 5\n")
    assert only == ServerCounters("vLLM", None, None, None, 5)
    assert only.since(parse_metrics(VLLM)) == ServerCounters("vLLM", None, None, None, -123)


@pytest.mark.parametrize(("personality", "engine"), [("vllm", "vLLM"), ("llama.cpp", "llama.cpp")])
async def test_counters_are_read_with_the_key_below_the_root(personality, engine):
    with LoopbackServer(EchoBrain(), personality) as server:
        transport = Transport(Endpoint(base_url=server.base_url, api_key=server.api_key))
        assert await read_when_idle(transport, 1.0) == ServerCounters(engine, 0, 0, *_cached(engine), 0)
        stranger = Transport(Endpoint(base_url=server.base_url, api_key="sk-wrong"))
        hidden = await read_counters(stranger) is None
        assert hidden == (personality == "llama.cpp")
        for used in (transport, stranger):
            await used.aclose()


def _cached(engine):
    return (0,) if engine == "vLLM" else (None,)


async def test_no_server_has_no_counters(closed_port):
    transport = Transport(Endpoint(base_url=f"http://127.0.0.1:{closed_port}/v1"))
    assert await read_counters(transport) is None
    await transport.aclose()
