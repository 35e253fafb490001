"""The live page in a real browser: what a person sees while groups run, and is safe from."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.integration.chromium import CHROMIUM, spawn

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.gateway import Gateway
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain, ToolCall

PATIENCE = 60.0
Start = Callable[..., Awaitable[Any]]
ENFORCE = RunConfig(mode="enforce")
EARLY = GateConfig(start_step=2)
HOSTILE = '<script>window.hit = 1</script>"><img src=x onerror="window.hit = 1">'

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@dataclass
class Browser:
    """Speaks the DevTools protocol over two pipes: JSON messages, each ended by a NUL."""

    reader: asyncio.StreamReader
    write: Callable[[bytes], int]
    events: list[dict[str, Any]] = field(default_factory=list)
    last: int = 0

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self.last += 1
        message: dict[str, Any] = {"id": self.last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self.write(json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(PATIENCE):
            while True:
                answer = json.loads((await self.reader.readuntil(b"\0"))[:-1])
                if answer.get("id") == self.last:
                    assert "error" not in answer, answer
                    return dict(answer["result"])
                self.events.append(answer)


@dataclass
class Page:
    """One tab, with everything it asked the network for and every complaint it made."""

    browser: Browser
    session: str

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self.browser.call(method, self.session, **parameters)

    async def evaluate(self, expression: str) -> Any:
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["result"].get("description", answer)
        return answer["result"].get("value")

    async def wait(self, condition: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not await self.evaluate(condition):
            assert time.monotonic() < deadline, f"never came true: {condition}\n{await self.text('body')}"
            await asyncio.sleep(0.05)

    async def text(self, selector: str) -> str:
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def texts(self, selector: str) -> list[str]:
        found = f"[...document.querySelectorAll({json.dumps(selector)})].map((n) => n.textContent)"
        return list(await self.evaluate(found))

    async def shows(self, text: str, selector: str = "body") -> None:
        await self.wait(
            f"document.querySelector({json.dumps(selector)})?.textContent.includes({json.dumps(text)})"
        )

    async def screenshot(self, name: str) -> None:
        """Keep a picture if PAGE_SHOTS names a folder."""
        if folder := os.environ.get("PAGE_SHOTS"):
            made = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
            await asyncio.to_thread(_keep, Path(folder) / name, made["data"])

    def of(self, method: str) -> list[dict[str, Any]]:
        events = self.browser.events
        return [e["params"] for e in events if e.get("sessionId") == self.session and e["method"] == method]

    def complaints(self) -> list[Any]:
        entries = [event["entry"] for event in self.of("Log.entryAdded")]
        return [*entries, *self.of("Runtime.consoleAPICalled"), *self.of("Runtime.exceptionThrown")]

    def addresses(self) -> set[str]:
        urls = [event["request"]["url"] for event in self.of("Network.requestWillBeSent")]
        return {url.split("?")[0] for url in urls if not url.startswith("data:")}


def _keep(path: Path, data: str) -> None:
    path.write_bytes(base64.b64decode(data))


@asynccontextmanager
async def browsing(profile: Path) -> AsyncIterator[Browser]:
    process = spawn(profile)
    reader = asyncio.StreamReader(limit=2**28)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(process.read, "rb")
    )
    browser = Browser(reader, lambda data: os.write(process.write, data))
    try:
        yield browser
        await browser.call("Browser.close")
    finally:
        transport.close()
        os.close(process.write)
        await asyncio.to_thread(process.reap, 20)


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    async with browsing(tmp_path / "profile") as one:
        yield one


async def open_page(
    browser: Browser, address: str, *, width: int = 1280, height: int = 900, dark: bool = False
) -> Page:
    target = (await browser.call("Target.createTarget", url="about:blank"))["targetId"]
    attached = await browser.call("Target.attachToTarget", targetId=target, flatten=True)
    page = Page(browser, attached["sessionId"])
    for domain in ("Page", "Runtime", "Network", "Log"):
        await page.call(f"{domain}.enable")
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    await page.call("Emulation.setDeviceMetricsOverride", **size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    await page.call("Emulation.setEmulatedMedia", features=[scheme])
    await page.call("Page.navigate", url=f"{address}/")
    await page.wait("(document.getElementById('lamp')?.className ?? '') !== ''")
    return page


@contextmanager
def scripted(action: Callable[[dict[str, Any], int], Reply | str]) -> Iterator[LoopbackServer]:
    """A model that answers by how many turns there were."""

    def script(request: dict[str, Any], choice: int, seed: int | None) -> Reply | str:
        return action(request, sum(message["role"] == "assistant" for message in request["messages"]))

    with LoopbackServer(ScriptedBrain(script), api_key=None) as server:
        yield server


def look(page: object, **more: object) -> Reply:
    return Reply(tool_calls=(ToolCall("look", json.dumps({"page": page, **more})),))


@dataclass
class Agent:
    """Takes one step at a time."""

    client: openai.AsyncOpenAI
    messages: list[Any] = field(default_factory=lambda: [{"role": "user", "content": "find it"}])

    async def step(self) -> str:
        tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        try:
            said = await self.client.chat.completions.create(
                model="loopback-model", messages=self.messages, tools=tools
            )
        except openai.APIStatusError as error:
            return f"{error.status_code} {error.code}"
        message = said.choices[0].message
        self.messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": "nothing"})
        return message.content or ""


Agents = Callable[..., list[Agent]]


@pytest.fixture
async def agents() -> AsyncIterator[Agents]:
    """Makes the agents of a group: `agents(root, group, size, key=...)`."""
    async with openai.AsyncOpenAI(api_key="EMPTY", max_retries=0) as client:

        def make(root: str, group: str, size: int, key: str = "EMPTY") -> list[Agent]:
            addresses = [f"{root}/g/{group}/{i}/{size}/v1" for i in range(size)]
            return [Agent(client.copy(base_url=address, api_key=key)) for address in addresses]

        yield make


async def step_all(group: list[Agent], times: int = 1) -> list[str]:
    said: list[str] = []
    for _ in range(times):
        said = list(await asyncio.gather(*(agent.step() for agent in group)))
    return said


async def test_groups_appear_and_are_decided(start: Start, browser: Browser, agents: Agents) -> None:
    with scripted(lambda request, done: look(done) if done < 4 else "Final Answer: 7") as model:
        running = await start(model.base_url, rule=EARLY)
        page = await open_page(browser, running.root)
        await page.shows("No groups yet.")
        group = agents(running.root, "task-1", 3)
        await step_all(group, 2)
        await page.shows("task-1", "#list")
        await page.shows("The gate looks at step 2", "#detail")
        await step_all(group)
        await page.shows("The gate fired at step 2. Nothing was stopped: observe mode.", "#detail")
        await page.shows("would cut at step 2", "#list")
        assert await page.texts(".numbers tbody td:nth-child(2)") == ["0.000"]
        assert await page.texts(".rollouts code") == ['look({"page":1})'] * 3
        await step_all(group, 2)
        running.sweep_after(31)
        await page.shows("measured in 1 ended group after the gate fired", "#tiles")
        spent = sum(member.completion_tokens for member in running.gateway.view().groups[0].members)
        after = running.gateway.view().groups[0].tokens_after_fire
        tiles = [text.split("\n")[:2] for text in await inner(page, "#tiles > div")]
        assert tiles[2:] == [
            ["Completion tokens", f"{spent}"],
            ["Tokens a cut would have avoided", f"{after}"],
        ]
    assert page.complaints() == []
    assert all(address.startswith(running.root) for address in page.addresses())


async def test_what_a_cut_avoided_is_unknown(start: Start, browser: Browser, agents: Agents) -> None:
    with scripted(lambda request, done: look(done) if done < 4 else "Final Answer: 7") as model:
        running = await start(model.base_url, rule=EARLY, run=ENFORCE)
        page = await open_page(browser, running.root)
        group = agents(running.root, "task-1", 2)
        assert await step_all(group, 3) == ["410 group_cut"] * 2
        await page.shows("The gate stopped this group at step 2.", "#detail")
        tiles = await inner(page, "#tiles > div")
        assert [text.split("\n")[:2] for text in tiles][3:] == [["Tokens avoided", "unknown"]]
        assert "no audits, so nobody knows" in tiles[3]
        await page.shows("1 cut, 0 audited", "#tiles")
    assert page.complaints() == []


async def test_what_models_write_stays_text(start: Start, browser: Browser, agents: Agents) -> None:
    def answer(request: dict[str, Any], done: int) -> Reply | str:
        return look(HOSTILE, more="\ud800 \u202e evil") if done < 3 else f"Final Answer: {HOSTILE}"

    with scripted(answer) as model:
        running = await start(model.base_url, rule=EARLY)
        page = await open_page(browser, running.root)
        await step_all(agents(running.root, "g-1", 2), 4)
        running.sweep_after(31)
        await page.shows(f"answer {HOSTILE}", "#detail")
        assert all(HOSTILE.split('"')[0] in text for text in await page.texts(".rollouts code"))
    assert await page.evaluate("[window.hit ?? 0, document.images.length]") == [0, 0]
    assert page.complaints() == []
    with pytest.raises(AssertionError, match="TrustedHTML"):
        await page.evaluate("document.body.innerHTML = '<b>text that turns into markup</b>'")


async def test_a_key_is_asked_for_and_stays_in_the_tab(
    start: Start, browser: Browser, agents: Agents, client_key: str
) -> None:
    with scripted(lambda request, done: look(done)) as model:
        running = await start(model.base_url, api_key="sk-upstream-secret")
        page = await open_page(browser, running.root)
        await page.shows("the gateway asks for a client key", "#link")
        assert page.addresses() == {f"{running.root}/"}
        assert await page.evaluate("document.getElementById('content').hidden") is True
        await enter_key(page, "sr-this-is-not-the-key")
        await page.shows("the gateway does not know this key", "#link")
        await step_all(agents(running.root, "mine", 2, key=client_key))
        await enter_key(page, client_key)
        await page.shows("mine", "#list")
        assert client_key not in await page.evaluate("document.documentElement.outerHTML + location.href")
        await page.call("Page.reload")
        await page.shows("mine", "#list")
    (entry,) = page.complaints()  # the browser's own, of the wrong key
    assert "401 (Unauthorized)" in entry["text"]


async def test_groups_of_other_keys_are_counted(start: Start, browser: Browser, agents: Agents) -> None:
    with scripted(lambda request, done: look(done)) as model:
        running = await start(model.base_url)
        await step_all(agents(running.root, "theirs", 2, key="sk-a-key-of-their-own"))
        page = await open_page(browser, running.root)
        await page.shows("1 group belongs to other keys", "#empty")
        assert "theirs" not in await page.text("body")
        await enter_key(page, "sk-a-key-of-their-own")
        await page.shows("theirs", "#list")
    assert page.complaints() == []


async def test_it_says_when_the_gateway_is_gone(start: Start, browser: Browser) -> None:
    running = await start("http://127.0.0.1:9/v1")
    page = await open_page(browser, running.root)
    await page.shows("live, observe mode", "#link")
    await running.stop()
    await page.shows("no answer from the gateway, trying again", "#link")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_a_thousand_groups(start: Start, browser: Browser, width: int, dark: bool) -> None:
    running = await start("http://127.0.0.1:9/v1", rule=EARLY)
    fill(running.gateway, 1000)
    page = await open_page(browser, running.root, width=width, height=900, dark=dark)
    await page.shows("1,000 of 1,000 groups", "#found")
    await page.wait("document.querySelectorAll('.row').length > 3")
    assert await page.evaluate("document.querySelectorAll('.row').length") < 40
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    await page.evaluate("document.getElementById('list').focus()")
    for key in ("End", "ArrowUp"):
        await page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    await page.shows("task-998", "#detail")
    await page.evaluate(
        "(() => { const box = document.getElementById('search'); box.value = 'TASK-77';"
        " box.dispatchEvent(new Event('input')); })()"
    )
    await page.shows("11 of 1,000 groups", "#found")
    began = time.perf_counter()
    await page.evaluate("(async () => { await fetch('selective-rollout/v1/live').then((r) => r.json()); })()")
    assert time.perf_counter() - began < PATIENCE / 2
    await page.screenshot(f"thousand-{width}-{'dark' if dark else 'light'}.png")
    assert page.complaints() == []


def fill(gateway: Gateway, groups: int) -> None:
    """Open groups of four that took zero to three steps, some alike and some not."""
    for number in range(groups):
        desk = gateway.book.declare("", f"task-{number}", 4, None, {})
        assert desk is not None
        for step in range(number % 4):
            for member in desk.members:
                action = f"look {step}" if number % 3 else f"look {member.index % (1 + number % 7)}"
                member.steps, member.last_action = step + 1, action
                desk.gate.report(member.index, action)


async def enter_key(page: Page, key: str) -> None:
    await page.evaluate(
        f"(() => {{ document.getElementById('key').value = {json.dumps(key)};"
        " document.getElementById('door-form').requestSubmit(); })()"
    )


async def inner(page: Page, selector: str) -> list[str]:
    found = f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.innerText)"
    return list(await page.evaluate(found))
