"""Decide when a host may get the next request: its concurrency, its rate, its `Retry-After`, and whether it answers.

It is a state machine without a clock of its own, so that it can be tested without waiting.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

FAILURES = 5
"""Failures in a row after which a host is left alone for a while."""
COOL_DOWN, MAX_COOL_DOWN = 5.0, 600.0
"""For how long it is left alone the first time, and at most, in multiples of the backoff."""
MAX_HOSTS = 20_000
"""Hosts that are remembered, besides those that have a request or a pause."""
RECENT = 5.0
"""Seconds for which a host counts as one that answers."""
NEVER = math.inf


@dataclass(slots=True)
class Host:
    """What is known about one host."""

    active: int = 0
    """Requests that are being answered."""
    next_start: float = -NEVER
    """When the rate allows the next request."""
    retry_at: float = -NEVER
    """When `Retry-After` ends."""
    pause_ends: float = -NEVER
    """When the pause after failures ends."""
    answered_at: float = -NEVER
    """When it answered last."""
    failures: int = 0
    """Failures in a row."""
    pauses: int = 0
    """How often in a row it was left alone after failures."""
    trying: bool = False
    """Whether one request finds out if it answers again."""
    usual_seconds: float = 0.0
    """How long its answers usually take."""
    exclusive: bool = False
    """Whether one request must be answered before others start: that for its robots.txt."""


@dataclass
class Hosts:
    """The state of all hosts."""

    concurrency: int = 8
    rate: float | None = None
    backoff: float = 1.0
    known: OrderedDict[str, Host] = field(default_factory=OrderedDict)
    _most: int = field(default_factory=lambda: MAX_HOSTS)
    """How many there may be before some are forgotten."""

    def of(self, name: str) -> Host:
        """Return the state of a host."""
        host = self.known.get(name)
        if host is None:
            host = self.known[name] = Host()
        return host

    def ready_at(self, name: str, now: float) -> float:
        """Return when a host may get a request: a time until `now` is at once; NEVER is when another one ends."""
        host = self.of(name)
        most = 1 if host.exclusive or host.trying or host.failures >= FAILURES else self.concurrency
        if host.active >= most:
            return NEVER
        return max(host.next_start, host.retry_at, host.pause_ends)

    def blocked(self, name: str, now: float) -> float:
        """Return for how long a host must be left alone."""
        host = self.of(name)
        return max(max(host.retry_at, host.pause_ends) - now, 0.0)

    def answers(self, name: str, now: float) -> bool:
        """Return whether a host has answered a moment ago, or waits for its next turn."""
        host = self.of(name)
        return not self.blocked(name, now) and (host.next_start > now or now - host.answered_at <= RECENT)

    def wait(self, name: str, until: float) -> None:
        """Note that a host gets no request before a time."""
        host = self.of(name)
        host.retry_at = max(host.retry_at, until)

    def start(self, name: str, now: float, *, exclusive: bool = False) -> None:
        """Note that a request starts; with `exclusive`, no other one starts before it ends."""
        host = self.of(name)
        self.known.move_to_end(name)
        if len(self.known) > self._most:
            self._forget(now)
        host.active += 1
        host.exclusive = host.exclusive or exclusive
        host.trying = host.trying or host.failures >= FAILURES
        if self.rate is not None:
            host.next_start = now + 1 / self.rate

    def finish(
        self,
        name: str,
        now: float,
        *,
        answered: bool,
        retry_after: float | None = None,
        exclusive: bool = False,
    ) -> None:
        """Note that a request has ended: whether the host answered, when it wants the next one, how it was started."""
        host = self.of(name)
        host.active -= 1
        host.exclusive = host.exclusive and not exclusive  # one that began before may end during it
        if answered:
            host.failures = host.pauses = 0
            host.trying = False
            host.answered_at = now
        else:
            host.failures += 1
            if host.failures >= FAILURES and (host.trying or host.failures == FAILURES):
                pause = self.backoff * min(COOL_DOWN * 2 ** min(host.pauses, 30), MAX_COOL_DOWN)
                host.pause_ends = max(host.pause_ends, now + pause)
                host.pauses += 1
            host.trying = False
        if retry_after is not None:
            host.retry_at = max(host.retry_at, now + retry_after)

    def forgive(self) -> None:
        """Give hosts that failed another chance; what they asked for still counts."""
        for host in self.known.values():
            host.failures = host.pauses = 0
            host.pause_ends, host.trying = -NEVER, False

    def _forget(self, now: float) -> None:
        """Forget the hosts that were asked least recently, unless they have a request or a pause."""
        for name, host in list(self.known.items())[: -MAX_HOSTS // 2]:
            if not host.active and max(host.next_start, host.retry_at, host.pause_ends) <= now:
                del self.known[name]
        self._most = max(MAX_HOSTS, 2 * len(self.known))
