"""Fetch the URLs of a unit: each has exactly one result, whatever its host does.

Every dispatch is at most one request. A site is asked for its rules first, alone; a redirect goes to the queue of its
new host; a failure that may pass is repeated later.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from tarmac.downloading.network.board import Board
from tarmac.downloading.network.consent import MAX_RULES, Sites
from tarmac.downloading.network.fetch import Address, Fetcher, InvalidUrl, Reply, parse_url
from tarmac.downloading.network.hosts import NEVER, Hosts
from tarmac.downloading.network.resolver import AddressPolicy, Resolver
from tarmac.downloading.network.schedule import Schedule, Tail
from tarmac.downloading.network.settings import Web
from tarmac.limits import MIB

_LONGEST_NAP = 1.0
_OTHERS_ASK = 0.1
"""Seconds until another look at what another process is asking for."""
_RULES_REDIRECTS = 5
HELD = 64 * MIB
"""Bytes of answers that are expected in memory at a time: of large pictures, fewer are asked for at once."""
_FIRST_SIZE, _WEIGHT, _SLOW = 4 * MIB, 1 / 8, 2.0
"""The size that is expected at first, the weight of each answer in it, and seconds after which nothing is expected."""
_MUCH_LONGER, _LATE_SHARE = 4, 0.03
"""How many times the usual time a late request takes, and which part of all places and of the memory they may hold."""


@dataclass
class Known:
    """What a worker has learnt about hosts; it outlasts a unit."""

    web: Web
    usual: float = _FIRST_SIZE
    """The usual size of an answer."""
    usual_seconds: float = 30.0
    """How long an answer usually takes; at first, nothing counts as long."""

    def __post_init__(self) -> None:
        self.hosts = Hosts(backoff=self.web.backoff)
        self.sites = Sites(self.web)
        self.names: OrderedDict[str, tuple[float, list[str]]] = OrderedDict()

    def limit(self, workers: int) -> None:
        """Keep the limits of hosts as one of several workers."""
        share = self.web.for_one_of(workers)
        self.hosts.concurrency, self.hosts.rate = share.host_concurrency or 1, share.host_rate

    def forgive(self) -> None:
        """Give hosts that failed, and names without an address, another chance."""
        self.hosts.forgive()
        for name in [name for name, (_, addresses) in self.names.items() if not addresses]:
            del self.names[name]


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
    arrived: bool = False
    """Whether its result is known, so that nothing waits for the network."""
    received: int = 0
    """Bytes of the answer that are in memory."""
    asked_at: float = 0.0

    def note(self, size: int) -> None:
        """Take note of how many bytes have arrived."""
        self.received = size

    def expected(self, usual: float, now: float) -> float:
        """Return how many bytes of its answer will soon be in memory."""
        return self.received if self.arrived or now - self.asked_at > _SLOW else max(self.received, usual)


Turn = Literal["only", "first", "last"]
"""Whether this is the first of two turns: then what takes too long, the last rows of a unit and answers that time out,
is left to the last turn at the end of the run. Only if this is the only turn, timeouts are repeated at once."""
Handle = Callable[[Visit, Reply], Awaitable[None]]


@dataclass
class Crawl:
    """Fetch URLs, and hand over one reply for each."""

    web: Web
    known: Known
    handle: Handle
    largest: Callable[[bytes], float]
    """The size beyond which a file that begins like this is not read, if its size is unknown; 0: it is not wanted."""
    patience: float
    turn: Turn = "only"
    board: Board | None = None
    """Other processes of this machine, if there are any."""
    clock: Callable[[], float] = time.monotonic
    _rules: dict[str, dict[str, str]] = field(default_factory=dict)
    """The files of sites that were not asked for all of them yet."""

    async def run(self, rows: Iterable[tuple[int, object]], seconds: float | None = None) -> None:
        """Fetch all URLs. After `seconds`, those without a result get the status `deadline`."""
        self._schedule: Schedule[Visit] = Schedule(self.known.hosts, self.patience)
        self._wake = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], Visit] = {}
        self._ends: dict[str, asyncio.Event] = {}
        resolver = Resolver(AddressPolicy(self.web), self.clock, self.known.names)
        self._fetcher = Fetcher(self.web, resolver, self.largest)
        try:
            total = 0
            for row, url in rows:
                total += 1
                try:
                    address = parse_url(url)
                except InvalidUrl as error:
                    await self.handle(Visit(row, Address("", "", "")), Reply("invalid_url", str(error)))
                else:
                    self._schedule.add(address.host, Visit(row, address))
            began = self.clock()
            await self._run(NEVER if seconds is None else began + seconds, Tail(total, began))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._fetcher.close()
            for origin in self._rules:
                self._give_up(origin)

    async def _run(self, end: float, tail: Tail) -> None:
        looked = self.clock()
        while True:
            now = self.clock()
            if (stopped := now - looked - _LONGEST_NAP) > 0:  # this process, and not those that it asked
                for visit in self._tasks.values():
                    visit.asked_at += stopped
            looked = now
            if now >= end:
                await self._stop("the time for the shard was over.")
                return
            self._wake.clear()
            for task in [task for task in self._tasks if task.done()]:
                visit = self._tasks.pop(task)
                if task.cancelled():
                    await self.handle(
                        visit, Reply("deadline", "it took much longer than others, which waited.")
                    )
                else:
                    task.result()  # an error of this program ends the unit
            await self._dispatch(now)
            if self._wake.is_set():
                continue
            if not self._tasks and not len(self._schedule):
                return
            tail_ends = self._tail_ends(tail, now) if self.turn == "first" else NEVER
            if now >= tail_ends:
                await self._stop("it took longer than nearly all others of the shard.")
                return
            until = min(self._schedule.next_time(), end, tail_ends)
            nap = min(max(until - self.clock(), 0.0), _LONGEST_NAP)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(nap):
                    await self._wake.wait()

    def _tail_ends(self, tail: Tail, now: float) -> float:
        """Return when to stop waiting for the last rows: NEVER while a host still answers some of them."""
        waiting = sum(not visit.arrived for visit in self._tasks.values()) + len(self._schedule)
        return tail.ends(0 < waiting <= tail.most and not self._schedule.moves(now), now)

    async def _dispatch(self, now: float) -> None:
        """Start what may start."""
        hosts, sites, usual = self.known.hosts, self.known.sites, self.known.usual
        held = sum(visit.expected(usual, now) for visit in self._tasks.values())
        if len(self._schedule) and (len(self._tasks) >= self.web.concurrency or held >= HELD):
            self._make_room(now)
        while len(self._tasks) < self.web.concurrency and (held < HELD or not self._tasks):
            taken = self._schedule.take(now)
            if taken is None:
                break
            host, visit = taken
            if self.board is not None and (pause := self._told_to_wait(self.board, host, visit)) > 0:
                hosts.wait(host, now + pause)
                self._schedule.add(host, visit, first=True)
                continue
            rules = sites.get(visit.address.origin) if sites.files else None
            refusal = "" if rules is None else rules.refusal(visit.address.url, self.web)
            if refusal:
                await self.handle(visit, Reply("opted_out", refusal))
                continue
            asks = rules is None and bool(sites.files)
            visit.asked_at, visit.received = now, 0
            held += usual
            hosts.start(host, now, exclusive=asks)
            task = asyncio.ensure_future(self._ask(host, visit) if asks else self._fetch(host, visit))
            self._tasks[task] = visit
            task.add_done_callback(lambda _: self._wake.set())
        for visit in self._schedule.given_up():
            why = visit.last.error if visit.last is not None else "the host answers no requests at present."
            http = visit.last.http if visit.last is not None else 0
            await self.handle(visit, Reply("host_down", why, http))

    def _make_room(self, now: float) -> None:
        """Leave the oldest of the late requests to the end of the run, if they hold too many places or too much memory.

        A request is late if it takes much longer than others do, and than others of its host.
        """
        if self.turn != "first":
            return
        late = [(task, visit) for task, visit in self._tasks.items() if self._is_late(visit, now)]
        places, held = len(late), sum(visit.received for _, visit in late)
        for task, visit in late:
            if places <= _LATE_SHARE * self.web.concurrency and held <= _LATE_SHARE * HELD:
                return
            task.cancel()
            places, held = places - 1, held - visit.received

    def _is_late(self, visit: Visit, now: float) -> bool:
        usual = max(self.known.usual_seconds, self.known.hosts.of(visit.address.host).usual_seconds)
        return not visit.arrived and now - visit.asked_at > max(_SLOW, _MUCH_LONGER * usual)

    def _told_to_wait(self, board: Board, host: str, visit: Visit) -> float:
        """Return for how long other processes have a host wait; take the rules of its site from them."""
        origin, sites = visit.address.origin, self.known.sites
        pause = board.paused(host)
        if pause <= 0 and sites.files and sites.get(origin) is None:
            files = board.rules(origin)
            if files is not None:
                sites.put(origin, files)
            elif not board.may_ask(origin):
                return _OTHERS_ASK
        return pause

    async def _stop(self, why: str) -> None:
        """Give up everything that waits for the network."""
        await asyncio.sleep(0)  # those that were just started note their end only if they have begun
        tasks, self._tasks = self._tasks, {}
        for task, visit in tasks.items():
            if not visit.arrived:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = [visit for task, visit in tasks.items() if task.cancelled()]
        for visit in [*left, *self._schedule.drain()]:
            await self.handle(visit, Reply("deadline", why))
        for task in tasks:
            if not task.cancelled():
                task.result()

    def _ended(self, host: str, reply: Reply, *, exclusive: bool = False) -> None:
        """Note the end of a request, and let others start."""
        after = reply.retry_after
        if after is None and reply.http == 429:
            after = self.web.backoff
        now, answered = self.clock(), reply.answered
        self.known.hosts.finish(host, now, answered=answered, retry_after=after, exclusive=exclusive)
        if self.board is not None and after is not None:
            self.board.pause(host, after)
        if (event := self._ends.pop(host, None)) is not None:
            event.set()
        self._schedule.ended(host)
        self._wake.set()

    async def _fetch(self, host: str, visit: Visit) -> None:
        reply = Reply("deadline")
        try:
            seconds = max(self.web.timeout - visit.seconds, 0.001)
            visit.requests += 1
            most = self.web.max_file_bytes
            reply = await self._fetcher.get(visit.address.url, seconds=seconds, most=most, note=visit.note)
        finally:
            self._ended(host, reply)
        visit.seconds += reply.seconds
        visit.received = len(reply.body)
        self.known.usual += _WEIGHT * (visit.received - self.known.usual)
        if reply.answered:
            for usual in (self.known, self.known.hosts.of(host)):
                weight = _WEIGHT if usual.usual_seconds else 1.0  # the first answer of a host
                usual.usual_seconds += weight * (reply.seconds - usual.usual_seconds)
        if reply.status == "redirect":
            reply = self._redirect(visit, reply)
            if reply.status == "redirect":
                return
        await self._settle(host, visit, reply)

    async def _settle(self, host: str, visit: Visit, reply: Reply) -> None:
        """Repeat later what may pass, and hand over everything else."""
        slow = self.turn != "only" and reply.status == "timeout"
        if reply.transient and not slow and visit.attempts < self.web.url_retries:
            visit.last = reply
            pause = self.web.backoff * 2**visit.attempts * _jitter(visit.row)
            visit.attempts += 1
            visit.seconds = 0.0
            self._schedule.add_later(host, visit, self.clock() + pause)
        else:
            visit.arrived = True
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
            reply = await self._read_rules(host, f"{origin}{name}")
        finally:
            self._ended(host, reply, exclusive=True)
        if reply.status == "rules" or (reply.transient and reply.status != "http"):
            self._give_up(origin)
            await self._settle(host, visit, reply)
            return
        texts[name] = reply.body.decode("utf-8", "replace")
        if all(each in texts for each in self.known.sites.files):
            self.known.sites.put(origin, texts)
            if self.board is not None:
                self.board.publish(origin, texts)
            del self._rules[origin]
        self._schedule.add(host, visit, first=True)
        self._wake.set()

    def _give_up(self, origin: str) -> None:
        """Let other processes ask for the rules of a site."""
        if self.board is not None:
            self.board.give_up(origin)

    async def _read_rules(self, host: str, url: str) -> Reply:
        """Return a file of rules; empty if the site has none. If that is unknown, nothing may be fetched."""
        for _ in range(_RULES_REDIRECTS + 1):
            reply = await self._get_rules(host, url)
            if reply.status != "redirect":
                break
            url = reply.location
        if reply.status == "http" and reply.transient:
            name = url.rpartition("/")[2].partition("?")[0][:40]
            return Reply("rules", f"{name}: {reply.error}", reply.http, retry_after=reply.retry_after)
        return reply

    async def _get_rules(self, asked: str, url: str) -> Reply:
        """Send a request for rules, within the limits of another host if a redirect led there."""
        try:
            host = parse_url(url).host
        except InvalidUrl as error:
            return Reply("invalid_url", str(error))
        if host != asked and not await self._take_turn(host):
            return Reply("rules", f"they are on {host}, which answers no requests at present.")
        reply = Reply("deadline")
        try:
            reply = await self._fetcher.get(url, seconds=self.web.timeout, most=MAX_RULES, rules=True)
        finally:
            if host != asked:
                self._ended(host, reply)
        return reply

    async def _take_turn(self, host: str) -> bool:
        """Wait until a host may get a request that is not scheduled, and note its start; give up after a while."""
        hosts, end = self.known.hosts, self.clock() + self.web.timeout
        while (ready := hosts.ready_at(host, now := self.clock())) > now:
            if now >= end or hosts.blocked(host, now) > self.patience:
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(ready - now, _LONGEST_NAP)):
                    await self._ends.setdefault(host, asyncio.Event()).wait()
        hosts.start(host, now)
        return True


def _jitter(row: int) -> float:
    """Return a factor from 0.75 to 1.25 that spreads repetitions, the same in every run."""
    return 0.75 + zlib.crc32(b"%d" % row) / 2**33
