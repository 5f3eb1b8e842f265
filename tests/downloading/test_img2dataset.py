"""Users come from img2dataset with what it wrote, and their programs read what tarmac writes.

The directory img2dataset has the output of version 1.47.0 for eight links, of which 3 is not there and 5 is a page.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tarmac
from downloading.links import QUICK, counted, samples, table
from harness.web import Answer, picture, serving

pytestmark = pytest.mark.processes
GOOD = [0, 1, 2, 4, 6, 7]


@pytest.fixture
def theirs(tmp_path):
    """A copy of their output, in all formats."""
    return Path(shutil.copytree(Path(__file__).parent / "img2dataset", tmp_path / "theirs"))


def test_their_shards_are_a_dataset(theirs, tmp_path):
    tarmac.index(
        sorted(theirs.glob("webdataset/*.tar")),
        tmp_path / "all.json",
        meta=["json.status", "json.similarity"],
    )
    dataset = tarmac.Dataset(str(tmp_path / "all.json"))
    assert sorted(sample["txt"].decode() for sample in dataset) == [f"text {n} é" for n in GOOD]
    chosen = dataset.where("json.status = 'success' and json.similarity >= 0.4").decode("rgb8")
    assert sorted(sample["json"]["similarity"] for sample in chosen) == [0.4, 0.6, 0.7]
    assert {sample["jpg"].shape for sample in chosen} == {(24, 24, 3)}
    assert tarmac.check(sorted(theirs.glob("webdataset/*.tar"))).ok


def test_their_tables_are_selected_and_what_failed_is_downloaded(theirs, tmp_path):
    """The file beside each shard has a row for each link, also for those that failed."""
    tables = sorted(theirs.glob("webdataset/*.parquet"))
    report = tarmac.select(
        tables, tmp_path / "failed", where="status <> 'success'", columns="url,caption,key"
    )
    assert (report.read, report.written) == (8, 2)
    links = pq.read_table(sorted((tmp_path / "failed").glob("part-*.parquet"))).to_pylist()
    with serving(lambda _: Answer(picture(1))) as web:
        urls = [web.url("127.0.0.1", "/" + each["url"].rpartition("/")[2]) for each in links]
        source = table(
            tmp_path / "again.parquet", urls, caption=[each["caption"] for each in links],
            key=[each["key"] for each in links],
        )  # fmt: skip
        tarmac.download(source, f"{tmp_path}/late/", caption="caption", key="key", **QUICK)
    late = samples(tmp_path / "late")
    assert [sample["txt"] for sample in late] == ["text 3 é".encode(), "text 5 é".encode()]
    mine = [sample.key for path in theirs.glob("webdataset/*.tar") for sample in tarmac.show(path)]
    assert not {sample["__key__"] for sample in late} & set(mine)


@pytest.mark.parametrize("kind", ["files", "parquet"])
def test_their_other_formats_are_packed(kind, theirs, tmp_path):
    if kind == "files":
        tarmac.pack(sorted(theirs.glob("files/0*/")), f"{tmp_path}/x-{{i}}.tar")
    else:
        columns = {"jpg": "jpg", "caption": "txt", "similarity": "similarity.json"}
        rows = sorted(theirs.glob("parquet/*.parquet"))  # those of links that failed have no picture
        tarmac.pack(
            rows, f"{tmp_path}/x-{{i}}.tar", key="key", columns=columns, fields=["jpg", "txt"], missing="skip"
        )
    written = samples(tmp_path)
    assert sorted(sample["txt"] for sample in written) == [f"text {n} é".encode() for n in GOOD]
    assert all(sample["jpg"][:2] == b"\xff\xd8" for sample in written)


def test_our_output_has_all_that_theirs_has(theirs, tmp_path):
    """Fields, members of `json` and columns of the table have the names that their programs use."""
    with serving(lambda each: Answer(picture(1) if "7" in each.path else b"", status=200)) as web:
        urls = [web.url("127.0.0.1", f"/{n}.jpg") for n in (7, 8)]
        source = table(tmp_path / "t.parquet", urls, TEXT=["a", "b"], similarity=[0.1, 0.2])
        options = {"caption": "TEXT", "save": ["similarity"], "digest": "sha256", "size": 24} | QUICK
        tarmac.download(source, f"{tmp_path}/ours/", **options)
    (one,) = samples(tmp_path / "ours")
    (other, *_) = samples(theirs / "webdataset")
    assert {"jpg", "txt", "json"} <= {*one} == {*other}
    always_null = {"error_message"}
    assert {*json.loads(other["json"])} - always_null <= {*json.loads(one["json"])}
    names = pq.read_schema(theirs / "webdataset" / "00000.parquet").names
    ours = pq.read_table(tmp_path / "ours" / "00000.parquet")
    assert {*names} <= {*ours.column_names}
    assert ours["similarity"].to_pylist() == [0.1, 0.2]  # also of the link that failed
    assert counted(tmp_path / "ours")["success"] == 1
