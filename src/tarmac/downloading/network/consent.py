"""Find out whether those who offer a file consent to its use in training.

Four ways to refuse are known: robots.txt, the header `X-Robots-Tag`, `Content-Signal: ai-train=no` (a header, or a line
of robots.txt), and TDMRep (a header, or /.well-known/tdmrep.json). Each has a name, by which it can be ignored.
"""

from __future__ import annotations

import json
import re
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tarmac.downloading.network.settings import Web
from tarmac.extras import import_extra
from tarmac.tools.keystore import Database

ROBOTS, TDMREP = "/robots.txt", "/.well-known/tdmrep.json"
MAX_RULES = 512 * 1024
"""Bytes of rules that are read, as RFC 9309 asks for at least 500 KiB."""
REFUSALS = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
_DIRECTIVES = REFUSALS | {
    "all", "follow", "index", "indexifembedded", "max-image-preview", "max-snippet", "max-video-preview",
    "noarchive", "nocache", "nofollow", "nosnippet", "nositelinkssearchbox", "notranslate", "unavailable_after",
}  # fmt: skip
"""Words of X-Robots-Tag that are not names of programs."""
_CACHE_KIB = 4 << 10
_PARSED, _PARSED_SITE = 2 << 20, 512
"""Characters of rules that are kept parsed, which takes some twenty bytes for each; what a site counts besides."""
_SIGNAL = re.compile(r"(?i)\s*ai-train\s*=\s*(\w+)\s*")


def refused_by_headers(headers: Mapping[str, Any], web: Web) -> str:
    """Return why a response refuses the use of its content; empty if it does not. Header names are in lower case."""
    if web.checks("x-robots-tag"):
        for value in _values(headers, "x-robots-tag"):
            if word := _robots_tag(value, web.token):
                return f"x-robots-tag: {word}"
    if web.checks("content-signal"):
        for value in _values(headers, "content-signal"):
            if _refuses_training(value):
                return "content-signal: ai-train=no"
    if web.checks("tdmrep") and any(value.strip() == "1" for value in _values(headers, "tdm-reservation")):
        return "tdmrep: tdm-reservation: 1"
    return ""


def _values(headers: Mapping[str, Any], name: str) -> Iterable[str]:
    every = getattr(headers, "getall", None)
    if every is not None:
        values: list[str] = every(name, [])
        return values
    return [headers[name]] if name in headers else []


def _robots_tag(value: str, token: str) -> str:
    """Return the directive that refuses; those behind the name of another program do not apply."""
    applies = True
    for part in value.split(","):
        words = part.strip().lower()
        name, colon, rest = (each.strip() for each in words.partition(":"))
        if colon and name not in _DIRECTIVES:
            applies, name = name in (token, "*"), rest.partition(":")[0].strip()
        if applies and name in REFUSALS:
            return name
    return ""


def _refuses_training(signals: str) -> bool:
    return any(match and match[1].lower() == "no" for match in map(_SIGNAL.fullmatch, signals.split(",")))


@dataclass(frozen=True)
class Rules:
    """What a site says about its URLs, in robots.txt and tdmrep.json."""

    robots: Any = None
    """Rules as protego reads them; None allows everything."""
    signals: tuple[tuple[str, bool], ...] = ()
    """Paths, and whether their use in training is refused."""
    reservations: tuple[tuple[str, bool], ...] = ()

    def refusal(self, url: str, web: Web) -> str:
        """Return why a URL must not be fetched; empty if it may be."""
        path = _path(url)
        if web.checks("robots") and self.robots is not None and not self.robots.can_fetch(url, web.token):
            return "robots: disallowed"
        if web.checks("content-signal") and _applies(self.signals, path):
            return "content-signal: ai-train=no in robots.txt"
        if web.checks("tdmrep") and _applies(self.reservations, path):
            return "tdmrep: reserved in tdmrep.json"
        return ""


