"""The distribution `tarmac-data`: its extras, and the hints that name them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tarmac.extras import MissingExtra, import_extra

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DEVELOPMENT = {"quick", "test", "fuzz", "bench"}
DOCUMENTS = [path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")] if path.name != "CHANGELOG.md"]
# The distribution that has a library, where the names differ.
DISTRIBUTIONS = {
    "backports.zstd": "backports.zstd",
    "google_crc32c": "google-crc32c",
    "grpc": "grpcio",
    "faiss": "faiss-cpu",  # ray[client] is ray and grpcio
}


def imported_extras():
    """Yield the library and extra of every call of `import_extra` in the source."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "import_extra":
                library, extra, _ = node.args
                yield ast.literal_eval(library), ast.literal_eval(extra)


def test_hints_name_extras_that_install_the_library():
    calls = set(imported_extras())
    assert {extra for _, extra in calls} == EXTRAS.keys() - DEVELOPMENT
    for library, extra in calls:
        required = {re.split(r"[<>=;\s]", requirement)[0] for requirement in EXTRAS[extra]}
        assert DISTRIBUTIONS.get(library, library.partition(".")[0]) in required, (library, extra)


def test_documents_name_the_distribution_and_its_extras():
    for path in DOCUMENTS:
        for name, extras in re.findall(
            r"pip install[^\n`]*?[\"' ](tarmac[\w-]*)(?:\[([\w,]*)\])?", path.read_text()
        ):
            assert name == PROJECT["name"] == "tarmac-data", path
            assert set(filter(None, extras.split(","))) <= EXTRAS.keys(), path


def test_only_import_extra_writes_install_hints():
    for path in (ROOT / "src").rglob("*.py"):
        assert "pip install" not in path.read_text() or path.name == "extras.py", path


def test_a_missing_library_names_its_extra():
    with pytest.raises(MissingExtra, match=r"no_such_library.*tarmac-data\[video\]") as caught:
        import_extra("no_such_library", "video", "video fields")
    assert caught.value.name == "tarmac-data[video]"
    assert import_extra("importlib.util", "video", "").__name__ == "importlib.util"


def test_extras_refer_to_this_distribution():
    for requirements in EXTRAS.values():
        for requirement in requirements:
            if requirement.startswith("tarmac"):
                name, extras = re.fullmatch(r"([\w-]+)\[([\w,]+)\]", requirement).groups()
                assert name == PROJECT["name"]
                assert set(extras.split(",")) <= EXTRAS.keys()


def test_the_accelerator_is_another_distribution():
    native = tomllib.loads((ROOT / "native" / "pyproject.toml").read_text())["project"]
    assert native["name"] == "tarmac-native"


def test_versions_agree():
    code = "import tarmac; print(tarmac.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == PROJECT["version"]
