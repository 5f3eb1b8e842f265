"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import importlib
import io
import pkgutil
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import tarmac

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "tarmac").rglob("*.py"))
MODULES = sorted(
    info.name for info in pkgutil.walk_packages(tarmac.__path__, "tarmac.") if "__main__" not in info.name
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_files_stay_small_and_say_what_they_are(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 600
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("name", ["tarmac", *MODULES])
def test_public_names_exist_and_are_sorted(name):
    module = importlib.import_module(name)
    public = getattr(module, "__all__", [])
    assert len(set(public)) == len(public)
    if hasattr(module, "__path__"):
        assert public == sorted(public, key=str.lower)
    for item in public:
        assert hasattr(module, item), item


# The packages below have contracts in pyproject.toml.
IMPORTED_BY_THE_COMMAND_LINE = {
    "click",
    "tarmac",  # the public names
    "tarmac.deduplicating.why",
    "tarmac.display",
    "tarmac.environment",
    "tarmac.errors",
    "tarmac.limits",  # to parse numbers with units
    "tarmac.plugins",
    "tarmac.runtime.preemption",  # what signals mean
    "tarmac.tools.cache",
    "tarmac.tools.export",  # the names of formats
    "tarmac.tools.jobs",
    "tarmac.tools.index",  # to find stale indexes
    "tarmac.tools.pack",
}


def test_the_command_line_imports_public_names_only():
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("tarmac", exclude_type_checking_imports=True, cache_dir=None)
    inside = {"tarmac.cli", *graph.find_descendants("tarmac.cli")}
    imported = set().union(*map(graph.find_modules_directly_imported_by, inside)) - inside
    assert imported <= IMPORTED_BY_THE_COMMAND_LINE


DANGEROUS = {"eval", "exec", "system", "popen", "loads", "load"}
ALLOWED = {
    # json is data; the one shell is the user's own pipe: command; pickles have one file of their own.
    ("storage/command.py", "shell=True"),
    ("codecs/arrays.py", "torch.load"),  # weights_only=True
    ("codecs/basic.py", "json.loads"),
    ("codecs/basic.py", "cbor2.loads"),
    ("codecs/unsafe.py", "pickle.loads"),  # only when the caller's code asked for it
    ("codecs/unsafe.py", "torch.load"),
    ("compat/__main__.py", "exec"),  # the program that the user runs
    ("compat/__main__.py", "entry.load"),
    ("compat/wids/wids_decode.py", "safetensors.load"),  # a format that holds tensors and nothing else
    ("cli/index.py", "json.loads"),
    ("deduplicating/pairs.py", "json.loads"),
    ("deduplicating/vectors.py", "json.load"),
    ("deduplicating/vectors.py", "np.load"),  # without pickles
    ("downloading/images.py", "image.load"),  # of Pillow: decodes
    ("downloading/network/consent.py", "json.loads"),
    ("downloading/rows.py", "json.loads"),
    ("downloading/spool.py", "json.loads"),
    ("embedding/layout.py", "json.loads"),
    ("tools/mappers/records.py", "json.loads"),
    ("tokens/mapper.py", "json.loads"),
    ("tokens/settle.py", "json.loads"),
    ("tokens/formats/tensordict.py", "json.loads"),
    ("tokens/source.py", "chunks.load"),  # which reads JSON
    ("jobs/chunks.py", "json.loads"),
    ("jobs/head.py", "json.loads"),
    ("jobs/journal.py", "json.loads"),
    ("jobs/leases.py", "json.loads"),
    ("tools/join/verb.py", "np.load"),  # without pickles, as are those of permutations
    ("tools/order.py", "np.load"),
    ("tools/output.py", "shell=True"),  # the user's own post_cmd
    ("indexing/facts.py", "json.loads"),
    ("runtime/agreement.py", "json.loads"),
    ("stream/epochs.py", "json.loads"),
    ("jobs/claims.py", "json.loads"),
    ("exact/loader/processes.py", "pickle.loads"),  # what our own child sent
    ("exact/loader/located.py", "pickle.loads"),  # what our own parent wrote to a file without a name
    ("jobs/engines/remote.py", "pickle.loads"),  # what our own engine and our own worker sent
    ("runtime/processes.py", "pickle.loads"),  # to see whether our own error can be sent
    ("plugins.py", "entry.load"),  # packages that the user installed
    ("searching/facts.py", "json.loads"),
    ("searching/lists.py", "np.load"),  # without pickles
    ("searching/queries.py", "np.load"),
    ("storage/cachedirs.py", "json.loads"),
    ("tools/export/values.py", "json.loads"),
    ("tools/keystore.py", "marshal.loads"),  # rows in a temporary file that the same job wrote
    ("storage/urls.py", "json.loads"),
}


def test_nothing_executes_data():
    results = set()
    for path in SOURCES:
        name = str(path.relative_to(ROOT / "src" / "tarmac"))
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            if any(word.arg == "shell" and getattr(word.value, "value", False) for word in node.keywords):
                results.add((name, "shell=True"))
            called = ast.unparse(node.func)
            if called.rpartition(".")[2] in DANGEROUS and not called.startswith("self."):
                results.add((name, called))
    assert results == ALLOWED


def test_no_asserts_check_input_and_nothing_prints():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) != "print", path
            if isinstance(node, ast.Assert):
                # an assert may only narrow a type for the type checker
                test = ast.unparse(node.test)
                assert "is not None" in test or test.startswith("isinstance("), f"{path}: {test}"


CLOCK = re.compile(
    r"\b(?:(?:monotonic|perf_counter|process_time|thread_time)\w*|timeit|cpu_times|time\.time)\b"
)
CLOCKS = {
    "harness/waiting.py",  # bounds against hanging
    "harness/crash.py",  # when to kill
    "harness/test_waiting.py",
    "test_house.py",
}


def test_tests_do_not_look_at_the_clock():
    """How long something took says nothing on a busy machine: see CONTRIBUTING.md for what to do instead."""
    tests = ROOT / "tests"
    for path in sorted(tests.rglob("*.py")):
        results = CLOCK.search(path.read_text())
        assert results is None or str(path.relative_to(tests)) in CLOCKS, f"{path} looks at {results[0]}"
    assert CLOCK.search("assert time.monotonic() - begun < 1")
    assert CLOCK.search("from time import perf_counter_ns as now")
    assert not CLOCK.search("time.sleep(1); time.time_ns")


def test_documents_name_tests_that_exist():
    tests = {path.name for path in (ROOT / "tests").rglob("*.py")}
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for name in re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py)", path.read_text()):
            assert (ROOT / name).exists() if "/" in name else name in tests, f"{path.name}: {name}"


