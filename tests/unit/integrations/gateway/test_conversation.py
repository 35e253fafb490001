"""Which requests are for a generating endpoint."""

from __future__ import annotations

import pytest

from selective_rollout.integrations.gateway.conversation import api_of


@pytest.mark.parametrize(
    ("path", "api"),
    [
        (b"/v1/chat/completions", "chat"),
        (b"/v1/completions", "completions"),
        (b"/v1/responses", "responses"),
        (b"/v1/proxy/rollout/r1/openai/v1/chat/completions", "chat"),
        (b"/v1/models", None),
        (b"/v1/chat/completions/c1", None),
        (b"/v1/api/rollouts/r1/events", None),
    ],
)
def test_an_endpoint_is_known_also_deeper_in_a_server(path: bytes, api: str | None) -> None:
    assert api_of(path) == api
