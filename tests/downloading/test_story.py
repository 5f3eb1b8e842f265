"""The whole story of the guide to LAION: select links, download them, index the shards, load them."""

from __future__ import annotations

import json
import sys
import types
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import tarmac
from downloading.links import QUICK
from harness.web import NOT_HERE, Answer, Request, hosts, picture, serving

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:WebDataset.shardshuffle:UserWarning"),  # of webdataset itself
]
READER = Path(__file__).parents[1] / "compat" / "examples" / "laion.py"
"""The reader that the guide recommends, and the lines that use it."""
HOSTS = [f"site{n}.test" for n in range(5)]
SIDE, SIZE, ROWS = 96, 128, 160


def sides(number: int) -> tuple[int, int]:
    """Return the width and height of a picture of the web."""
    return (64 + number * 37 % 200, 64 + number * 53 % 200)


def answer(request: Request) -> Answer:
    """Return the picture of a number; each 20th is not there any more."""
    if not request.path.endswith(".jpg"):
        return NOT_HERE
    number = int(request.path.strip("/").removesuffix(".jpg"))
    return NOT_HERE if number % 20 == 4 else Answer(picture(number, *sides(number)))


def laion(folder: Path, port: int) -> list[dict[str, object]]:
    """Write tables of links, in which each 16th row occurs twice, and return the rows worth having."""
    rows = []
    for number in range(ROWS):
        width, height = sides(number)
        rows.append(
            {
                "URL": f"http://{HOSTS[number % 5]}:{port}/{number}.jpg",
                "TEXT": f"caption {number} – ü",
                "WIDTH": width,
                "HEIGHT": height,
                "punsafe": None if number % 30 == 0 else number % 10 / 10,
                "pwatermark": number % 7 / 7,
            }
        )
    folder.mkdir()
    tables = [rows[:90], rows[90:] + rows[::16]]
    for number, some in enumerate(tables):
        pq.write_table(pa.Table.from_pylist(some), folder / f"part-{number}.parquet")
    return [
        row
        for number, row in enumerate(rows)
        if min(sides(number)) >= SIDE and number % 30 and number % 10 <= 5 and number % 7 / 7 <= 0.8
    ]


def shards(folder: Path) -> list[int]:
    """Run the first three steps; return the numbers of the pictures to expect, in order."""
    with serving(answer) as web:
        wanted = laion(folder / "laion2B", web.port)
        selected = tarmac.select(
            folder / "laion2B", folder / "laion2B_big", min_size=SIDE, max_unsafe=0.5, max_watermark=0.8,
            dedup="URL,TEXT", shuffle=0, rows_per_file=20,
        )  # fmt: skip
        half = -(-selected.written // 2)
        downloaded = tarmac.download(
            str(folder / "laion2B_big"), f"{folder}/image{{i:01d}}.tar", url="URL", caption="TEXT",
            save=["punsafe"], size=SIZE, resize="keep_ratio", only_if_bigger=True, skip_reencode=True,
            rows_per_shard=half, hosts=hosts(*HOSTS), **QUICK,
        )  # fmt: skip
        asked = web.pictures()
    table = pq.read_table(sorted((folder / "laion2B_big").glob("part-*.parquet")))
    links = table["URL"].to_pylist()
    assert sorted(links) == sorted(row["URL"] for row in wanted) != links
    assert (
        selected.read == ROWS + ROWS // 16 == selected.written + sum(s["removed"] for s in selected.removed)
    )
    assert asked == Counter(
        {(name.split("/")[2].split(":")[0], "/" + name.split("/")[3]): 1 for name in links}
    )
    numbers = [int(link.rpartition("/")[2].removesuffix(".jpg")) for link in links]
    present = [number for number in numbers if number % 20 != 4]
    assert (downloaded.read, downloaded.written) == (len(numbers), len(present))
    assert downloaded.statuses == {"success": len(present), "http": len(numbers) - len(present)}
    assert len(present) > 30
    tarmac.index(sorted(folder.glob("image*.tar")), folder / "laion2B_big.json", meta=["json.punsafe"])
    return present


def as_tensor(image):
    return torch.from_numpy(np.array(image.resize((16, 16)), np.float32))


def read_as_the_guide_does(library: str, folder: Path, present: list[int]) -> None:
    """Run the last step with tarmac instead of webdataset, or with webdataset itself: the guide's code, unchanged."""
    code = READER.read_text().replace("import webdataset as wds", f"import {library} as wds")
    names = {"__name__": "example", "TAR_FOLDER": str(folder / "tars"), "PREPROCESS": as_tensor}
    exec(compile(code, "laion.py", "exec"), names)
    assert names["batch"]["image_tensor"].shape == (2, 16, 16, 3)
    assert names["batch"]["text_tokens"].shape[1:] == (77,)
    texts = [text for batch in names["every"] for text in batch["text"]]
    facts = [json.loads(text) for batch in names["every"] for text in batch["metadata"]]
    assert sorted(texts) == sorted(f"caption {number} – ü" for number in present)
    assert Counter(each["url"].rpartition("/")[2] for each in facts) == Counter(f"{n}.jpg" for n in present)


def load(folder: Path, present: list[int]) -> None:
    """Load the shards by number, and in epochs of batches."""
    dataset = tarmac.Dataset(str(folder / "laion2B_big.json"))
    assert [sample["txt"].decode() for sample in dataset] == [f"caption {number} – ü" for number in present]
    for number, sample in zip(present, dataset, strict=True):
        shorter = min(sides(number))
        if shorter <= SIZE:
            assert sample["jpg"] == picture(number, *sides(number))  # neither resized nor encoded again
    assert len(dataset.where("json.punsafe <= 0.2")) == sum(number % 10 <= 2 for number in present)

    decoded = dataset.decode("rgb8").to_tuple("jpg", "txt")
    loader = tarmac.Loader(decoded, batch_size=8, seed=1, shuffle=True, threads=0, tail="short", collate=list)
    epochs = [[sample for batch in loader for sample in batch] for _ in range(2)]
    for samples in epochs:
        assert sorted(text for _, text in samples) == sorted(f"caption {number} – ü" for number in present)
        for pixels, text in samples:
            number = int(text.split()[1])
            assert min(pixels.shape[:2]) == min(*sides(number), SIZE)
    assert [text for _, text in epochs[0]] != [text for _, text in epochs[1]]


def test_the_whole_guide(tmp_path, monkeypatch):
    """Select, download, index, and load: with the reader of the guide and with `Loader`."""
    clip = types.ModuleType("clip")
    clip.__dict__["tokenize"] = lambda texts, truncate: torch.tensor([[len(text)] * 77 for text in texts])
    monkeypatch.setitem(sys.modules, "clip", clip)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    present = shards(tmp_path)
    Path(tmp_path, "tars").mkdir()
    for number in (1, 2):
        Path(tmp_path, "tars", f"image{number}.tar").symlink_to(tmp_path / f"image{number - 1}.tar")
    for library in ("tarmac.webdataset", "webdataset"):
        read_as_the_guide_does(library, tmp_path, present)
    load(tmp_path, present)
