"""The report page in a real browser: what a person sees, clicks and is safe from."""

from __future__ import annotations

import base64
import json
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.chromium import CHROMIUM, spawn

from selective_rollout.analysis.prices import Prices
from selective_rollout.analysis.report.collect import ReportData, collect
from selective_rollout.analysis.report.html import Extras, render_page
from selective_rollout.analysis.report.payload import KINDS
from selective_rollout.analysis.report.population import NamedGate
from selective_rollout.analysis.report.sweep_view import sweep_view
from selective_rollout.gate.config import GateConfig
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Outcome, Usage

PATIENCE = 60.0

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


class Browser:
    """Speaks the DevTools protocol over two pipes: JSON messages, each ended by a NUL."""

    def __init__(self, profile: Path) -> None:
        self._process = spawn(profile)
        self._buffer = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._process.write, json.dumps(message).encode() + b"\0")
        wanted = self._last
        while True:
            answer = self._next()
            if answer.get("id") == wanted:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def close(self) -> None:
        try:
            self.call("Browser.close")
        finally:
            os.close(self._process.write)
            os.close(self._process.read)
            self._process.reap(timeout_s=10)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.read], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            chunk = os.read(self._process.read, 2**20)
            if not chunk:
                raise ConnectionError("the browser is gone")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))


