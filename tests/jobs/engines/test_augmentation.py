"""The example of offline augmentation with Dask: one call of `map` does what a program with dask.delayed does."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tarmac
from harness import engines, required
from harness.clusters import dask_cluster

pytestmark = pytest.mark.processes
SHARDS = 55
AUGMENT = """
import numpy as np

def augment(sample):
    image = np.asarray(sample["jpg"].resize((8, 8))).astype("float32")
    image = (image - image.min()) / (image.max() - image.min())
    return {"__key__": sample["__key__"], "png": image, "cls": sample["json"]["label"]}
"""


NOTEBOOK = """
import sys
import dask, distributed, numpy as np, webdataset as wds

def augment_wds(args):
    input, output = args
    src = wds.DataPipeline(
        wds.SimpleShardList(input),
        wds.tarfile_to_samples(),
        wds.decode("pil"),
        wds.to_tuple("__key__", "jpg;png", "json"),
    )
    with wds.TarWriter(output) as dst:
        for key, image, data in src:
            image = np.asarray(image.resize((8, 8))).astype("float32")
            image = (image - image.min()) / (image.max() - image.min())
            dst.write({"__key__": key, "png": image, "cls": data["label"]})

if __name__ == "__main__":
    shards = [f"openimages-{number:06d}.tar" for number in range(int(sys.argv[2]))]
    pairs = [(f"{sys.argv[3]}/{shard}", f"{sys.argv[3]}/notebook/{shard}") for shard in shards]
    with distributed.Client(sys.argv[1]):
        dask.compute(*[dask.delayed(augment_wds)(args) for args in pairs])
"""
"""What the notebook of the webdataset library does."""


def decoded(folder: Path) -> dict[str, list[tuple[str, bytes, bytes]]]:
    return {
        path.name: [
            (each["__key__"], np.asarray(Image.open(io.BytesIO(each["png"]))).tobytes(), each["cls"])
            for each in tarmac.read(str(path))
        ]
        for path in sorted(folder.glob("*.tar"))
    }


def test_offline_augmentation_of_all_shards(tmp_path):
    rng = np.random.default_rng(1)
    for shard in range(SHARDS):
        with tarmac.TarWriter(tmp_path / f"openimages-{shard:06d}.tar") as writer:
            for number in range(2):
                buffer = io.BytesIO()
                Image.fromarray(rng.integers(0, 255, (16, 16, 3), "uint8")).save(buffer, "JPEG")
                label = json.dumps({"label": number}).encode()
                writer.write({"__key__": f"{shard}-{number}", "jpg": buffer.getvalue(), "json": label})
    (tmp_path / "augment.py").write_text(AUGMENT)
    pattern = f"{tmp_path}/openimages-{{000000..{SHARDS - 1:06d}}}.tar"
    function = f"{tmp_path}/augment.py:augment"
    (tmp_path / "notebook").mkdir()
    with required(dask_cluster()) as cluster:
        report = tarmac.map(pattern, f"{tmp_path}/call/", function, decode="pil", engine=cluster.engine)
        assert (report.units, report.written) == (SHARDS, 2 * SHARDS)
        arguments = ["map", pattern, "--py", function, "--decode", "pil", "-o", f"{tmp_path}/command/"]
        done = engines.command([*arguments, "--engine", cluster.engine], tmp_path)
        assert done.returncode == 0, done.stderr
        (tmp_path / "program.py").write_text(NOTEBOOK)
        scheduler = f"tcp://127.0.0.1:{cluster.port}"
        done = engines.script(["program.py", scheduler, str(SHARDS), str(tmp_path)], tmp_path)
        assert done.returncode == 0, done.stderr
    assert len(decoded(tmp_path / "notebook")) == SHARDS
    assert decoded(tmp_path / "call") == decoded(tmp_path / "command") == decoded(tmp_path / "notebook")
