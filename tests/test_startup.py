"""What the first call of a program or command imports: it waits for all of it."""

import subprocess
import sys

import pytest

import tarmac

pytestmark = pytest.mark.processes

SOMETIMES = ["concurrent.futures", "html", "logging", "multiprocessing", "obstore", "pandas"]
"""What only some programs need."""
LOADED = "import sys; print(*sorted({names!r} & sys.modules.keys()))"


@pytest.fixture
def shard(tmp_path):
    path = str(tmp_path / "x.tar")
    with tarmac.TarWriter(path) as writer:
        writer.write({"__key__": "a", "txt": "one"})
    return path


def loaded(script, names, monkeypatch, tmp_path):
    """Run a script in a new interpreter and return which of these modules it has imported."""
    package = tmp_path / "site" / "pandas"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '3.0.0'\n")
    monkeypatch.setenv("PYTHONPATH", ":".join([str(package.parent), *sys.path]))
    command = [sys.executable, "-c", f"{script}\n{LOADED.format(names=set(names))}"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return output.splitlines()[-1].split()


@pytest.mark.parametrize("indexed", [True, False])
def test_a_sample_of_a_dataset(shard, indexed, monkeypatch, tmp_path):
    if indexed:
        tarmac.index(shard, progress=False)
    # pyarrow imports cloudpickle, which engines install, and that imports logging.
    script = f"""
import sys
sys.modules["cloudpickle"] = None
import tarmac
assert tarmac.Dataset({shard!r})[0]['txt'] == b'one'"""

    assert loaded(script, [*SOMETIMES, "difflib", "numpy.random"], monkeypatch, tmp_path) == []


def test_showing_a_sample(shard, monkeypatch, tmp_path):
    script = f"""
import tarmac.cli, sys
try:
    sys.argv = ["tarmac", "show", {shard!r}, "-n", "1"]
    tarmac.cli.main()
except SystemExit:
    pass
"""

    assert loaded(script, [*SOMETIMES, "numpy", "pyarrow"], monkeypatch, tmp_path) == []
