"""docs/cli.md is what the program prints about itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click

from cli.running import PROGRAM
from tarmac.cli import VERBS, program
from tarmac.cli.reference import reference

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == reference(), "run make docs"


def test_it_has_every_verb_and_flag():
    text = reference()
    for verb in VERBS:
        command = program.get_command(click.Context(program), verb)
        for name, each in getattr(command, "commands", {"": command}).items():
            section = text[text.index(f"## tarmac {verb} {name}".rstrip() + "\n") :].split("\n## ")[0]
            for option in (param for param in each.params if isinstance(param, click.Option)):
                assert all(flag in section for flag in option.opts), option.opts


def test_it_can_be_printed():
    done = subprocess.run(
        [PROGRAM[0], "-m", "tarmac.cli.reference"], capture_output=True, text=True, check=True
    )
    assert done.stdout == reference()