def _path(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _applies(rules: Iterable[tuple[str, bool]], path: str) -> bool:
    """Return what the longest pattern says that matches a path; of equally long ones, any that refuses counts."""
    matching = [(len(pattern), refuses) for pattern, refuses in rules if _matches(pattern, path)]
    return max(matching, default=(0, False))[1]


def _matches(pattern: str, path: str) -> bool:
    end = "$" if pattern.endswith("$") else ""
    pieces = map(re.escape, (pattern[:-1] if end else pattern).split("*"))
    return re.match(".*".join(pieces) + end, path) is not None


def parse_rules(robots: str, reservations: str, web: Web) -> Rules:
    """Parse the two files of a site; an empty text allows everything."""
    protego = import_extra("protego", "download", "robots.txt")
    parsed = protego.Protego.parse(robots) if robots.strip() else None
    return Rules(parsed, tuple(_signals(robots, web.token)), tuple(_reservations(reservations)))


def _signals(robots: str, token: str) -> list[tuple[str, bool]]:
    """Return the signals of the group for this program, or else of that for all."""
    groups: dict[str, list[tuple[str, bool]]] = {}
    agents: list[str] = []
    in_rules = False
    for line in robots.splitlines():
        name, _, value = (part.strip() for part in line.partition("#")[0].partition(":"))
        kind = name.lower()
        if kind == "user-agent":
            agents = [*([] if in_rules else agents), value.lower().partition("/")[0]]
            in_rules = False
            for agent in agents:
                groups.setdefault(agent, [])
        elif kind:
            in_rules = True
        if kind == "content-signal":
            path, signals = (value.split(None, 1) if value.startswith("/") else ("/", value))[:2]
            if _SIGNAL.search(signals):
                for agent in agents or ["*"]:
                    groups.setdefault(agent, []).append((path, _refuses_training(signals)))
    return groups.get(token, groups.get("*", []))


def _reservations(text: str) -> list[tuple[str, bool]]:
    try:
        rules = json.loads(text) if text.strip() else []
    except (ValueError, RecursionError):
        return []
    listed = rules if isinstance(rules, list) else [rules]
    return [
        (rule["location"], str(rule.get("tdm-reservation")) == "1")
        for rule in listed
        if isinstance(rule, dict) and isinstance(rule.get("location"), str)
    ]


class Sites(Database):
    """The rules of all sites that were asked for them: their texts on disk, and those used last parsed."""

    one_thread = False

    def __init__(self, web: Web) -> None:
        super().__init__("", "rules (origin TEXT PRIMARY KEY, texts BLOB) WITHOUT ROWID")
        self.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        weakref.finalize(self, self._connection.close)
        self.web = web
        self._parsed: OrderedDict[str, tuple[Rules, int]] = OrderedDict()
        self._size = 0

    @property
    def files(self) -> list[str]:
        """The files that a site is asked for, before anything else."""
        wanted = [ROBOTS] if self.web.checks("robots") or self.web.checks("content-signal") else []
        return [*wanted, TDMREP] if self.web.checks("tdmrep") else wanted

    def get(self, origin: str) -> Rules | None:
        """Return the rules of a site; None if it was not asked yet."""
        if origin in self._parsed:
            self._parsed.move_to_end(origin)
            return self._parsed[origin][0]
        row = self.execute("SELECT texts FROM rules WHERE origin = ?", (origin,)).fetchone()
        if row is None:
            return None
        robots, _, reservations = zlib.decompress(row[0]).decode().partition("\0")
        return self._keep(origin, robots, reservations)

    def put(self, origin: str, texts: Mapping[str, str]) -> None:
        """Store what the files of a site say."""
        robots, reservations = (texts.get(name, "").replace("\0", "") for name in (ROBOTS, TDMREP))
        content = zlib.compress(f"{robots}\0{reservations}".encode(errors="replace"))
        self.execute("INSERT OR REPLACE INTO rules VALUES (?, ?)", (origin, content))
        self._keep(origin, robots, reservations)

    def _keep(self, origin: str, robots: str, reservations: str) -> Rules:
        rules = parse_rules(robots, reservations, self.web)
        size = _PARSED_SITE + len(robots) + len(reservations)
        _, before = self._parsed.pop(origin, (rules, 0))
        self._parsed[origin] = rules, size
        self._size += size - before
        while self._size > _PARSED and len(self._parsed) > 1:
            _, (_, size) = self._parsed.popitem(last=False)
            self._size -= size
        return rules
