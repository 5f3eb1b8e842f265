"""The last step of the story: what was downloaded is loaded as a user of img2dataset loads it, and with `Loader`."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import tarmac
import tarmac.webdataset as wds
from downloading.links import QUICK, table
from harness.web import NOT_HERE, Answer, hosts, picture, serving

pytestmark = pytest.mark.processes


def test_download_and_load(tmp_path):
    with serving(lambda each: NOT_HERE if "robots" in each.path else Answer(picture(3, 80, 60))) as web:
        source = table(
            tmp_path / "t.parquet",
            [web.url("a.test", f"/{n}") for n in range(24)],
            TEXT=[f"text {n}" for n in range(24)],
        )
        options = QUICK | {"size": 32, "resize": "center_crop", "rows_per_shard": 8, "hosts": hosts("a.test")}
        tarmac.download(source, f"{tmp_path}/out/", caption="TEXT", **options)
    urls = sorted(map(str, (tmp_path / "out").glob("*.tar")))
    dataset = wds.WebDataset(urls, shardshuffle=False, handler=wds.handlers.warn_and_continue)
    chosen = dataset.select(lambda item: all(name in item for name in ("jpg", "txt", "json")))

    def preprocess(item):
        image = Image.open(io.BytesIO(item["jpg"]))
        return {"image_filename": item["__key__"], "image": np.asarray(image), "text": item["txt"].decode()}

    items = list(chosen.map(preprocess, handler=wds.handlers.warn_and_continue))
    assert [item["text"] for item in items] == [f"text {number}" for number in range(24)]
    assert {item["image"].shape for item in items} == {(32, 32, 3)}
    ds = tarmac.Dataset(str(tmp_path / "out" / "manifest.json")).decode("rgb8").to_tuple("jpg", "txt")
    loader = tarmac.Loader(ds, batch_size=6, shuffle=True, threads=0)
    texts = [text for _, batch in loader for text in batch]
    assert sorted(texts) == sorted(item["text"] for item in items)
