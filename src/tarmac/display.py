"""How text that is not ours is shown: URLs without their secrets, names without what acts on a terminal."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Mapping

__all__ = ["display_url", "holds_secret", "html_table", "identity", "redact", "visible"]

_SCHEME = re.compile(r"@?[a-zA-Z][a-zA-Z0-9+.-]*://")
_COMMAND = re.compile(r"pipe:\s*([\w./+-]*)(?![\w./+=-])")
_IN_TEXT = (
    (re.compile(r"(?<=://)[^/\n]*@"), "…@"),
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
_COMMAND_IN_TEXT = re.compile(r"(?s)\bpipe:.*")


def display_url(url: str) -> str:
    """Return a URL as it may be shown: without user info, query and fragment, of a command only its name.

    A file name is shown as it is. In names of object stores, `#` is a letter like any other.
    """
    if url.startswith("pipe:"):
        return _shown_command(url)
    match = _SCHEME.match(url)
    if match is None:
        return redact(url, commands=False)  # a file, or a pattern with URLs inside
    scheme, rest = match[0].lstrip("@").lower(), url[match.end() :]
    if scheme == "file://":
        return url
    place, question, _ = rest.partition("?")
    hidden = "?…" if question else ""
    if scheme in ("http://", "https://") and "#" in place:
        place, hidden = place.partition("#")[0], hidden or "#…"
    authority, slash, path = place.partition("/")
    host = f"…@{authority.rpartition('@')[2]}" if "@" in authority else authority
    return f"{match[0]}{host}{slash}{path}{hidden}"


def _shown_command(text: str) -> str:
    """Show the name of a command alone: its arguments and variables may hold anything."""
    match = _COMMAND.match(text)
    name = match[1] if match is not None else ""
    rest = text if match is None else text[match.end() :]
    return f"pipe:{name}{' …' if rest.strip() else ''}"


def holds_secret(url: str) -> bool:
    """Say whether a URL may hold credentials: more than is shown of it."""
    return display_url(url) != url


def identity(url: str) -> str:
    """Return a name for what is read from a URL, to be written down: it tells URLs apart and no secrets.

    That of such a name is the name itself.
    """
    shown, known = display_url(url), _IDENTITY.fullmatch(url)
    if shown == url or (known is not None and display_url(known[1]) == known[1]):
        return url
    return f"{shown} ({hashlib.sha256(url.encode(errors='surrogatepass')).hexdigest()[:16]})"


def redact(text: str, *, commands: bool = True) -> str:
    """Remove what looks like a secret from text in which URLs stand: the last net, where no URL is known.

    Where a URL is known to be one, `display_url` takes it apart instead.
    """
    if commands:
        text = _COMMAND_IN_TEXT.sub(lambda found: _shown_command(found[0]), text)
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


def visible(text: str, keep: str = "") -> str:
    """Return text in which nothing acts on a terminal or breaks a line: such letters become their numbers."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """Return a small table of names and values, for notebooks."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(visible(str(value)))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table><caption>{html.escape(title)}</caption>{cells}</table>"
