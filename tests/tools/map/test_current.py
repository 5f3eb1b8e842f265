"""A process that outlives a job runs the code of the next one, also in modules that the function imports."""

from __future__ import annotations

import pickle
import sys

import pytest

from tarmac.errors import EngineError
from tarmac.tools.map.functions import Function

SAMPLE = {"__key__": "a", "__url__": "x.tar"}


def write(folder, version):
    """Write a function, a module that it imports, and a package of which it imports a module."""
    (folder / "current_package").mkdir(exist_ok=True)
    (folder / "current_package" / "__init__.py").touch()
    (folder / "current_package" / "part.py").write_text(f"PART = b'part {version}'\n")
    (folder / "current_helper.py").write_text(f"def help():\n    return b'helper {version}'\n")
    (folder / "current_function.py").write_text(
        "import current_helper\n"
        "from current_package import part\n"
        f"def f(sample):\n    return {{'x': b'function {version}, ' + current_helper.help() + b', ' + part.PART}}\n"
    )


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # whose times have a resolution of a second
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("current_")]:
        del sys.modules[name]


def result(version):
    return b"function %d, helper %d, part %d" % (version, version, version)


@pytest.mark.parametrize("spec", ["current_function.py:f", "current_function:f"])
def test_the_files_of_the_next_job(here, spec):
    for version in range(3):
        write(here, version)
        assert Function(spec)(SAMPLE)[0]["x"] == result(version)


@pytest.mark.parametrize("spec", ["current_function.py:f", "current_function:f"])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_process_that_has_imported_the_files_of_an_earlier_job(here, spec, by_name):
    """The process is this one; what is pickled comes from another, which imports the files again."""
    sent = []
    for version in range(2):
        write(here, version)
        for name in [name for name in sys.modules if name.startswith(("current_", "tarmac_map_"))]:
            del sys.modules[name]
        function = Function(spec)
        sent.append(
            pickle.dumps(function if by_name or spec.endswith(".py:f") else Function(function.function))
        )
    write(here, 0)
    for name in [name for name in sys.modules if name.startswith(("current_", "tarmac_map_"))]:
        del sys.modules[name]
    assert pickle.loads(sent[0])(SAMPLE)[0]["x"] == result(0)
    write(here, 1)
    assert pickle.loads(sent[1])(SAMPLE)[0]["x"] == result(1)


@pytest.mark.parametrize("name", ["current_function.py", "current_helper.py", "current_package/part.py"])
def test_other_files_than_those_of_the_sender(here, name):
    """A file that is edited while a job runs, or an old copy on another machine, is refused by name."""
    write(here, 1)
    sent = pickle.dumps(Function("current_function.py:f"))
    with open(name, "a") as file:
        file.write("# changed\n")
    with pytest.raises(EngineError, match=name):
        pickle.loads(sent)
    write(here, 1)
    assert pickle.loads(sent)(SAMPLE)[0]["x"] == result(1)
