"""Facts about a shard in its sidecar: read back, of earlier versions, and invalid."""

from __future__ import annotations

import json
import os

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness.shards import plain
from tarmac.errors import IndexDamaged, IndexingError, IndexStale
from tarmac.indexing.facts import facts_to_json, parse_facts
from tarmac.indexing.sidecar import open_sidecar
from tarmac.tools.index import index


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    index(str(path), str(tmp_path / "m.json"))
    return path


def edited(shard, edit):
    """Change the facts in the sidecar of a shard."""
    path = f"{shard}.arrow"
    with pa.ipc.open_file(path) as file:
        batch = file.get_batch(0)
    facts = json.loads(batch.schema.metadata[b"tarmac"])
    edit(facts)
    batch = batch.replace_schema_metadata({"tarmac": json.dumps(facts)})
    with pa.ipc.new_file(path, batch.schema) as file:
        file.write_batch(batch)


def test_facts_are_read_as_written(shard):
    facts = open_sidecar(f"{shard}.arrow").facts
    assert parse_facts(facts_to_json(facts).encode(), "x") == facts
    assert facts.sampled_digests
    assert not facts.bad_meta


def test_sidecars_of_earlier_versions_are_recognised_by_their_time(shard):
    def earlier(facts):
        del facts["marks"], facts["bad_meta"]

    edited(shard, earlier)
    manifest = str(shard.parent / "m.json")
    assert len(list(tarmac.Dataset(manifest))) == 3
    os.utime(shard, ns=(1, 1))
    with pytest.raises(IndexStale, match=r"a\.tar: "):
        _ = tarmac.Dataset(manifest)[0]
    assert len(list(tarmac.Dataset(str(shard)))) == 3  # rebuilt
    assert open_sidecar(f"{shard}.arrow").facts.sampled_digests


@pytest.mark.parametrize("name", ["shard_size", "samples"])
@pytest.mark.parametrize("value", [1 << 70, 1 << 63, -1, 1e400, float("nan"), 7.0, None, "7", []])
def test_invalid_numbers(shard, name, value):
    edited(shard, lambda facts: facts.update({name: value}))
    with pytest.raises(IndexDamaged, match="integer"):
        open_sidecar(f"{shard}.arrow")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
KEYS = ["version", "shard_size", "shard_version", "local", "samples", "fingerprint", "digests", "layout",
        "columns", "marks", "bad_meta"]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(KEYS), value=JSON)
def test_any_value_anywhere(tmp_path_factory, name, value):
    """Any content of a sidecar raises IndexingError or gives the samples of the shard."""
    shard = tmp_path_factory.mktemp("any") / "a.tar"
    shard.write_bytes(plain())
    index(str(shard), str(shard.parent / "m.json"))
    edited(shard, lambda facts: facts.update({name: value}))
    try:
        samples = list(tarmac.Dataset(shard.parent / "m.json"))
    except IndexingError:
        return
    assert samples == list(tarmac.read(str(shard)))
