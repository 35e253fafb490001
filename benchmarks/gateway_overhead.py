"""What the gateway adds to a request on loopback, measured side by side with direct calls.

Three processes: a server that answers at once, the gateway in front of it, and this one, which sends every
request twice in turns, once straight to the server and once through the gateway, over kept connections. The
conversations grow step by step to 19 messages, half of them of 500 characters; the gate decides at step 5.
Where it enforces, groups differ and go on; the requests at the check wait for each other, so they are sent
together and not measured. Reported are the median of the whole exchange each way, the median, the lowest and
the highest tenth of the paired differences (a busy machine adds waiting to all but the lowest), and the CPU
time of the gateway process per request. Then many streams are held at once, directly and through the gateway.

    python benchmarks/gateway_overhead.py [--groups N] [--streams N] [--json]

Prints a table (or one JSON document) and exits 1 if a median difference is 1 ms or more. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from selective_rollout.integrations.gateway import Limits
from selective_rollout.integrations.gateway.upstream import Upstream
from selective_rollout.policy.endpoint import Endpoint

LIMIT_S = 1e-3
TICKS = os.sysconf("SC_CLK_TCK")
CLI = (sys.executable, "-c", "from selective_rollout.cli.main import main; main()")


@dataclass(frozen=True)
class Row:
    """One kind of request."""

    name: str
    requests: int
    direct_ms: float
    gateway_ms: float
    added_ms: float
    """Median of the paired differences."""
    added_low_ms: float
    """Their lowest tenth."""
    added_high_ms: float
    """Their highest tenth."""
    cpu_ms: float
    """CPU time of the gateway process per request."""

    @property
    def ratio(self) -> float:
        """Through the gateway over direct."""
        return self.gateway_ms / self.direct_ms


@dataclass(frozen=True)
class Kind:
    """What is sent."""

    name: str
    stream: bool = False
    grouped: bool = True
    enforced: bool = False


KINDS = (
    Kind("passed", grouped=False),
    Kind("passed, streamed", grouped=False, stream=True),
    Kind("in a group", grouped=True),
    Kind("in a group, streamed", stream=True),
    Kind("enforced", enforced=True),
    Kind("enforced, streamed", enforced=True, stream=True),
)


@contextmanager
def running(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process, and the first line it prints."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()
            process.communicate()


STEPS = 10
CHECK = 5
ROLLOUTS = 8


def body_of(kind: Kind, step: int, rollout: int) -> bytes:
    """The conversation of a rollout after `step` steps: its calls are like no other rollout's."""
    messages = [{"role": "user", "content": "word " * 100}]
    for done in range(step):
        call = {
            "id": f"c{done}",
            "type": "function",
            "function": {"name": "look", "arguments": json.dumps({"at": done, "by": rollout})},
        }
        messages.append({"role": "assistant", "content": "I look.", "tool_calls": [call]})  # type: ignore[dict-item]
        messages.append({"role": "tool", "tool_call_id": f"c{done}", "content": "word " * 100})
    return json.dumps(
        {"model": "loopback-model", "messages": messages, "max_tokens": 16, "stream": kind.stream}
    ).encode()


def headers_of(kind: Kind, group: int, rollout: int) -> list[tuple[bytes, bytes]]:
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    if kind.grouped:
        name = kind.name.replace(" ", "").replace(",", ".").encode()
        headers += [
            (b"x-selective-rollout-group", b"%s.%d" % (name, group)),
            (b"x-selective-rollout-rollout", b"%d" % rollout),
            (b"x-selective-rollout-group-size", b"%d" % ROLLOUTS),
        ]
    return headers


def client_of(url: str) -> Upstream:
    """The gateway's own client, which is the fastest at hand, for both ways."""
    return Upstream(Endpoint(base_url=url), Limits())


async def timed(client: Upstream, body: bytes, headers: list[tuple[bytes, bytes]]) -> float:
    started = time.perf_counter()
    length = (b"content-length", b"%d" % len(body))
    async with client.send("POST", b"/v1/chat/completions", b"", [*headers, length], body) as answer:
        said = await answer.read()
    assert answer.status == 200, said
    return time.perf_counter() - started


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def compare(kind: Kind, direct: str, gateway: str, pid: int, groups: int) -> Row:
    """Rollouts of a group take turns, and each round of requests shows one step more; one group warms up."""
    straight, through = client_of(direct), client_of(gateway)
    pairs: list[tuple[float, float]] = []
    before = 0.0
    for group, step in itertools.product(range(groups + 1), range(STEPS)):
        if (group, step) == (1, 0):
            before = cpu_s(pid)
        sent = [(body_of(kind, step, i), headers_of(kind, group, i)) for i in range(ROLLOUTS)]
        if kind.enforced and step == CHECK:
            await asyncio.gather(*(timed(through, *each) for each in sent))
            continue
        for each in sent:
            pair = await timed(straight, *each), await timed(through, *each)
            if group > 0:
                pairs.append(pair)
    used = cpu_s(pid) - before
    straight.close()
    through.close()
    added = [b - a for a, b in pairs]
    tenths = quantiles(added, n=10)
    return Row(
        name=kind.name,
        requests=len(pairs),
        direct_ms=1e3 * median(a for a, _ in pairs),
        gateway_ms=1e3 * median(b for _, b in pairs),
        added_ms=1e3 * median(added),
        added_low_ms=1e3 * tenths[0],
        added_high_ms=1e3 * tenths[-1],
        cpu_ms=1e3 * used / (groups * STEPS * ROLLOUTS),
    )