class Page:
    """One tab showing one file, with everything it asked the network for and every complaint it made."""

    def __init__(
        self, browser: Browser, path: Path, width: int, height: int = 900, dark: bool = False
    ) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._target = target
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        begun = time.monotonic()
        self.call("Page.navigate", url=path.as_uri())
        self.wait(
            "document.readyState === 'complete' && !!document.querySelector('#detail h3, #detail:empty')"
        )
        self.seconds_to_load = time.monotonic() - begun

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"never came true: {condition}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def texts(self, selector: str) -> list[str]:
        return list(
            self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((n) => n.textContent)")
        )

    def click(self, selector: str) -> None:
        """Press the mouse where a person would."""
        x, y = self.evaluate(
            f"""(() => {{ const n = document.querySelector({json.dumps(selector)});
            n.scrollIntoView({{block: 'center'}}); const b = n.getBoundingClientRect();
            return [b.x + b.width / 2, b.y + b.height / 2]; }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def set(self, selector: str, value: object) -> None:
        """Fill a control and tell the page, as a person's input does."""
        self.evaluate(
            f"""(() => {{ const n = document.querySelector({json.dumps(selector)});
            n.value = {json.dumps(value)}; n.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"""
        )

    def live(self) -> dict[str, str]:
        names, values = self.texts("#live dt"), self.texts("#live dd")
        return dict(zip(names, values, strict=True))

    def screenshot(self, path: Path) -> None:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        image = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip={**size, "scale": 1})[
            "data"
        ]
        path.write_bytes(base64.b64decode(image))

    def requests(self) -> list[str]:
        return [event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")]

    def complaints(self) -> list[dict[str, Any]]:
        loud = [
            e for e in self._events("Runtime.consoleAPICalled") if e["params"]["type"] in ("error", "warning")
        ]
        return [*self._events("Runtime.exceptionThrown"), *self._events("Log.entryAdded"), *loud]

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def _events(self, method: str) -> list[dict[str, Any]]:
        mine = [event for event in self._browser.events if event.get("sessionId") == self._session]
        return [event for event in mine if event.get("method") == method]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    running = Browser(tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    pages: list[Page] = []

    def open_(html: str, width: int = 1280, **options: Any) -> Page:
        path = tmp_path / f"report-{len(pages)}.html"
        path.write_text(html, encoding="utf-8")
        pages.append(Page(browser, path, width, **options))
        return pages[-1]

    yield open_
    for page in pages:
        page.close()


RULE = GateConfig(start_step=4, tau=0.3)


def record(folder: Path, groups: Mapping[str, Sequence[tuple[Sequence[str], float | None]]]) -> ReportData:
    """Record groups of (actions, reward) per rollout, and collect them."""
    with Recorder(folder / "trace.jsonl", metadata={"model": "a model"}) as recorder:
        for group_id, rollouts in groups.items():
            with recorder.group(group_id, size=len(rollouts), task_id=f"task of {group_id}") as group:
                for index, (actions, reward) in enumerate(rollouts):
                    for action in actions:
                        group.step(index, action)
                    group.finish(index, reward=reward)
    return collect(
        [folder / "trace.jsonl"], [NamedGate("mine", RULE), NamedGate("later", replace(RULE, start_step=5))]
    )


def some_groups(count: int = 40) -> dict[str, list[tuple[list[str], float | None]]]:
    """Groups that open alike and part at different steps; every fifth one ends mixed."""
    groups = {}
    for i in range(count):
        rollouts: list[tuple[list[str], float | None]] = []
        for member in range(4):
            parts_at = 1 + (i * 7 + member) % 9
            actions = [f"go {k}" if k < parts_at else f"go {k} by {member % 3}" for k in range(6 + member)]
            rollouts.append((actions, float(member % 2) if i % 5 == 0 else float(i % 2)))
        groups[f"group {i:02}"] = rollouts
    return groups


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    return record(tmp_path_factory.mktemp("some"), some_groups())


def test_the_page_asks_the_network_for_nothing_and_has_no_complaints(
    open_page: Open, data: ReportData
) -> None:
    page = open_page(render_page(data))
    page.click("#list .row")
    assert [url.split(":")[0] for url in page.requests()] == ["file"]
    assert page.complaints() == []
    policy = page.evaluate("document.querySelector('meta[http-equiv=Content-Security-Policy]').content")
    assert policy.startswith("default-src 'none'")


def test_a_group_picked_shows_its_rollouts_side_by_side(open_page: Open, tmp_path: Path) -> None:
    shown = record(
        tmp_path,
        {
            "g": [(["a", "b", "c", "x"], 1.0), (["a", "b", "d"], 0.0), (["a", "b", "c", "y", "z"], 1.0)],
            "other": [(["q"], 0.0)] * 2,
        },
    )
    page = open_page(render_page(shown))
    page.set("#search", "task of g")
    page.click("#list .row")
    assert page.text("#detail h3") == "g"
    assert "All 3 rollouts act alike for 2 steps, then split 2 ways." in page.text("#detail .said")
    assert page.texts("#tree .head b") == ["rollout 0", "rollout 2", "rollout 1"]
    cells = page.evaluate(
        """[...document.querySelectorAll('#tree .cell')]
        .map((c) => [c.dataset.step, c.style.gridColumn, c.firstChild.textContent])"""
    )
    assert cells == [
        ["1", "2 / span 3", "a"],
        ["2", "2 / span 3", "b"],
        ["3", "2 / span 2", "c"],
        ["4", "2 / span 1", "x"],
        ["4", "3 / span 1", "y"],
        ["5", "3 / span 1", "z"],
        ["3", "4 / span 1", "d"],
    ]
    assert page.texts("#tree .end") == ["reward 1finished", "reward 1finished", "reward 0finished"]


def test_every_gate_marks_where_it_cuts_and_what_follows_is_dimmed(open_page: Open, tmp_path: Path) -> None:
    page = open_page(render_page(record(tmp_path, {"g": [(list("abcdef"), 0.0)] * 2})))
    assert page.texts("#tree .mark") == ["mine cuts here, after step 4", "later would cut here, after step 5"]
    dimmed = "[...document.querySelectorAll('#tree .cell.after')].map((c) => c.firstChild.textContent)"
    assert page.evaluate(dimmed) == ["e", "f"]
    page.set("#start", 5)
    assert page.evaluate(dimmed) == ["f"]
    assert page.text("#tree .check") == "5"
    page.set("#tau", 0)
    assert page.evaluate(dimmed) == []
    assert "its distance 0 is not below 0" in page.text("#detail .said")


@pytest.mark.parametrize("reward", [0.0, None], ids=["scored", "unscored"])
def test_a_cut_of_unknown_label_has_a_mark_of_its_own(
    open_page: Open, tmp_path: Path, reward: float | None
) -> None:
    page = open_page(render_page(record(tmp_path, {"g": [(list("abcdef"), 0.0), (list("abcdef"), reward)]})))
    assert ("○ cut, unknown" in page.texts("#curve-legend span")) == (reward is None)


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%"


@pytest.mark.parametrize("outcome", ["drop", "survivor"])
def test_moving_tau_and_start_step_counts_what_accounting_counts(
    open_page: Open, tmp_path: Path, outcome: Outcome
) -> None:
    record(tmp_path, some_groups())
    rule = replace(RULE, outcome=outcome)
    page = open_page(render_page(collect([tmp_path], [NamedGate("mine", rule)])))
    for tau, start in ((0.3, 4), (0.1, 4), (0.5, 2), (0.75, 7), (1.0, 3)):
        page.set("#tau", tau)
        page.set("#start", start)
        moved = NamedGate("moved", replace(rule, tau=tau, start_step=start))
        account = collect([tmp_path], [moved]).population.accounts[0]
        live = page.live()
        counts = [live[name] for name in ("cuts", "right", "wrong", "missed")]
        assert counts == [str(n) for n in (account.cuts, account.right, account.wrong, account.missed)]
        assert live["steps saved, lossless"] == percent(account.lossless.steps, account.steps)
        assert live["steps saved, lossy"] == percent(account.lossy.steps, account.steps)
        assert live["signal-bearing lost"] == percent(account.wrong, account.signal)
        assert live["efficiency"] == f"{account.efficiency:.2f}"
    page.click("#reset")
    account = collect([tmp_path], [NamedGate("mine", rule)]).population.accounts[0]
    assert page.live()["steps saved, lossless"] == percent(account.lossless.steps, account.steps)
    assert page.live()["efficiency"] == f"{account.efficiency:.2f}"


def test_filters_search_and_order_narrow_the_list(open_page: Open, data: ReportData) -> None:
    page = open_page(render_page(data))
    page.set("#show", "signal-bearing")
    assert page.text("#found") == "8 of 40 groups"
    page.set("#search", "GROUP 05")
    assert page.texts("#list .row .name") == ["group 05"]
    page.set("#search", "")
    page.set("#show", "all groups")
    page.set("#sort", "distance, far first")
    shown = [float(text) for text in page.texts("#list .row .d")]
    assert shown == sorted(shown, reverse=True)


def test_the_keyboard_is_enough(open_page: Open, data: ReportData) -> None:
    page = open_page(render_page(data))
    page.evaluate("document.getElementById('list').focus()")
    page.press("Home")
    first = page.text("#detail h3")
    page.press("ArrowDown")
    assert page.text("#detail h3") != first
    assert page.evaluate("document.querySelector('#list [aria-selected=true]').id") == page.evaluate(
        "document.getElementById('list').getAttribute('aria-activedescendant')"
    )
    page.evaluate("document.getElementById('tree').focus()")
    page.press("ArrowDown")
    page.press("ArrowDown")
    assert page.evaluate("document.querySelector('#tree .current').dataset.step") == "2"


HOSTILE = (
    "<script>window.taken = 1</script>",
    "</script><script>window.taken = 2</script>",
    "<img src=x onerror='window.taken = 3'>",
    "<!-- <script> ",
    "line\u2028separator\u2029paragraph",
    "\u202eright to left\u202c",
    "{{ 7 * 7 }}{% raw %}",
    "\x00\x1b[31m &lt;b&gt; &amp;",
)


def test_hostile_markup_stays_text(open_page: Open, tmp_path: Path) -> None:
    groups = {text: [([text, "end"], 0.0), ([text], 0.0)] for text in HOSTILE}
    page = open_page(render_page(record(tmp_path, groups)))
    assert page.evaluate("groups.map((g) => g.id)") == list(HOSTILE)
    for text in HOSTILE:
        page.evaluate(f"list.reveal(groups.find((g) => g.id === {json.dumps(text)}))")
        assert page.evaluate("document.querySelector('#tree .cell').firstChild.data") == text
        assert page.evaluate("document.querySelector('#detail h3').textContent") == text
    assert page.evaluate("window.taken") is None
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.scripts.length") == 2
    assert page.complaints() == []
    assert [url.split(":")[0] for url in page.requests()] == ["file"]


def everything(data: ReportData) -> Extras:
    """Results of all the other commands."""
    cells = [
        {"signal": signal, "step": step, "auroc": 0.5 + step / 50, "low": 0.4, "high": 0.9}
        for signal in ("distance", "observation novelty", "a signal with a rather long name")
        for step in (5, 10, 15, 20, 25, 30)
    ]
    points = [
        {"name": f"tau {i / 50}", "saved": i / 80, "loss": i / 99, "on_front": i % 2 == 0} for i in range(9)
    ]
    return Extras(
        certificate={"verdict": "certified", "alpha": 0.1, "tau": 0.1, "false_cuts": 1, "n_signal": 61},
        sweep=sweep_view({"cells": cells, "points": points, "null_95": 0.75}),
    )


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(open_page: Open, data: ReportData, width: int) -> None:
    page = open_page(render_page(data, everything(data)), width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('#tree').getBoundingClientRect().width") > 250
    assert page.complaints() == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_ways_to_stop_a_vote_stand_side_by_side(open_page: Open, tmp_path: Path, width: int) -> None:
    usage = Usage(prompt=900, completion=100, source="server")
    with Recorder(tmp_path / "trace.jsonl") as recorder:
        for i in range(12):
            with recorder.group(f"g{i}", size=5) as group:
                for member in range(5):
                    for _ in range(6 + member):
                        group.step(member, "go", usage=usage)
                    group.finish(member, answer="x" if member < 4 else f"{i}")
    gates = [NamedGate("mine", replace(RULE, outcome="survivor"))]
    shown = collect([tmp_path / "trace.jsonl"], gates, prices=Prices(prompt=1.0, completion=4.0))
    page = open_page(render_page(shown), width)
    cells = "[...document.querySelectorAll('section[aria-labelledby=votes] tr')].map((r) => r.innerText)"
    rows = [" ".join(row.split()) for row in page.evaluate(cells)]
    assert rows[0] == "groups stopped steps not generated tokens money time"
    assert rows[1] == "no gate 0 of 12 0 of 480 0 of 48,000 0 of 0.624 1.00"
    assert [row.rpartition(" ")[0].split(" (")[0] for row in rows[4:]] == [
        f"exact rule, {way} {stopping.saving.groups} {stopping.saving.steps}"
        for way, stopping in zip(
            ("all at once", "in two waves", "one at a time"),
            shown.population.answers.exact.values(),
            strict=True,
        )
    ]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast_in_light_and_dark(open_page: Open, data: ReportData, dark: bool) -> None:
    page = open_page(render_page(data), dark=dark)
    ratio = """(ink, paper) => {
        const light = (name) => {
            const hex = getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
            const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
                .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const [a, b] = [light(ink), light(paper)].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05);
    }"""
    for ink in ("ink", "soft", "accent", "wrong"):
        for paper in ("paper", "card", "wash"):
            assert page.evaluate(f"({ratio})({ink!r}, {paper!r})") >= 4.5, (ink, paper)
    for fill in KINDS:
        assert page.evaluate(f"({ratio})('paper', {fill!r})") >= 4.5, fill


def test_ten_thousand_groups_open_at_once(open_page: Open, data: ReportData) -> None:
    copies = [replace(row, id=f"{row.id} copy {i}") for i in range(250) for row in data.rows]
    trees = {copy.id: data.trees[copy.id.partition(" copy ")[0]] for copy in copies[:1000]}
    page = open_page(render_page(replace(data, rows=tuple(copies), trees=trees)))
    assert page.seconds_to_load < PATIENCE / 2
    assert page.text("#found") == "10,000 of 10,000 groups"
    assert page.evaluate("document.querySelectorAll('#list .row').length") < 60
    page.evaluate("document.getElementById('list').focus()")
    page.press("End")
    last = page.texts("#list .row .name")[-1]
    assert page.text("#detail h3") == last
    begun = time.monotonic()
    page.set("#tau", 0.5)
    assert time.monotonic() - begun < PATIENCE / 2
    assert page.complaints() == []


def test_a_group_without_its_actions_says_so(open_page: Open, data: ReportData) -> None:
    page = open_page(render_page(replace(data, trees={})))
    assert "Its actions are not embedded" in page.text("#detail")
    assert "The actions of 0 groups are embedded" in page.text("#explorer-note")


def test_a_rule_that_the_page_cannot_follow_keeps_its_own_cuts(open_page: Open, tmp_path: Path) -> None:
    record(tmp_path, some_groups(6))
    rule = GateConfig(level="char", padding="none", start_step=4, tau=0.3)
    chars = collect([tmp_path], [NamedGate("by characters", rule)])
    page = open_page(render_page(chars))
    assert page.evaluate("document.getElementById('controls').hidden")
    assert page.live()["cuts"] == str(chars.population.accounts[0].cuts)
    assert page.complaints() == []


def test_nothing_but_unscored_singletons_is_still_a_page(open_page: Open, tmp_path: Path) -> None:
    page = open_page(render_page(record(tmp_path, {"alone": [(["a"], None)], "empty": [([], None)]})))
    assert "No group has a label" in page.text("header")
    assert "Every group has fewer than two rollouts" in page.text(".caveats")
    assert page.complaints() == []
