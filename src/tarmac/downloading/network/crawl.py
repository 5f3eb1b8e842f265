"""Fetch the URLs of a unit: each has exactly one result, whatever its host does.

Every dispatch is at most one request. A site is asked for its rules first, alone; a redirect goes to the queue of its
new host; a failure that may pass is repeated later.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from tarmac.downloading.network.consent import MAX_RULES, Sites
from tarmac.downloading.network.fetch import Address, Fetcher, InvalidUrl, Reply, parse_url
from tarmac.downloading.network.hosts import NEVER, Hosts
from tarmac.downloading.network.resolver import AddressPolicy, Resolver
from tarmac.downloading.network.schedule import Schedule
from tarmac.downloading.network.settings import Web

_LONGEST_NAP = 1.0
_RULES_REDIRECTS = 5


@dataclass
class Known:
    """What a process has learnt about hosts; it outlasts a unit."""

    web: Web

    def __post_init__(self) -> None:
        self.hosts = Hosts(self.web.host_concurrency, self.web.host_rate, self.web.backoff)
        self.sites = Sites(self.web)
        self.names: OrderedDict[str, tuple[float, list[str]]] = OrderedDict()


@dataclass(slots=True)
class Visit:
    """A URL on its way: where it has led so far, and what that took."""

    row: int
    address: Address
    hops: int = 0
    attempts: int = 0
    """Requests that failed in a way that may pass."""
    requests: int = 0
    seconds: float = 0.0
    last: Reply | None = None


Handle = Callable[[Visit, Reply], Awaitable[None]]


@dataclass
class Crawl:
    """Fetch URLs, and hand over one reply for each."""

    web: Web
    known: Known
    handle: Handle
    patience: float
    clock: Callable[[], float] = time.monotonic
    _rules: dict[str, dict[str, str]] = field(default_factory=dict)
    """The files of sites that were not asked for all of them yet."""

    async def run(self, rows: Iterable[tuple[int, object]], seconds: float | None = None) -> None:
        """Fetch all URLs. After `seconds`, those without a result get the status `deadline`."""
        self._schedule: Schedule[Visit] = Schedule(self.known.hosts, self.patience)
        self._wake = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], Visit] = {}
        resolver = Resolver(AddressPolicy(self.web), self.clock, self.known.names)
        self._fetcher = Fetcher(self.web, resolver)
        try:
            for row, url in rows:
                try:
                    address = parse_url(url)
                except InvalidUrl as error:
                    await self.handle(Visit(row, Address("", "", "")), Reply("invalid_url", str(error)))
                else:
                    self._schedule.add(address.host, Visit(row, address))
            await self._run(None if seconds is None else self.clock() + seconds)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._fetcher.close()

    async def _run(self, end: float | None) -> None:
        while True:
            now = self.clock()
            if end is not None and now >= end:
                await self._stop()
                return
            self._wake.clear()
            for task in [task for task in self._tasks if task.done()]:
                del self._tasks[task]
                task.result()  # an error of this program ends the unit
            await self._dispatch(now)
            if self._wake.is_set():
                continue
            until = min(self._schedule.next_time(), NEVER if end is None else end)
            if not self._tasks and not len(self._schedule):
                return
            nap = min(max(until - self.clock(), 0.0), _LONGEST_NAP)
            try:
                async with asyncio.timeout(nap):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _dispatch(self, now: float) -> None:
        """Start what may start."""
        hosts, sites = self.known.hosts, self.known.sites
        while len(self._tasks) < self.web.concurrency and (taken := self._schedule.take(now)) is not None:
            host, visit = taken
            rules = sites.get(visit.address.origin) if sites.files else None
            refusal = "" if rules is None else rules.refusal(visit.address.url, self.web)
            if refusal:
                await self.handle(visit, Reply("opted_out", refusal))
                continue
            asks = rules is None and bool(sites.files)
            hosts.start(host, now, exclusive=asks)
            task = asyncio.ensure_future(self._ask(host, visit) if asks else self._fetch(host, visit))
            self._tasks[task] = visit
            task.add_done_callback(lambda _: self._wake.set())
        for visit in self._schedule.given_up():
            why = visit.last.error if visit.last is not None else "the host answers no requests at present."
            http = visit.last.http if visit.last is not None else 0
            await self.handle(visit, Reply("host_down", why, http))

    async def _stop(self) -> None:
        """Give up everything that is left."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = [visit for task, visit in tasks.items() if task.cancelled()]
        for visit in [*left, *self._schedule.drain()]:
            await self.handle(visit, Reply("deadline", "the time for the shard was over."))
        for task in tasks:
            if not task.cancelled():
                task.result()

    def _ended(self, host: str, reply: Reply) -> None:
        """Note the end of a request, and let others start."""
        after = reply.retry_after
        if after is None and reply.http == 429:
            after = self.web.backoff
        self.known.hosts.finish(host, self.clock(), answered=reply.answered, retry_after=after)
        self._schedule.ended(host)
        self._wake.set()

    async def _fetch(self, host: str, visit: Visit) -> None:
        reply = Reply("deadline")
        try:
            seconds = max(self.web.timeout - visit.seconds, 0.001)
            visit.requests += 1
            reply = await self._fetcher.get(visit.address.url, seconds=seconds, most=self.web.max_file_bytes)
        finally:
            self._ended(host, reply)
        visit.seconds += reply.seconds
        if reply.status == "redirect":
            reply = self._redirect(visit, reply)
            if reply.status == "redirect":
                return
        await self._settle(host, visit, reply)

    async def _settle(self, host: str, visit: Visit, reply: Reply) -> None:
        """Repeat later what may pass, and hand over everything else."""
        if reply.transient and visit.attempts < self.web.url_retries:
            visit.last = reply
            pause = self.web.backoff * 2**visit.attempts * _jitter(visit.row)
            visit.attempts += 1
            visit.seconds = 0.0
            self._schedule.add_later(host, visit, self.clock() + pause)
        else:
            await self.handle(visit, reply)

    def _redirect(self, visit: Visit, reply: Reply) -> Reply:
        """Send a visit to the host that a redirect names; return the reply, or why not."""
        visit.hops += 1
        if visit.hops > self.web.redirects:
            return Reply("redirects", f"more than {self.web.redirects} redirects.", reply.http)
        try:
            address = parse_url(reply.location)
        except InvalidUrl as error:
            return Reply("invalid_url", f"a redirect: {error}", reply.http)
        visit.address = address
        self._schedule.add(address.host, visit)
        return reply

    async def _ask(self, host: str, visit: Visit) -> None:
        """Ask a site for the next of its files of rules, and queue the visit again."""
        origin = visit.address.origin
        texts = self._rules.setdefault(origin, {})
        name = next((each for each in self.known.sites.files if each not in texts), "")
        reply = Reply("deadline")
        try:
            reply = await self._read_rules(f"{origin}{name}")
        finally:
            self._ended(host, reply)
        if reply.status == "rules" or (reply.transient and reply.status != "http"):
            await self._settle(host, visit, reply)
            return
        texts[name] = reply.body.decode("utf-8", "replace")
        if all(each in texts for each in self.known.sites.files):
            self.known.sites.put(origin, self._rules.pop(origin))
        self._schedule.add(host, visit, first=True)
        self._wake.set()

    async def _read_rules(self, url: str) -> Reply:
        """Return a file of rules; empty if the site has none. If that is unknown, nothing may be fetched."""
        for _ in range(_RULES_REDIRECTS + 1):
            reply = await self._fetcher.get(url, seconds=self.web.timeout, most=MAX_RULES, consent=False)
            if reply.status != "redirect":
                break
            url = reply.location
        if reply.status == "http" and reply.transient:
            name = url.rpartition("/")[2].partition("?")[0][:40]
            return Reply("rules", f"{name}: {reply.error}", reply.http, retry_after=reply.retry_after)
        return reply


def _jitter(row: int) -> float:
    """Return a factor from 0.75 to 1.25 that spreads repetitions, the same in every run."""
    return 0.75 + zlib.crc32(b"%d" % row) / 2**33
