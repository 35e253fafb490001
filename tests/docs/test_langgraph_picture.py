"""The picture of the graph in the documents is the graph that `build_graph` makes."""

from __future__ import annotations

import re
from pathlib import Path

from selective_rollout.integrations.langgraph import build_graph

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "coming-from-the-tutorial.md"


def test_the_picture_is_up_to_date() -> None:
    (picture,) = re.findall(r"^```mermaid\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    drawn = build_graph().get_graph().draw_mermaid()
    assert picture.split() == drawn.split()