async def hold_streams(url: str, streams: int) -> float:
    """Keep so many streams open at once; returns the seconds until all have ended."""
    kind = Kind("held", stream=True)
    body, client = body_of(kind, 0, 0), client_of(url)
    started = time.perf_counter()
    await asyncio.gather(
        *(timed(client, body, headers_of(kind, *divmod(i, ROLLOUTS))) for i in range(streams))
    )
    client.close()
    return time.perf_counter() - started


ids = itertools.count()  # of answers: with one id for all they would be copies, whose groups have no gate


def event(name: str, **choice: object) -> bytes:
    chunk = {"id": name, "object": "chat.completion.chunk", "choices": [{"index": 0, **choice}]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def answer_at_once(delay_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection of the server: 16 words, whole or streamed."""
    message = {"role": "assistant", "content": "word " * 16}
    usage = {"prompt_tokens": 9, "completion_tokens": 16, "total_tokens": 25}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    kind = b"HTTP/1.1 200 OK\r\ncontent-type: "
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
            name = f"r{next(ids)}"
            if b'"stream": true' not in body:
                answer = {"id": name, "object": "chat.completion", "choices": [choice], "usage": usage}
                whole = json.dumps(answer).encode()
                writer.write(kind + b"application/json\r\ncontent-length: %d\r\n\r\n" % len(whole) + whole)
                continue
            writer.write(kind + b"text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            parts = [event(name, delta={"content": "word "}) for _ in range(16)]
            for part in [*parts, event(name, delta={}, finish_reason="stop"), b"data: [DONE]\n\n"]:
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await asyncio.sleep(delay_s)
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve_answers(delay_s: float) -> None:
    server = await asyncio.start_server(partial(answer_at_once, delay_s), "127.0.0.1", 0, backlog=2048)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--groups", type=int, default=5, help="of each kind: 80 requests each way")
    parser.add_argument("--streams", type=int, default=500, help="held at once")
    parser.add_argument("--answer-at-once", type=float, metavar="DELAY", help="be the server behind it all")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    if options.answer_at_once is not None:
        asyncio.run(serve_answers(options.answer_at_once))
    server = (sys.executable, __file__, "--answer-at-once")
    with tempfile.TemporaryDirectory() as folder, running(*server, "0") as (_, direct):
        rows = []
        for mode in ("observe", "enforce"):
            gate = ("--start-step", str(CHECK), "--mode", mode, "--uncertified")
            serve = (*CLI, "serve", "--upstream", direct, *gate)
            with running(*serve, "--port", "0", "--runs", folder) as (process, line):
                gateway = line.split()[1]
                rows += [
                    asyncio.run(compare(kind, direct, gateway, process.pid, options.groups))
                    for kind in KINDS
                    if kind.enforced == (mode == "enforce")
                ]
        with running(*server, "0.05") as (_, slow):
            serve_slow = (*CLI, "serve", "--upstream", slow, "--name", "streams")
            with running(*serve_slow, "--port", "0", "--runs", folder) as (_, line):
                direct_s = asyncio.run(hold_streams(slow, options.streams))
                held_s = asyncio.run(hold_streams(line.split()[1], options.streams))
    show(rows, options.streams, direct_s, held_s, as_json=options.json)
    return int(any(row.added_ms >= 1e3 * LIMIT_S for row in rows))


def show(rows: list[Row], streams: int, direct_s: float, held_s: float, *, as_json: bool) -> None:
    if as_json:
        held = {"count": streams, "direct_s": direct_s, "gateway_s": held_s}
        print(json.dumps({"rows": [asdict(row) for row in rows], "streams": held}))
        return
    print(
        f"{'request':<22}{'direct ms':>11}{'gateway ms':>12}{'added ms':>10}{'lowest 10%':>12}"
        f"{'highest 10%':>13}{'ratio':>7}{'CPU ms':>8}"
    )
    for row in rows:
        print(
            f"{row.name:<22}{row.direct_ms:>11.2f}{row.gateway_ms:>12.2f}{row.added_ms:>10.2f}"
            f"{row.added_low_ms:>12.2f}{row.added_high_ms:>13.2f}{row.ratio:>7.2f}{row.cpu_ms:>8.2f}"
        )
    print(
        f"{streams} streams at once, all complete after {direct_s:.1f} s directly, {held_s:.1f} s through it"
    )


if __name__ == "__main__":
    sys.exit(main())
