"""What verbs print: a line of text or of JSON, in which nothing of the data acts on the terminal."""

from __future__ import annotations

import json
from typing import Any

import click

from tarmac.display import redact, visible

__all__ = ["json_line", "say", "say_json"]


def say(line: str, *, err: bool = False) -> None:
    """Print one line. On standard error, where messages go, even what only looks like a secret is hidden."""
    click.echo(visible(redact(line, commands=False) if err else line, keep="\t"), err=err)


def say_json(value: Any, *, err: bool = False) -> None:
    """Print an object as one line of JSON."""
    click.echo(json_line(value), err=err)


def json_line(value: Any) -> str:
    """Write JSON as people read it; what does not print, or is not Unicode, becomes numbers."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)
