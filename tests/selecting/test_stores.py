"""Tables and selections in an object store."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.data import link_rows

import tarmac
from harness.servers import required, seaweed_s3
from selecting.tables import contents, rows
from tarmac.storage import StorageOptions, list_objects, read_all, write_all

pytestmark = [pytest.mark.processes, pytest.mark.long]


def test_from_a_bucket_to_a_bucket(tmp_path):
    for number in range(2):
        pq.write_table(link_rows(5000, number), tmp_path / f"t{number}.parquet")
    csv = b"URL,TEXT,WIDTH,HEIGHT\nhttp://x,hello,2000,2000\n"
    (tmp_path / "t2.csv").write_bytes(csv)
    line = json.dumps({"URL": "http://y", "TEXT": "é", "WIDTH": 3000, "HEIGHT": 1500}).encode()
    (tmp_path / "t3.jsonl.zst").write_bytes(pa.compress(line, "zstd", asbytes=True))
    (tmp_path / "t4.tsv.gz").write_bytes(gzip.compress(csv.replace(b",", b"\t").replace(b"x", b"z")))
    names = ["t0.parquet", "t1.parquet", "t2.csv", "t3.jsonl.zst", "t4.tsv.gz"]
    options = {"columns": "URL,TEXT,WIDTH,HEIGHT", "min_size": 1000, "shuffle": 1, "rows_per_file": 1000}
    tarmac.select([tmp_path / name for name in names], tmp_path / "local", **options)
    with required(seaweed_s3()) as server:
        server.make_bucket("links")
        storage = StorageOptions(config=server.config())
        for name in names:
            write_all(f"s3://links/in/{name}", (tmp_path / name).read_bytes(), storage)
        report = tarmac.select("s3://links/in/", "s3://links/out", storage=storage, **options)
        again = tarmac.select(
            "s3://links/", "s3://links/out/", storage=storage, **options
        )  # not what is in out
        written = {
            url.rpartition("/")[2]: read_all(url, storage)
            for url, _ in list_objects("s3://links/out/part-", storage)
        }
        facts = json.loads(read_all("s3://links/out/manifest.json", storage))
    assert written == contents(tmp_path / "local")
    assert report.written == facts["rows"]["out"] == sum(file["rows"] for file in facts["files"])
    assert again.kept == 1
    assert {"http://x", "http://y", "http://z"} < {row["URL"] for row in rows(tmp_path / "local")}
