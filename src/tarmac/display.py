"""Display untrusted text: URLs without secrets, names without control characters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

_SCHEME = re.compile(r"@?[a-zA-Z][a-zA-Z0-9+.-]*://")
_COMMAND = re.compile(r"pipe:\s*([\w./+-]*)(?![\w./+=-])")
# Without a slash, or with a password that contains one: what follows a colon is not a port.
_USER_INFO = re.compile(r"(?<=://)(?:[^/\n]*@|(?!\[)[^/\s:@]*:(?!\d+(?:[/?#]|\s|$))[^\s@]*@)")
_IN_TEXT = (
    (_USER_INFO, "…@"),
    (re.compile(r"(://[^\n?]*\?)\S+"), r"\1…"),
    (re.compile(r"(\bhttps?://[^\s#?]*#)\S+"), r"\1…"),
    (
        re.compile(
            r"(?i)\b((?:authorization:?\s+)?(?:bearer|basic|token)|authorization:?)(\s+)[^\s\"',;]{6,}"
        ),
        r"\1\2…",
    ),
)
_IDENTITY = re.compile(r"(?s)(.*) \([0-9a-f]{16}\)")
_EXAMPLES = 5
_COMMAND_IN_TEXT = re.compile(r"(?s)\bpipe:.*")


def display_url(url: str) -> str:
    """Return a URL without user info, query and fragment, and a command without its arguments.

    File names are unchanged. In the names of objects, `#` is a literal character.
    """
    if url.startswith("pipe:"):
        return _display_command(url)
    match = _SCHEME.match(url)
    if match is None:
        return redact(url, commands=False)  # a file, or a pattern that contains URLs
    scheme, rest = match[0].lstrip("@").lower(), url[match.end() :]
    if scheme == "file://":
        return url
    location, question, _ = rest.partition("?")
    hidden = "?…" if question else ""
    if scheme in ("http://", "https://") and "#" in location:
        location, hidden = location.partition("#")[0], hidden or "#…"
    authority, slash, path = location.partition("/")
    host = f"…@{authority.rpartition('@')[2]}" if "@" in authority else authority
    return _USER_INFO.sub("…@", f"{match[0]}{host}{slash}{path}") + hidden


def _display_command(text: str) -> str:
    """Return only the name of a command: its arguments and variables may contain secrets."""
    match = _COMMAND.match(text)
    name = match[1] if match is not None else ""
    rest = text if match is None else text[match.end() :]
    return f"pipe:{name}{' …' if rest.strip() else ''}"


def holds_secret(url: str) -> bool:
    """Return whether a URL may contain credentials, which `display_url` would hide."""
    return display_url(url) != url


def identity(url: str) -> str:
    """Return a unique name for a URL without its secrets, for files such as ledgers.

    The identity of an identity is itself.
    """
    shown, known = display_url(url), _IDENTITY.fullmatch(url)
    if shown == url or (known is not None and display_url(known[1]) == known[1]):
        return url
    return f"{shown} ({hashlib.sha256(url.encode(errors='surrogatepass')).hexdigest()[:16]})"


def redact(text: str, *, commands: bool = True) -> str:
    """Remove what looks like a secret from text that may contain URLs; for a URL, use `display_url`."""
    if commands:
        text = _COMMAND_IN_TEXT.sub(lambda match: _display_command(match[0]), text)
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


def visible(text: str, keep: str = "") -> str:
    """Return text in which control characters are escaped, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


def examples(names: Iterable[str]) -> str:
    """Return the first names and the number of the others."""
    ordered = sorted(names)
    more = len(ordered) - _EXAMPLES
    return ", ".join(map(repr, ordered[:_EXAMPLES])) + (f" and {more} more" if more > 0 else "")


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: `1 shard`, `2 shards`, `0 clean copies`."""
    several = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeo" else f"{noun}s"
    return f"{number} {noun if number == 1 else several}"


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Return a small table of names and values, for notebooks."""
    import html

    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(visible(str(value)))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption>{html.escape(title)}</caption>{cells}</table>"
