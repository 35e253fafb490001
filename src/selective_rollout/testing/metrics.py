"""The counters as Prometheus text, under the names and with the quirks of the real servers."""

from __future__ import annotations

from selective_rollout.testing.counters import CounterSnapshot
from selective_rollout.testing.personality import Personality


def metrics_text(counters: CounterSnapshot, profile: Personality, model: str) -> str:
    """Render the metrics page.

    As in vLLM, the prompt is counted once per choice, and the abort counter stays 0 whatever is aborted.
    """
    if profile.metrics_prefix == "llamacpp":
        return _lines("llamacpp", "", _llama_cpp(counters))
    return _lines("vllm", f'model_name="{model}"', _vllm(counters))


def _vllm(counters: CounterSnapshot) -> list[tuple[str, str, str, int]]:
    rows = [
        ("num_requests_running", "gauge", "", counters.running),
        ("num_requests_waiting", "gauge", "", 0),
        ("prompt_tokens_total", "counter", "", counters.engine_prompt_tokens),
        ("generation_tokens_total", "counter", "", counters.completion_tokens),
        ("prefix_cache_queries_total", "counter", "", counters.prompt_tokens),
        ("prefix_cache_hits_total", "counter", "", counters.cached_tokens),
    ]
    for reason in ("stop", "length", "tool_calls"):
        label = f'finished_reason="{reason}"'
        rows.append(("request_success_total", "counter", label, counters.finished.get(reason, 0)))
    rows.append(("request_success_total", "counter", 'finished_reason="abort"', 0))
    return rows


def _llama_cpp(counters: CounterSnapshot) -> list[tuple[str, str, str, int]]:
    return [
        ("prompt_tokens_total", "counter", "", counters.prompt_tokens),
        ("tokens_predicted_total", "counter", "", counters.completion_tokens),
        ("requests_processing", "gauge", "", counters.running),
        ("requests_deferred", "gauge", "", 0),
    ]


def _lines(prefix: str, label: str, rows: list[tuple[str, str, str, int]]) -> str:
    lines: list[str] = []
    for name, kind, extra, value in rows:
        heading = f"# TYPE {prefix}:{name} {kind}"
        if heading not in lines:
            lines.append(heading)
        labels = ",".join(part for part in (label, extra) if part)
        lines.append(f"{prefix}:{name}{{{labels}}} {value}" if labels else f"{prefix}:{name} {value}")
    return "\n".join(lines) + "\n"
