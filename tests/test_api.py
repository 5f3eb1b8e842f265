"""The public API: the names in `tarmac.__all__`. Each is documented, typed, and tested as `tarmac.<name>`."""

from __future__ import annotations

import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tarmac
from harness.shards import plain
from tarmac.indexing.manifest import write_manifest
from tarmac.samples.naming import known_fields
from tarmac.samples.reader import SampleReader
from tarmac.storage import enforce_security
from tarmac.storage.urls import expand

ROOT = Path(__file__).parent.parent
TESTS = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}


def documented_names():
    return re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)


def test_the_documented_names_are_the_public_names():
    assert sorted(documented_names(), key=str.lower) == tarmac.__all__
    assert len(tarmac.__all__) <= 48


def test_the_documented_names_of_packages_exist():
    names = re.findall(r"^\| `tarmac\.([\w.]+)` \|", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert len(names) > 10
    for name in names:
        assert inspect.getdoc(pkgutil.resolve_name(f"tarmac.{name}"))


def test_the_stub_lists_each_name_once_sorted_by_module():
    lines = [line for line in (ROOT / "src/tarmac/__init__.pyi").read_text().splitlines() if "import" in line]
    assert lines == sorted(set(lines))


def test_dir_lists_the_public_names():
    assert set(dir(tarmac)) == {*tarmac.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = tarmac.no_such_name


@pytest.mark.parametrize("name", tarmac.__all__)
def test_public_names_have_docstrings_and_annotations(name):
    value = getattr(tarmac, name)
    assert inspect.getdoc(value)
    if inspect.isfunction(value):
        signature = inspect.signature(value)
        assert signature.return_annotation is not inspect.Signature.empty
        for parameter in signature.parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty, parameter


@pytest.mark.parametrize("name", tarmac.__all__)
def test_public_names_are_tested(name):
    used = re.compile(rf"\btarmac\.{name}\b")
    assert any(used.search(text) for text in TESTS.values())


def test_type_checkers_find_the_types():
    assert (ROOT / "src" / "tarmac" / "py.typed").exists()


def test_importing_a_name_imports_its_module_only():
    code = (
        "import sys, tarmac; tarmac.Limits; print(*sorted(n for n in sys.modules if n.startswith('tarmac.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tarmac.limits"]


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "x-0.tar"
    path.write_bytes(plain([("a.b.txt", b"1"), ("c.seg.txt", b"2")]))
    return str(path)


def test_modules_that_documents_name_need_no_import():
    code = "import tarmac; tarmac.webdataset.split_by_node, tarmac.storage.Cache, tarmac.extras.MissingExtra"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_expand_returns_shard_urls(shard):
    assert expand(shard.replace("0.tar", "{0..2}.tar"))[::2] == [
        shard,
        shard.replace("0.tar", "2.tar"),
    ]
    with pytest.raises(tarmac.errors.UrlError):
        expand([])


def test_naming_rules_split_member_names():
    splits = {
        tarmac.first_dot: ("a", "b.txt"),
        tarmac.last_dot: ("a.b", "txt"),
        known_fields(["b.txt"]): ("a", "b.txt"),
    }
    for rule, expected in splits.items():
        assert rule("a.b.txt") == expected


def test_a_sample_reader_can_be_iterated_again(shard):
    reader = tarmac.read(shard)
    assert isinstance(reader, SampleReader)
    for _ in range(2):
        assert [sample["__key__"] for sample in reader] == ["a", "c"]


def test_readers_have_readable_reprs(shard):
    assert repr(tarmac.read(shard)) == f"<SampleReader of 1 shard: {shard}>"
    reader = tarmac.read("https://user:secret@host/{0..2}.tar", fields=["txt", "cls"])
    assert repr(reader) == "<SampleReader of 3 shards: https://…@host/0.tar, …, fields cls, txt>"


def test_dir_of_a_pipeline_leaves_out_the_contract_of_stages(shard):
    stream = tarmac.WebDataset(shard, shardshuffle=False)
    public = {name for name in dir(stream) if not name.startswith("_")}
    assert {"shuffle", "decode", "batched", "close", "set_epoch", "state_dict", "with_epoch"} <= public
    assert not {"reads_parts", "begin_epoch", "stateless", "check_ranks", "upstream_epochs"} & public


@pytest.mark.parametrize("kind", [tarmac.Dataset, tarmac.Mix, tarmac.WebDataset, tarmac.WebLoader])
def test_methods_that_are_chained_complete_in_ipython(kind):
    """jedi takes `Self` in a base class for the base class, so that `ds.decode().` would not offer `where`."""
    methods = {
        name: method for name, method in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"
    }
    inherited = [name for name, method in methods.items() if name not in vars(kind)]
    assert {"decode", "rename", "map_tuple"} <= set(inherited)
    assert [name for name in inherited if methods[name].__annotations__.get("return") == "Self"] == []


def test_manifests_are_written_and_read(shard, tmp_path):
    from tarmac.indexing.manifest import Shard

    path = str(tmp_path / "m.json")
    write_manifest(tarmac.Manifest([Shard(shard, 2)], "name"), path)
    manifest = tarmac.read_manifest(path)
    assert (manifest.name, manifest.samples, manifest.shards[0].url) == ("name", 2, shard)


def test_secure_mode_rejects_commands():
    enforce_security()
    try:
        with pytest.raises(tarmac.errors.UnsafeUrl):
            list(tarmac.read("pipe:true"))
    finally:
        enforce_security(False)
