from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.policy import RequestInfo, SamplingParams
from selective_rollout.policy.failures import Failure
from selective_rollout.policy.request import RequestBuilder, header_text

INFO = RequestInfo("g", 2, 1, seed=5, admissible=("a", "b"))
DROPPED = Failure("connection", "dropped", unanswered=True)


def builder(**options):
    settings = {"constrain": None, "stream": True, "keep_alive": True} | options
    return RequestBuilder("m", SamplingParams(), **settings)


def test_a_request_holds_what_was_asked_for():
    messages = ({"role": "user", "content": "x"},)
    request = builder(constrain="choice").build(messages, INFO)
    assert request.body == {
        "model": "m",
        "messages": list(messages),
        "seed": 5,
        "structured_outputs": {"choice": ["a", "b"]},
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert request.headers == {"x-rollout-group": "g", "x-rollout-id": "2"}
    assert "stream" not in builder(stream=False).build(messages, INFO).body
    assert builder(keep_alive=False).build(messages, INFO).headers["Connection"] == "close"


def test_a_dropped_connection_is_replaced_once_per_request():
    builds = builder()
    request = builds.build((), INFO)
    assert builds.adapt(request, DROPPED)
    assert request.headers["Connection"] == "close"
    assert not builds.adapt(request, DROPPED)
    assert "Connection" not in builds.build((), INFO).headers


def test_connections_are_given_up_where_they_are_dropped_often():
    often, rarely = builder(), builder()
    for _ in range(3):
        often.adapt(often.build((), INFO), DROPPED)
        for _ in range(30):
            request = rarely.build((), INFO)
        rarely.adapt(request, DROPPED)
    assert "Connection" in often.build((), INFO).headers
    assert "Connection" not in rarely.build((), INFO).headers


@given(st.text(max_size=400), st.text(max_size=400))
@settings(max_examples=100, deadline=None)
def test_ids_fit_into_headers_and_stay_distinct(one, other):
    value = header_text(one)
    assert value.isascii()
    assert value == value.strip()
    assert value.isprintable()
    assert len(value) <= 217
    if one != other and "%" not in one + other and all(c < "\ud800" for c in one + other):
        assert value != header_text(other)
    if one.isascii() and one.isalnum() and len(one) <= 200:
        assert value == one
