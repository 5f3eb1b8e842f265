"""docs/cli.md is what the program says about itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from typer.main import get_command

from tarmac.cli import app
from tarmac.cli.reference import reference

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == reference(), "run make docs"


def test_every_verb_and_flag_is_in_it():
    text = reference()
    for name, verb in get_command(app).commands.items():
        section = text[text.index(f"## tarmac {name}") :]
        section = section[: section.find("\n## ", 5)]
        commands = getattr(verb, "commands", {name: verb})
        for parameter in (each for command in commands.values() for each in command.params):
            if parameter.param_type_name == "option" and parameter.name != "help" and len(commands) == 1:
                assert all(f"`{flag}`" in section for flag in parameter.opts), parameter.opts


def test_names_of_choices_and_defaults():
    text = reference()
    assert r"| `--missing` `error\|skip` |" in text
    assert re.search(r"\| `-j`, `--jobs` N \|.*Default: the number of cores\.", text)
    assert re.search(r"\| `--seed` N \|.*Default: `0`\.", text)


def test_it_can_be_printed():
    done = subprocess.run([sys.executable, "-m", "tarmac.cli.reference"], capture_output=True, text=True)
    assert done.stdout == reference()
