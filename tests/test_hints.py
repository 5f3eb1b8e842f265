"""Messages, hints and docstrings name only commands, flags and arguments that exist."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import tarmac
import tarmac.webdataset as wds
from tarmac import codecs, errors, jobs, storage
from tarmac.cli import VERBS, program
from tarmac.tools import cache
from tarmac.tools import jobs as cluster_jobs

SOURCES = {
    path: ast.parse(path.read_text())
    for path in Path(tarmac.__file__).parent.rglob("*.py")
    if "compat" not in path.parts
}
CONTEXT = click.Context(program)
OF_OTHERS = {
    "--shm-size",
    "--hard-dereference",
    "--profile",
    "--max-",
    "--account",
    "--parsable",
    "--oneliner",
}
"""Flags of docker, tar, aws and Slurm, and the beginning of several."""
PROSE = {"and", "is", "knows", "must", "on", "or", "raises", "reads", "started", "that", "use", "writes"}
"""What follows the name of the library in a sentence."""
SPEC_KEYS = {"resample", "rest"}
"""A key of shardspecs, which are files, and a name of a split."""


def commands(name: str) -> list[click.Command]:
    command = program.get_command(CONTEXT, name)
    if isinstance(command, click.Group):
        return [command.commands[each] for each in command.list_commands(CONTEXT)]
    assert command is not None
    return [command]


FLAGS = {
    verb: {
        flag
        for command in commands(verb)
        for param in command.get_params(CONTEXT)
        for flag in (*param.opts, *param.secondary_opts)
    }
    for verb in VERBS
}


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the strings below a node; those with values have braces in their place."""
    if isinstance(tree, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in tree.values)
        return
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        yield tree.value
    for child in ast.iter_child_nodes(tree):
        yield from texts(child)


def test_commands_and_flags_exist():
    everywhere = {flag for flags in FLAGS.values() for flag in flags} | {"--version"} | OF_OTHERS
    checked = 0
    for path, tree in SOURCES.items():
        for text in texts(tree):
            for match in re.finditer(r"(?<![\w.-])tarmac ([a-z]+)", text):
                assert match[1] in FLAGS.keys() | PROSE, f"{path}: {text}"
            for match in re.finditer(r"(?<![\w-])--[a-z][a-z-]*", text):
                before = [
                    verb for verb in re.findall(r"\btarmac ([a-z]+)", text[: match.start()]) if verb in FLAGS
                ]
                known = FLAGS[before[-1]] if before else everywhere
                assert match[0] in known, f"{path}: {text}"
                checked += bool(before)
    assert checked > 20


def arguments() -> set[str]:
    """Return the names of public objects, of their arguments and of their attributes."""
    names: set[str] = set()
    for module in (tarmac, wds, cache, cluster_jobs, codecs, jobs, storage):
        for name in dir(module):
            value = getattr(module, name)
            names |= {name} | parameters(value)
            for attribute in dir(value) if inspect.isclass(value) else ():
                names |= {attribute} | parameters(getattr(value, attribute, None))
    return names


def parameters(value: Any) -> set[str]:
    try:
        return set(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return set()


def messages(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of errors, warnings and hints."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
            raised = node.args if hasattr(errors, called) or called == "warn" else []
            hints = [keyword.value for keyword in node.keywords if keyword.arg == "hint"]
            yield from (text for value in [*raised, *hints] for text in texts(value))
        elif isinstance(node, ast.Assign):
            target = getattr(node.targets[0], "attr", None) or getattr(node.targets[0], "id", "")
            if target in ("hint", "what"):
                yield from texts(node.value)


def test_arguments_exist():
    known = arguments() | SPEC_KEYS
    checked = 0
    for path, tree in SOURCES.items():
        for text in messages(tree):
            for name in re.findall(r"`([A-Za-z_]\w*)[`(=]|\b([a-z_]+)=", text):
                assert set(name) - {""} <= known, f"{path}: {text}"
                checked += 1
    assert checked > 100
