import threading

import pytest

from selective_rollout.errors import ConfigError
from selective_rollout.testing.counters import Counters, RequestRecord


def record(ordinal: int, group: str | None = None, rollout: str | None = None) -> RequestRecord:
    return RequestRecord(ordinal, "/v1/chat/completions", f"chatcmpl-{ordinal}", group, rollout)


def run(counters: Counters, request: RequestRecord, tokens: int = 3) -> None:
    counters.opened(request)
    counters.prefilled(request, prompt=10, cached=4, n=2)
    counters.generated(request, tokens)
    counters.sent(request, tokens)
    counters.ended(request, "stop")
    counters.ended(request, "length")
    counters.closed(request, 200)


def test_totals_add_up_requests_running_and_done() -> None:
    counters = Counters(max_records=10)
    run(counters, record(0))
    running = record(1)
    counters.opened(running)
    counters.prefilled(running, prompt=5, cached=0, n=4)
    counters.generated(running, 4)
    now = counters.snapshot()
    assert (now.requests, now.prompt_tokens, now.engine_prompt_tokens) == (2, 15, 40)
    assert (now.completion_tokens, now.tokens_sent, now.cached_tokens) == (7, 3, 4)
    assert (now.in_flight, now.peak_in_flight, now.running) == (1, 1, 4)
    assert now.finished == {"stop": 1, "length": 1}
    assert now.for_request("chatcmpl-0").status == 200
    assert now.responses == {("/v1/chat/completions", 200): 1}


def test_tokens_after_a_disconnect_are_told_apart() -> None:
    counters = Counters(max_records=10)
    request = record(0)
    counters.opened(request)
    counters.generated(request, 5)
    counters.disconnected(request)
    counters.generated(request, 2)
    now = counters.snapshot()
    assert (now.completion_tokens, now.tokens_after_disconnect, now.disconnects) == (7, 2, 1)


def test_groups_and_rollouts_are_summed_by_header() -> None:
    counters = Counters(max_records=10)
    run(counters, record(0, "g1", "0"), tokens=3)
    run(counters, record(1, "g1", "1"), tokens=4)
    run(counters, record(2, "g2", "0"), tokens=5)
    now = counters.snapshot()
    assert now.for_group("g1").completion_tokens == 7
    assert now.for_rollout("g1", "1").completion_tokens == 4
    assert now.for_group("other").requests == 0


def test_old_records_are_dropped_but_stay_in_the_totals() -> None:
    counters = Counters(max_records=2)
    for ordinal in range(5):
        run(counters, record(ordinal, "g"))
    now = counters.snapshot()
    assert (now.requests, now.completion_tokens, now.records_dropped) == (5, 15, 3)
    assert [r.ordinal for r in now.records] == [3, 4]
    with pytest.raises(ConfigError, match="max_records"):
        now.for_group("g")
    with pytest.raises(LookupError, match="3 older"):
        now.for_request("chatcmpl-0")


def test_a_snapshot_does_not_change_any_more() -> None:
    counters = Counters(max_records=2)
    request = record(0)
    counters.opened(request)
    before = counters.snapshot()
    counters.generated(request, 1)
    assert before.records[0].completion_tokens == 0


def test_snapshots_from_another_thread_are_consistent() -> None:
    counters = Counters(max_records=5)
    done = threading.Event()
    wrong: list[object] = []

    def watch() -> None:
        while not done.is_set():
            now = counters.snapshot()
            if now.tokens_sent > now.completion_tokens or now.tokens_after_disconnect:
                wrong.append(now)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for ordinal in range(300):
        run(counters, record(ordinal))
    done.set()
    watcher.join()
    assert wrong == []
    assert counters.snapshot().completion_tokens == 900
