"""Who gets the live page and its data, and what the page may do in a browser."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

Start = Callable[..., Awaitable[Any]]
DATA = "/selective-rollout/v1/live"


async def get(
    port: int, path: str, *headers: str, host: str = "127.0.0.1"
) -> tuple[int, dict[str, str], str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers, "", ""]
        writer.write("\r\n".join(lines).encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
    status, *fields = head.split("\r\n")
    pairs = (field.split(": ", 1) for field in fields)
    return int(status.split()[1]), {name.lower(): value for name, value in pairs}, body


async def test_the_page_holds_no_data_and_no_address(start: Start) -> None:
    running = await start("http://127.0.0.1:9/v1", api_key="sk-upstream-secret")
    running.gateway.book.declare("", "a-group", 2, None, {})
    status, headers, page = await get(running.port, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    for word in ("a-group", "sk-upstream-secret", "127.0.0.1", "http://", "https://"):
        assert word not in page.replace("http://www.w3.org/2000/svg", "")


async def test_its_policy_allows_its_own_script_and_style_only(start: Start) -> None:
    running = await start("http://127.0.0.1:9/v1")
    _, headers, page = await get(running.port, "/")
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for directive, tag in (("script-src", "script"), ("style-src", "style")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"
    assert "unsafe" not in headers["content-security-policy"]
    assert re.findall(r"<\w+[^>]*\s(?:src|on\w+|style)=", page) == []


@pytest.mark.parametrize("path", ["/", DATA])
@pytest.mark.parametrize(
    ("host", "header", "refused"),
    [
        ("attacker.example", "Accept: */*", 421),
        ("127.0.0.1", "Origin: https://attacker.example", 403),
        ("127.0.0.1", "Sec-Fetch-Site: cross-site", 403),
    ],
    ids=["another name", "another page", "embedded"],
)
async def test_other_pages_get_neither(start: Start, path: str, host: str, header: str, refused: int) -> None:
    running = await start("http://127.0.0.1:9/v1")
    status, headers, _ = await get(running.port, path, header, host=host)
    assert status == refused
    assert not [name for name in headers if name.startswith("access-control-")]


async def test_the_data_needs_the_key_and_is_for_its_owner(start: Start, client_key: str) -> None:
    running = await start("http://127.0.0.1:9/v1", api_key="sk-upstream-secret")
    running.gateway.book.declare("", "a-group", 2, None, {})
    assert (await get(running.port, DATA))[0] == 401
    assert (await get(running.port, DATA, "Authorization: Bearer sr-another-key-here"))[0] == 401
    status, headers, body = await get(running.port, DATA, f"Authorization: Bearer {client_key}")
    assert status == 200
    assert [group["group"] for group in json.loads(body)["groups"]] == ["a-group"]
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert "sk-upstream-secret" not in body


@pytest.mark.parametrize("path", ["/", DATA])
async def test_looking_is_all_one_can_do(start: Start, path: str) -> None:
    running = await start("http://127.0.0.1:9/v1")
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
    )
    writer.write(f"{head}Connection: close\r\n\r\n{{}}".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 405")
