"""From findings to verdicts: what each means for gating, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from selective_rollout.policy.doctor import EndpointReport
from selective_rollout.policy.doctor_probe import REUSES, AbortFinding, StopFinding

Verdict: TypeAlias = Literal["pass", "warn", "fail", "unknown"]
"""warn: works, with something to know. fail: a gate would do harm, or nothing."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question about an endpoint."""

    name: str
    verdict: Verdict
    finding: str
    advice: str = ""
    """What to do, in one line; empty where nothing is."""


def judge(report: EndpointReport) -> tuple[Check, ...]:
    """All checks in the order of a report; what was not found out is `unknown`.

    An endpoint that cannot be used at all leaves only the checks that say so.
    """
    checks = tuple(_checks(report))
    if report.problem is None:
        return checks
    return tuple(check for check in checks if check.verdict != "unknown")


def fit(checks: tuple[Check, ...]) -> bool:
    """Whether nothing speaks against gating at this endpoint."""
    return all(check.verdict != "fail" for check in checks)


def _checks(report: EndpointReport) -> Iterator[Check]:
    yield _reachable(report)
    yield _key(report)
    yield _model(report)
    yield _streams(report)
    yield _siblings(report)
    yield _usage(report)
    yield _choices(report)
    yield _usage_of_choices(report)
    yield _stop_stream(report)
    yield _stop_whole(report)
    yield _abort(report.abort)
    yield _constrained(report)
    yield _prefix_cache(report)
    yield _keep_alive(report)
    yield _speed(report)
    yield _counters(report)


def _reachable(report: EndpointReport) -> Check:
    if report.reachable:
        return Check("reachable", "pass", report.server or "answers")
    return Check("reachable", "fail", report.problem or "no answer", "start the server, or check the address")


def _key(report: EndpointReport) -> Check:
    if report.authorized is None:
        return Check("key", "unknown", "not found out")
    if report.authorized:
        return Check("key", "pass", "accepted")
    return Check("key", "fail", "refused", "set the key of this server: --api-key or its variable")


def _model(report: EndpointReport) -> Check:
    name = report.model or "none"
    if report.problem is not None and report.authorized:
        return Check("model", "fail", report.problem, "name a model that the server lists")
    if report.model_listed is False:
        served = ", ".join(report.models or ()) or "none"
        return Check("model", "warn", f"{name} is not listed", f"served: {served}")
    if report.model_checked is None:
        return Check("model", "unknown", f"{name}, not found out whether names are checked")
    if report.model_checked:
        return Check("model", "pass", f"{name}, other names are refused")
    return Check(
        "model", "warn", f"{name}, but any name is accepted", "a typo goes unnoticed: look at what is loaded"
    )


def _streams(report: EndpointReport) -> Check:
    if report.streams is None:
        return Check("streams", "unknown", "not found out")
    if not report.streams:
        return Check("streams", "fail", "no stream", "a cut cannot stop an answer midway")
    if report.pieces == 1:
        return Check("streams", "warn", "in one piece", "a proxy holds the stream back: switch buffering off")
    return Check("streams", "pass", f"in {report.pieces} pieces")


def _siblings(report: EndpointReport) -> Check:
    if report.seeds_differ is None:
        return Check("siblings differ", "unknown", "not found out")
    if report.seeds_differ:
        return Check("siblings differ", "pass", "two seeds, two texts")
    return Check(
        "siblings differ",
        "fail",
        "two seeds, one text",
        "copies say nothing: look for a cache or temperature 0",
    )


def _usage(report: EndpointReport) -> Check:
    if report.usage_in_stream is None:
        return Check("usage in a stream", "unknown", "not found out")
    if report.usage_in_stream:
        return Check("usage in a stream", "pass", "reported")
    return Check("usage in a stream", "warn", "not reported", "completions are counted here, prompts unknown")


def _choices(report: EndpointReport) -> Check:
    if report.honours_n is None:
        return Check("n choices", "unknown", "not found out")
    if report.honours_n:
        return Check(
            "n choices",
            "pass",
            'n = 2 gives two; first_step "shared" pays where requests do not share a cold prompt (llama.cpp)',
        )
    return Check(
        "n choices", "warn", "n = 2 gives fewer", "this package sends one request per rollout anyway"
    )


