"""A scripted web on loopback: many hosts, one server, and an answer for everything that goes wrong out there.

A script is a function from a request to an answer. The server counts what it was asked for, and by how many at a
time, so that tests compare totals instead of times.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

LOOPBACK = ["127.0.0.0/8"]


@dataclass(frozen=True)
class Request:
    """A request as the server got it."""

    host: str
    path: str
    number: int
    """How often this host was asked for this path before."""
    headers: Mapping[str, str]


@dataclass
class Answer:
    """What the server sends."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] | list[tuple[str, str]] = field(default_factory=dict)
    way: str = "whole"
    """`whole`, `stall` (nothing), `drip` (a byte now and then), `endless` (zeros behind it), `cut` (before the end),
    `reset`, `pieces` (a byte, and the rest), `hang` (all but the end, and then nothing)."""
    delay: float = 0.0
    """Seconds before the answer begins."""
    waits: asyncio.Event | None = None
    """An event before which the answer does not begin."""


Script = Callable[[Request], Answer]
NOT_HERE = Answer(status=404)


@dataclass
class Web:
    """A running server, and what it has seen."""

    port: int
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Host and path of each request, in order."""
    agents: set[str] = field(default_factory=set)
    most: Counter[str] = field(default_factory=Counter)
    """The largest number of requests at a time, by host."""
    early: list[str] = field(default_factory=list)
    """Hosts that were asked before the time that their `Retry-After` named."""
    connections: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    """How many bytes of endless answers were sent, by path."""

    def url(self, host: str, path: str, scheme: str = "http") -> str:
        """Return a URL of this server."""
        return f"{scheme}://{host}:{self.port}{path}"

    def count(self, path: str = "", host: str = "") -> int:
        """Return the number of requests, of those whose path and host begin like this."""
        return sum(1 for at, what in self.requests if at.startswith(host) and what.startswith(path))

    def pictures(self) -> Counter[tuple[str, str]]:
        """Return how often each URL was asked for, besides the rules of sites."""
        return Counter(
            each for each in self.requests if each[1] not in ("/robots.txt", "/.well-known/tdmrep.json")
        )


def hosts(*names: str) -> dict[str, str]:
    """Return the addresses of hosts, for the option of the same name."""
    return dict.fromkeys(names, "127.0.0.1")


@contextlib.contextmanager
def serving(
    script: Script, context: ssl.SSLContext | None = None, address: str = "127.0.0.1"
) -> Iterator[Web]:
    """Run a server in a thread, at a port of its own."""
    loop = asyncio.new_event_loop()
    server = _Server(script, loop)
    ready = threading.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(server.start(context, address))
        ready.set()
        loop.run_forever()
        loop.run_until_complete(server.stop())
        loop.close()

    thread = threading.Thread(target=run, name="web", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield server.web
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


class _Server:
    def __init__(self, script: Script, loop: asyncio.AbstractEventLoop) -> None:
        self._script, self._loop = script, loop
        self._seen: Counter[tuple[str, str]] = Counter()
        self._active: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.web = Web(0)

    async def start(self, context: ssl.SSLContext | None, address: str) -> None:
        self._server = await asyncio.start_server(self._serve, address, 0, ssl=context, backlog=1024)
        self.web.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.web.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        host, path = headers["host"].partition(":")[0], first.split(" ")[1]
        request = Request(host, path, self._seen[host, path], headers)
        self._seen[host, path] += 1
        self.web.requests.append((host, path))
        self.web.agents.add(headers.get("user-agent", ""))
        if self._loop.time() < self._not_before.get(host, 0.0):
            self.web.early.append(host)
        self._active[host] += 1
        self.web.most[host] = max(self.web.most[host], self._active[host])
        try:
            answer = self._script(request)
            items = answer.headers if isinstance(answer.headers, list) else list(answer.headers.items())
            for name, value in items:
                if name.lower() == "retry-after" and value.isdigit():
                    self._not_before[host] = self._loop.time() + int(value)
            return await self._send(writer, answer, items, path)
        finally:
            self._active[host] -= 1

    async def _send(
        self, writer: asyncio.StreamWriter, answer: Answer, items: list[tuple[str, str]], path: str
    ) -> bool:
        if answer.waits is not None:
            await answer.waits.wait()
        await asyncio.sleep(answer.delay)
        if answer.way == "stall":
            await asyncio.sleep(10_000)
        if answer.way == "reset":
            writer.transport.abort()
            return False
        length = len(answer.body) + (1000 if answer.way in ("cut", "hang") else 0)
        head = [f"HTTP/1.1 {answer.status} Scripted", *(f"{name}: {value}" for name, value in items)]
        if answer.way != "endless":
            head.append(f"Content-Length: {length}")
        writer.write("\r\n".join([*head, "", ""]).encode("latin-1"))
        if answer.way == "drip":
            for at in range(len(answer.body)):
                writer.write(answer.body[at : at + 1])
                await writer.drain()
                await asyncio.sleep(0.05)
        elif answer.way == "endless":
            writer.write(answer.body)
            while True:
                writer.write(bytes(1 << 16))
                self.web.sent[path] += 1 << 16
                await writer.drain()
        elif answer.way == "pieces":
            writer.write(answer.body[:1])
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.write(answer.body[1:])
        else:
            writer.write(answer.body)
        await writer.drain()
        if answer.way == "hang":
            await asyncio.sleep(10_000)
        return answer.way in ("whole", "pieces")


@lru_cache(maxsize=4096)
def picture(number: int = 0, width: int = 64, height: int = 48, format: str = "JPEG", **more: Any) -> bytes:
    """Return an image file that looks a little like a photo, and different for each number."""
    random = np.random.default_rng(number)
    small = random.integers(0, 256, (6, 8, 3), np.uint8)
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    image.save(stream, format, **({"quality": 90} if format == "JPEG" else {}), **more)
    return stream.getvalue()
