"""`import webdataset` finds tarmac in this process, in spawned processes, and in programs run by compat."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import tarmac
import tarmac.compat
from harness.shards import plain
from tarmac.errors import UnsafeUrl
from tarmac.storage import enforce_security, is_secure


def test_imports_find_tarmac(installed):
    import webdataset as wds
    import webdataset.filters
    from webdataset.gopen import gopen, rewrite_url
    from webdataset.tariterators import url_opener

    assert issubclass(wds.WebDataset, tarmac.WebDataset)
    assert webdataset.filters.shuffle is wds.shuffle
    assert wds.gopen is gopen is sys.modules["webdataset.gopen"].gopen
    assert rewrite_url("x") == "x"
    assert wds.tariterators.url_opener is url_opener
    assert wds.__version__ == "1.0.2"
    from webdataset.multi import MultiLoader

    assert MultiLoader is tarmac.compat.webdataset.multi.MultiLoader
    with pytest.raises(ModuleNotFoundError):
        import webdataset.nothing


def test_uninstall():
    import webdataset as real

    path = list(sys.path)
    tarmac.compat.install()
    tarmac.compat.install()
    assert sys.modules["webdataset"] is not real
    tarmac.compat.uninstall()
    tarmac.compat.uninstall()
    import webdataset.filters

    assert sys.modules["webdataset"] is real
    assert webdataset.filters.__file__.endswith("webdataset/filters.py")
    assert "tarmac" not in webdataset.filters.__file__.replace(str(tarmac.__file__), "")
    assert sys.path == path


def test_enforce_security_switch(installed):
    assert installed.utils.enforce_security is False
    try:
        installed.utils.enforce_security = True
        assert is_secure()
        with pytest.raises(UnsafeUrl, match="pipe:true"):
            installed.gopen("pipe:true")
    finally:
        enforce_security(False)
    assert installed.utils.enforce_security is False


def test_torch_is_imported_on_first_use():
    code = """
        import sys, tarmac.compat
        tarmac.compat.install()
        import webdataset
        assert "torch" not in sys.modules and "numpy" not in sys.modules
        from webdataset.pytorch import DataLoader, IterableDataset, TorchTensor
        assert IterableDataset is sys.modules["torch"].utils.data.IterableDataset
        assert not hasattr(webdataset.pytorch, "Nothing")
        sys.modules["torch.utils.data"] = None
        del sys.modules["torch"]
        sys.modules["torch"] = None
        assert not isinstance(1, webdataset.pytorch.IterableDataset)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.fixture
def shards(tmp_path):
    for number in range(2):
        files = [(f"{number}{i}.cls", b"%d" % i) for i in range(6)]
        (tmp_path / f"x-{number}.tar").write_bytes(plain(files))
    return str(tmp_path / "x-{0..1}.tar")


SCRIPT = """
    import sys
    import webdataset as wds
    from torch.utils.data import DataLoader
    from beside import name

    def key_of(sample):
        import webdataset

        assert webdataset.__file__ == wds.__file__
        return sample[name]

    if __name__ == "__main__":
        url, method = sys.argv[1:]
        dataset = wds.WebDataset(url, shardshuffle=10).shuffle(5).map(key_of)
        context = None if method == "none" else method
        loader = DataLoader(dataset, batch_size=None, num_workers=1 if context else 0,
                            multiprocessing_context=context)
        print(wds.__file__, *sorted(loader))
        sys.exit(7)
"""


def run(*arguments, cwd=None, input="", **variables):
    command = [sys.executable, "-m", "tarmac.compat", *map(str, arguments)]
    environ = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | variables
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environ, input=input, check=False
    )


