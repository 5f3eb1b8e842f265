"""Print lines of text and of JSON, in which control characters of the data are escaped."""

from __future__ import annotations

import json
from typing import Any

import click

from tarmac.display import redact, visible


def say(line: str, *, err: bool = False) -> None:
    """Print one line. On standard error, text that looks like a secret is hidden."""
    click.echo(visible(redact(line, commands=False) if err else line, keep="\t"), err=err)


def say_json(value: Any, *, err: bool = False) -> None:
    """Print a value as one line of JSON."""
    click.echo(json_line(value), err=err)


def json_line(value: Any) -> str:
    """Return JSON in which only unprintable characters are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)