WRITE = "with tarmac.TarWriter(PATH + '.out') as shard: shard.write({'__key__': 'a', 'txt': b''})"
HEAVY = ["torch", "pyarrow", "PIL", "obstore", "numpy", "yaml", "typer", "rich", "xxhash"]


@pytest.mark.parametrize("code", ["", "tarmac.TarOptions, tarmac.Limits", "list(tarmac.read(PATH))", WRITE])
def test_heavy_libraries_are_imported_only_where_needed(code, tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(1024))
    script = (
        f"import sys, tarmac; PATH = {str(path)!r}\n{code}\nprint(*(n for n in {HEAVY} if n in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


_NAMES = {"found", "place", "told", "made"}
_PHRASES = re.compile(
    r"\bwhoever\b|\banew\b|\bso many\b|\blets? go of\b|\bnobody\b|\bone's own\b"
    r"|(?<!there )\bis no (?!longer)[a-z]+[.;,]",
    re.IGNORECASE,
)


def test_names_and_prose_use_the_usual_terms():
    """The glossary in CONTRIBUTING.md lists what to use instead."""
    code = [
        path
        for folder in ("src", "tests", "bench", "demo", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    for path in code:
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            assert token.type != tokenize.NAME or token.string not in _NAMES, f"{path}: {token.string}"
    documents = {*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")} - {ROOT / "CONTRIBUTING.md"}
    for path in [*documents, *(path for path in code if path != Path(__file__))]:
        assert (match := _PHRASES.search(path.read_text())) is None, f"{path}: {match and match[0]}"