@pytest.mark.parametrize("method", ["none", "spawn"])
def test_a_program_runs_unchanged(tmp_path, shards, method):
    program = tmp_path / "program"
    program.mkdir()
    (program / "train.py").write_text(textwrap.dedent(SCRIPT))
    (program / "beside.py").write_text("name = '__key__'\n")
    done = run(program / "train.py", shards, method)
    assert done.returncode == 7, done.stderr
    file, *keys = done.stdout.split()
    assert "tarmac" in file
    assert keys == [f"{number}{i}" for number in range(2) for i in range(6)]


def test_a_module_runs_unchanged(tmp_path, shards):
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "beside.py").write_text("name = '__key__'\n")
    done = run("-m", "train", shards, "none", cwd=tmp_path)
    assert done.returncode == 7, done.stderr
    assert len(done.stdout.split()) == 13


def test_errors_of_programs_and_of_usage(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import webdataset\nraise RuntimeError('of the program')\n")
    done = run(script)
    assert done.returncode == 1
    assert "RuntimeError: of the program" in done.stderr
    assert run().returncode == 2
    assert run("-x").returncode == 2
    assert "usage" in run("-m").stderr
    assert run("--help").stdout.startswith("usage")


PRINTS = "import webdataset, sys; print(webdataset.__file__, *sys.argv[1:])\n"


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_scripts_from_pipes(name):
    done = run(name, "x", input=PRINTS)
    assert "tarmac" in done.stdout, done.stderr
    assert done.stdout.endswith(" x\n")


def test_installed_commands(tmp_path):
    """A command is an entry point, or a file in PATH that Python runs."""
    command = tmp_path / "train-it"
    command.write_text(f"#!{sys.executable}\n{PRINTS}")
    command.chmod(0o755)
    (tmp_path / "binary").write_bytes(b"\x7fELF")
    (tmp_path / "binary").chmod(0o755)
    (tmp_path / "of_an_entry.py").write_text(f"def main():\n    {PRINTS}    return 5\n")
    metadata = tmp_path / "of_an_entry-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: of-an-entry\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[console_scripts]\nenter = of_an_entry:main\n")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run("train-it", "x", PATH=path)
    assert "tarmac" in done.stdout, done.stderr
    assert run("binary", PATH=path).returncode == 2
    done = run("enter", "x", cwd=tmp_path)
    assert "tarmac" in done.stdout, done.stderr
    assert done.returncode == 5


@pytest.mark.parametrize(
    "arguments", [("widsindex",), ("-m", "wids.wids_index"), ("-m", "tarmac.compat.wids.wids_index")]
)
def test_widsindex(tmp_path, shards, arguments):
    done = run(*arguments, "create", "x-0.tar", "x-1.tar", "-o", "list.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [shard["nsamples"] for shard in json.loads((tmp_path / "list.json").read_text())["shardlist"]] == [
        6,
        6,
    ]


def test_widsindex_is_an_installed_command():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module, _, function = project["project"]["scripts"]["widsindex"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("arguments", [("nothere.py",), ("-m", "nothere"), ("-m", "os.nothere.x")])
def test_a_missing_program_is_one_line(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "nothere" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_module_that_lacks_another_shows_its_traceback(tmp_path):
    (tmp_path / "lacks.py").write_text("import nothere\n")
    assert "Traceback" in run("-m", "lacks", cwd=tmp_path).stderr


def test_a_flag_allows_pickles(tmp_path):
    (tmp_path / "a.tar").write_bytes(plain([("a.pyd", pickle.dumps("loaded"))]))
    script = (
        "import webdataset as w; print(next(iter(w.WebDataset('a.tar', shardshuffle=False).decode()))['pyd'])"
    )
    (tmp_path / "script.py").write_text(script)
    assert "UnsafeCodec" in run("script.py", cwd=tmp_path).stderr
    assert run("--allow-pickle", "script.py", cwd=tmp_path).stdout == "loaded\n"
    assert run("script.py", cwd=tmp_path, TARMAC_ALLOW_PICKLE="1").stdout == "loaded\n"
    assert "UnsafeCodec" in run("--allow-pickle", "script.py", cwd=tmp_path, WDS_SECURE="1").stderr