def _usage_of_choices(report: EndpointReport) -> Check:
    name = "usage of n choices"
    if report.usage_of_n == "all_choices":
        return Check(name, "pass", "prompt once, completion summed")
    if report.usage_of_n == "one_choice":
        return Check(name, "warn", "completion of one choice only", "do not trust usage for n > 1")
    if report.usage_of_n == "none":
        return Check(name, "warn", "not reported", "without a stream, tokens stay unknown")
    return Check(name, "unknown", "not found out")


def _stop_stream(report: EndpointReport) -> Check:
    name = "closing stops a stream"
    found = report.stop_stream
    if found is None:
        return Check(name, "unknown", _why_unproven(report), "look at the server's load after a cut")
    if found.stopped:
        return Check(name, "pass", _stopped(found))
    if report.abort is not None and report.abort.ended_after_s is not None:
        return Check(name, "warn", "generated to its end", "cuts abort by id instead")
    return Check(name, "fail", "generated to its end", "a cut saves nothing: update the server or the proxy")


def _stop_whole(report: EndpointReport) -> Check:
    name = "closing stops without a stream"
    found = report.stop_whole
    if found is None:
        return Check(name, "unknown", _why_unproven(report))
    if found.stopped:
        return Check(name, "pass", _stopped(found))
    return Check(name, "warn", "generated to its end", "keep streaming on, as it is by default")


def _abort(found: AbortFinding | None) -> Check:
    name = "abort by id"
    if found is None:
        return Check(name, "unknown", "not found out")
    if not found.offered:
        return Check(name, "warn", "not offered", "a cut closes the connection; vLLM: --enable-scale-out")
    if found.ended_after_s is None:
        return Check(name, "warn", "taken, without effect", "a cut closes the connection")
    usage = "exact usage" if found.exact_usage else "no usage"
    return Check(
        name, "pass", f"ended after {found.ended_after_s:.2f} s, {usage}{_after(found.tokens_after)}"
    )


def _constrained(report: EndpointReport) -> Check:
    name = "constrained output"
    if report.constraints is None:
        return Check(name, "unknown", "not found out")
    kept = [way for way, works in report.constraints.items() if works]
    ignored = [way for way, works in report.constraints.items() if not works]
    finding = f"works: {', '.join(kept) or 'none'}; without effect: {', '.join(ignored) or 'none'}"
    usable = [way for way in kept if way != "guided_choice"]
    if not usable:
        return Check(name, "warn", finding, "let the environment read free text")
    return Check(name, "pass", finding, f"--constrain {usable[0]}" if ignored else "")


def _prefix_cache(report: EndpointReport) -> Check:
    name = "prefix cache"
    if report.repeated_prompt is None:
        return Check(name, "unknown", "not found out")
    if report.repeated_cached is None:
        return Check(name, "unknown", "usage does not tell", "vLLM: --enable-prompt-tokens-details")
    finding = f"{report.repeated_cached} of {report.repeated_prompt} tokens the second time"
    if report.repeated_cached:
        return Check(name, "pass", finding)
    return Check(name, "warn", finding, "every step reads the whole conversation again: switch the cache on")


def _keep_alive(report: EndpointReport) -> Check:
    if report.dropped is None:
        return Check("keep-alive", "unknown", "not found out")
    finding = f"{report.dropped} of {REUSES} reused connections were closed"
    if not report.dropped:
        return Check("keep-alive", "pass", finding)
    return Check("keep-alive", "warn", finding, "handled: sent again at once, then no connection is reused")


def _speed(report: EndpointReport) -> Check:
    if report.first_token_s is None:
        return Check("speed", "unknown", "not found out")
    rate = "" if report.tokens_per_s is None else f", then {report.tokens_per_s:.0f} tokens/s in one stream"
    return Check("speed", "pass", f"first token after {report.first_token_s:.2f} s{rate}")


def _counters(report: EndpointReport) -> Check:
    name = "server counters"
    if report.counters is None:
        return Check(name, "unknown", "not found out")
    if report.counters:
        return Check(name, "pass", "/metrics counts generated tokens")
    return Check(name, "warn", "no /metrics of a known kind", "stops and the ledger cannot be compared")


def _why_unproven(report: EndpointReport) -> str:
    if report.busy:
        return "the server is busy with other clients"
    if report.counters is False:
        return "the server shows no counters"
    return "out of time" if report.out_of_time else "not found out"


def _stopped(found: StopFinding) -> str:
    return f"idle after {found.idle_after_s:.2f} s{_after(found.tokens_after)}"


def _after(tokens: int | None) -> str:
    return "" if tokens is None else f", {tokens} token{'' if tokens == 1 else 's'} after the cut"
