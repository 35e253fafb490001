import email.utils
import socket
import ssl
import time

import pytest

from selective_rollout.errors import PolicyError
from selective_rollout.policy import Endpoint
from selective_rollout.policy.failures import (
    Failure,
    error_text,
    from_policy_error,
    from_status,
    from_transport,
    retry_after_s,
)

ENDPOINT = Endpoint(
    base_url="http://h:8000/v1",
    api_key="sk-secret",
    base_url_from="VLLM_BASE_URL",
    api_key_from="VLLM_API_KEY",
)


def status(code, body, headers=None, endpoint=ENDPOINT):
    return from_status(code, body, headers or {}, endpoint)


@pytest.mark.parametrize(
    ("code", "body", "kind"),
    [
        (400, {"error": {"message": "temperature must be non-negative"}}, "bad_request"),
        (400, {"error": {"message": "x", "code": "context_length_exceeded"}}, "context_length"),
        (
            400,
            {"error": {"message": "x", "type": "exceed_context_size_error", "n_ctx": 512}},
            "context_length",
        ),
        (400, {"error": {"message": "maximum context length is 2048 tokens"}}, "context_length"),
        (
            400,
            {"error": {"message": "max_tokens=9 cannot be greater than max_model_len=8"}},
            "context_length",
        ),
        (401, {"error": "Unauthorized"}, "auth"),
        (403, {"error": {"message": "not allowed"}}, "auth"),
        (
            404,
            {"error": {"message": "The model `m` does not exist.", "type": "NotFoundError"}},
            "model_not_found",
        ),
        (404, {"error": {"message": "gone", "code": "model_not_found"}}, "model_not_found"),
        (404, {"detail": "Not Found"}, "bad_request"),
        (405, "<html><h1>405 Not Allowed</h1></html>", "bad_request"),
        (408, None, "timeout"),
        (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, "bad_request"),
        (429, {"error": {"message": "slow down"}}, "rate_limit"),
        (500, "", "server"),
        (502, "Bad Gateway", "server"),
        (
            503,
            {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}},
            "overloaded",
        ),
        (504, "", "timeout"),
        (529, {"error": {"message": "Overloaded"}}, "overloaded"),
    ],
)
def test_statuses_map_to_kinds(code, body, kind):
    failure = status(code, body)
    assert (failure.kind, failure.status) == (kind, code)
    assert f"http://h:8000/v1 answered {code}: " in failure.message


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error": {"message": "m"}}, "m"),
        ({"error": "m"}, "m"),
        ({"detail": "m"}, "m"),
        ({"detail": [{"msg": "a"}, {"msg": "b"}]}, "a; b"),
        ({"message": "m"}, "m"),
        ({"code": 7}, "{'code': 7}"),
        ("<html>\n<h1>404</h1>\n</html>", "404"),
        ("two\nlines", "two lines"),
        (None, "no explanation"),
        ({}, "{}"),
    ],
)
def test_the_servers_words_are_found(body, text):
    assert error_text(body) == text


def test_messages_are_one_short_line():
    message = status(500, {"error": "long\n" * 1000}).message
    assert "\n" not in message
    assert len(message) < 400


def test_messages_say_how_to_fix_it():
    assert "check the API key (from VLLM_API_KEY)" in status(401, {"error": "Unauthorized"}).message
    bare = Endpoint(base_url="http://h:8000", base_url_from="base_url")
    assert "usually ends in /v1" in status(404, {"detail": "Not Found"}, endpoint=bare).message
    assert "/v1;" not in status(404, {"detail": "Not Found"}).message
    assert "shorten the conversation" in status(400, {"error": {"code": "context_length_exceeded"}}).message


def test_a_key_that_the_server_repeats_is_removed():
    assert "sk-secret" not in status(401, {"error": "Incorrect API key: sk-secret"}).message
    assert "sk-secret" not in from_transport(OSError("sk-secret"), ENDPOINT).message
    assert "sk-secret" not in from_policy_error(PolicyError("sk-secret"), ENDPOINT).message


def test_exhausted_quota_and_long_waits_are_final():
    assert status(429, {"error": {"message": "x", "code": "insufficient_quota"}}).final
    failure = status(429, {"error": "x"}, {"retry-after": "3600"})
    assert failure.final
    assert "asks to wait 3600 s" in failure.message
    assert not status(429, {"error": "x"}, {"retry-after": "3"}).final


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
    ],
)
def test_retry_after_in_seconds(headers, seconds):
    assert retry_after_s(headers) == seconds


def test_retry_after_as_a_date():
    soon = email.utils.formatdate(time.time() + 10, usegmt=True)
    assert 8 <= retry_after_s({"retry-after": soon}) <= 10.5
    assert retry_after_s({"retry-after": email.utils.formatdate(0, usegmt=True)}) == 0.0


class ConnectTimeout(Exception):
    pass


class ReadTimeout(Exception):
    pass


def caused_by(cause):
    error = RuntimeError("Connection error.")
    error.__cause__ = OSError("All connection attempts failed")
    error.__cause__.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("cause", "kind", "text"),
    [
        (
            ConnectionRefusedError(111, "refused"),
            "connection",
            "is the server running there? (address from VLLM_BASE_URL)",
        ),
        (
            ExceptionGroup("all", [ConnectionRefusedError(), OSError()]),
            "connection",
            "is the server running there?",
        ),
        (socket.gaierror(-2, "unknown"), "connection", "host name is unknown"),
        (ssl.SSLError(1, "WRONG_VERSION_NUMBER"), "connection", "does the server speak https?"),
        (ConnectTimeout(), "connection", "no connection in time"),
        (ReadTimeout(), "timeout", "no answer in time"),
        (ConnectionResetError(104, "reset by peer"), "connection", "reset by peer"),
    ],
)
def test_broken_connections_are_explained(cause, kind, text):
    failure = from_transport(caused_by(cause), ENDPOINT)
    assert failure.kind == kind
    assert text in failure.message
    assert failure.status is None


def test_a_dropped_connection_is_recognised():
    dropped = Exception("Server disconnected without sending a response.")
    assert from_transport(caused_by(dropped), ENDPOINT).unanswered
    assert not from_transport(caused_by(ReadTimeout()), ENDPOINT).unanswered


def test_a_failure_becomes_a_policy_error():
    error = Failure("server", "it broke", 500).error(5)
    assert (str(error), error.kind, error.status) == ("it broke (5 attempts)", "server", 500)
    assert str(Failure("server", "it broke").error(1)) == "it broke"
