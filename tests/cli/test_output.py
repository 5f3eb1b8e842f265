"""Lines of text and of JSON that verbs print."""

from __future__ import annotations

import json

import pytest

from tarmac.cli.output import json_line, say, say_json


@pytest.mark.parametrize(
    "letters", ["\x1b[31m", "\n", "\x7f", "\x9b", "\u202e", "\udc9b", "\U000e0001", "é中"], ids=ascii
)
def test_json_comes_back_and_prints(letters, capsys):
    value = {letters: [letters, 1, None]}
    say_json(value)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isprintable()
    assert json.loads(line) == value
    assert ("é中" in json_line(value)) == (letters == "é中")


def test_a_line_is_a_line_and_messages_hide_what_looks_like_a_secret(capsys):
    say("key\tjpg 3\n\x1b[2J")
    say("http://h/x?sig=SECRET and \x07", err=True)
    shown = capsys.readouterr()
    assert shown.out == "key\tjpg 3\\n\\x1b[2J\n"
    assert shown.err == "http://h/x?… and \\x07\n"
