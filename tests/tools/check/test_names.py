"""Check and repair apply the naming rule of the caller, or that of the index."""

from __future__ import annotations

import pytest

import tarmac
from harness.shards import header_offsets, plain
from tarmac.samples.naming import known_fields

FILES = [(f"v1.{n}.{field}", f"{field} {n} ".encode() * 9) for n in range(5) for field in ("cls", "txt")]
KEYS = [f"v1.{n}" for n in range(5)]


def keys(path, rule=tarmac.last_dot):
    return [sample["__key__"] for sample in tarmac.read(str(path), split_name=rule)]


@pytest.fixture(params=["last_dot", "known_fields"])
def rule(request):
    return tarmac.last_dot if request.param == "last_dot" else known_fields(["cls", "txt"])


@pytest.fixture
def shard(tmp_path, rule):
    path = tmp_path / "a.tar"
    path.write_bytes(plain(FILES))
    tarmac.index(str(path), str(tmp_path / "a.json"), split_name=rule, digests=True, jobs=1)
    return path


@pytest.mark.parametrize("chosen", [True, False])
def test_an_intact_shard(shard, rule, chosen):
    more = {"split_name": rule} if chosen else {}
    for sources, digests in ((shard, True), (shard.with_name("a.json"), False)):
        report = tarmac.check(sources, digests=digests, jobs=1, **more)
        assert (report.ok, report.samples) == (True, 5), report.bad
        assert report.shards[0].fields == {"cls": 5, "txt": 5}


def test_the_rule_of_the_caller_needs_no_index(tmp_path, rule):
    path = tmp_path / "a.tar"
    path.write_bytes(plain(FILES))
    assert tarmac.check(path, jobs=1).samples == 1
    assert tarmac.check(path, split_name=rule, require=["cls", "txt"], jobs=1).samples == 5
    # The results of one rule are not those of another.
    tarmac.check(path, split_name=rule, ledger=str(tmp_path / "ledger"), jobs=1)
    with pytest.raises(tarmac.errors.JobMismatch):
        tarmac.check(path, ledger=str(tmp_path / "ledger"), jobs=1)


def test_a_key_without_a_dot_follows_the_first_dot(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([("a.seg.png", b"1"), ("a.cls", b"2")]))
    tarmac.index(str(path), digests=True, jobs=1)
    assert tarmac.check(path, digests=True, jobs=1).shards[0].fields == {"seg.png": 1, "cls": 1}


@pytest.mark.parametrize("chosen", [True, False])
def test_clean_copies(shard, tmp_path, rule, chosen):
    data = bytearray(shard.read_bytes())
    data[header_offsets(bytes(data))[4]] ^= 1
    shard.write_bytes(data)
    more = {"split_name": rule} if chosen else {"digests": True}
    report = tarmac.check(shard, repair=f"{tmp_path}/clean/", jobs=1, **more)
    lost = [loss["key"] for loss in report.losses if loss["what"] == "sample"]
    # Digests prove what a damaged header only names.
    assert lost == ([] if not chosen else ["v1.2"])
    assert keys(tmp_path / "clean" / "a.tar", rule) == [key for key in KEYS if key not in lost]
