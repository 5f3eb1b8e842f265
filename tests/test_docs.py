"""Every example in the documents runs, and what they claim to print is what is printed."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tarmac import environment, errors

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?P<mark><!-- not run: .*? -->\n)?```(?P<kind>\w+)\n(?P<body>.*?)```", re.DOTALL)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # torch, on small machines
@pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")  # torchdata, about torch
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run_and_print_what_the_page_says(page, tmp_path, monkeypatch):
    """A `text` block shows the output of the block before it.

    Blocks of the README run alone, each in an empty directory. Those of other pages run from top to bottom in one.
    """
    alone = page.name == "README.md"
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    printed = ""
    for number, block in enumerate(BLOCK.finditer(page.read_text())):
        if block["mark"]:
            continue
        if alone and block["kind"] != "text":
            names = {}
            (tmp_path / str(number)).mkdir()
            monkeypatch.chdir(tmp_path / str(number))
        if block["kind"] == "python":
            printed = run_python(block["body"], names, page)
        elif block["kind"] == "bash" and alone:
            printed = run_script(block["body"])
        elif block["kind"] == "bash":
            printed = "".join(
                run_shell(line) for line in block["body"].splitlines() if line.startswith("tarmac ")
            )
        elif block["kind"] == "text":
            lines = squeezed(printed)
            for line in squeezed(block["body"]):
                assert line in lines, f"{page.name} shows what is not printed: {line}"


def run_script(body: str) -> str:
    """Run a block in bash, without lines that install or build."""
    lines = [line for line in body.splitlines() if not line.startswith(("pip ", "make "))]
    folder = Path("bin")
    folder.mkdir()
    (folder / "tarmac").write_text(f'#!/bin/sh\nexec {sys.executable} -m tarmac "$@"\n')
    (folder / "tarmac").chmod(0o755)
    script = "\n".join(["set -e", f"PATH={folder.resolve()}:$PATH", *lines])
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout


def run_python(body: str, names: dict[str, object], page: Path) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(body, str(page), "exec"), names)
    return output.getvalue()


def run_shell(line: str) -> str:
    command = [sys.executable, "-m", *shlex.split(line)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_every_environment_variable_is_documented():
    source = Path(environment.__file__).read_text()
    read = set(re.findall(r'"([A-Z][A-Z0-9_]+[A-Z0-9])"', source))
    page = (ROOT / "docs" / "environment.md").read_text()
    assert {"GOPEN_REWRITE", "RANK", "WDS_SEED"} <= read
    assert {name for name in read if f"`{name}`" not in page} == set()
    for path in (ROOT / "src" / "tarmac").rglob("*.py"):
        if path.name != "environment.py":
            assert "os.environ" not in path.read_text(), path


def test_every_error_is_documented():
    """The page lists every class in the order of the tree, with its built-in bases and the start of its docstring."""
    page = (ROOT / "docs" / "errors.md").read_text()
    cell = r" (.*?) \|"
    rows = re.findall(rf"^\| ((?:· )*)`(\w+)` \|{cell}{cell}{cell}$", page, re.MULTILINE)
    assert all(cure for *_, cure in rows)
    expected = [*described(errors.TarmacError), *described(errors.TarmacWarning)]
    assert [(len(dots) // 2, *row) for dots, *row, _ in rows] == expected


def described(kind: type, depth: int = 0) -> Iterator[tuple[int, str, str, str]]:
    """Yield the rows of a class and of those that derive from it."""
    bases = [base for base in kind.__bases__ if base.__module__ != errors.__name__ and base is not Exception]
    names = [
        base.__name__ if base.__module__ == "builtins" else f"{base.__module__}.{base.__name__}"
        for base in bases
    ]
    meaning = inspect.getdoc(kind).splitlines()[0].removesuffix(".")
    yield depth, kind.__name__, ", ".join(f"`{name}`" for name in names), meaning
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from described(each, depth + 1)


def test_every_extra_is_documented():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {*project["optional-dependencies"]} - {"quick", "test", "fuzz", "bench"}
    page = (ROOT / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == extras
    supported = [each.split(" :: ")[-1] for each in project["classifiers"] if "Python :: 3." in each]
    assert project["requires-python"] == f">={supported[0]}"
    assert f"{supported[0]} or newer" in page


def test_every_page_is_linked_from_the_readme():
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES[1:] if f"(docs/{page.name})" not in readme] == []


def test_links_between_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *PAGES]:
        for target, anchor in re.findall(r"\]\((?!http)([^)#]+)#?([^)]*)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"(?m)^#+ (.*)$", (page.parent / target).read_text())
                anchors = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
                assert anchor in anchors, f"{page.name}: {target}#{anchor}"
    assert os.path.exists(ROOT / "LICENSE")
