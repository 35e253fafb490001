import pytest

from selective_rollout.errors import ConfigError
from selective_rollout.testing import LLAMA_CPP, VLLM, EchoBrain, LoopbackServer
from selective_rollout.testing.counters import Counters, RequestRecord
from selective_rollout.testing.metrics import metrics_text
from selective_rollout.testing.options import ServerOptions


def test_personalities_go_by_name_or_as_they_are() -> None:
    assert ServerOptions(EchoBrain(), "llama.cpp").profile is LLAMA_CPP
    assert ServerOptions(EchoBrain(), VLLM).profile is VLLM
    with pytest.raises(ConfigError, match=r"unknown personality 'gpt': choose one of vllm, llama\.cpp"):
        ServerOptions(EchoBrain(), "gpt")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_delay_s": -1.0}, "step_delay_s is a time"),
        ({"slots": 0}, "slots must be at least 1"),
        ({"cache_block_size": 0}, "cache_block_size must be at least 1"),
        ({"loading_s": 1.0}, "vllm does not answer while it loads"),
    ],
)
def test_options_without_sense_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoopbackServer(EchoBrain(), **options)  # type: ignore[arg-type]


def test_a_server_that_is_not_started_has_no_address() -> None:
    server = LoopbackServer(EchoBrain())
    with pytest.raises(ConfigError, match="not started"):
        _ = server.base_url
    server.stop()


def test_metrics_count_a_prompt_per_choice_and_never_an_abort() -> None:
    counters = Counters(10)
    record = RequestRecord(0, "/v1/chat/completions", "chatcmpl-0")
    counters.opened(record)
    counters.prefilled(record, prompt=46, cached=0, n=8)
    counters.generated(record, 16)
    counters.aborted(record)
    text = metrics_text(counters.snapshot(), VLLM, "m")
    assert 'vllm:prompt_tokens_total{model_name="m"} 368' in text
    assert 'vllm:num_requests_running{model_name="m"} 8' in text
    assert 'vllm:generation_tokens_total{model_name="m"} 16' in text
    assert 'vllm:request_success_total{model_name="m",finished_reason="abort"} 0' in text
    assert text.count("# TYPE vllm:request_success_total counter") == 1
    assert "llamacpp:tokens_predicted_total 16\n" in metrics_text(counters.snapshot(), LLAMA_CPP, "m")
