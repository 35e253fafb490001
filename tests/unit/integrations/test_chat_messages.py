"""What LangChain messages tell of the requests behind them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from selective_rollout.integrations.chat_messages import is_cut_off


@pytest.mark.parametrize(
    ("metadata", "cut_off"),
    [
        ({"finish_reason": "length"}, True),
        ({"finish_reason": "MAX_TOKENS"}, True),
        ({"stop_reason": "max_tokens"}, True),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, True),
        ({"status": "completed", "incomplete_details": None}, False),
        ({"finish_reason": "tool_calls"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_a_message_cut_off_by_its_token_limit(metadata: dict[str, Any] | None, cut_off: bool) -> None:
    assert is_cut_off(SimpleNamespace(response_metadata=metadata)) is cut_off
