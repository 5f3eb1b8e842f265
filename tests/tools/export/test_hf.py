"""The layout of Hugging Face."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
import yaml

from tarmac.errors import UrlError
from tarmac.tools.export.hf import Layout
from tarmac.tools.select import Select
from tools.export.samples import fields, run, write


def card(folder):
    _, told, rest = (folder / "README.md").read_text().split("---\n")
    assert rest == ""
    return yaml.safe_load(told)


def test_files_and_their_card(tmp_path):
    report = run(write(tmp_path, [2, 1]), "hf", tmp_path / "out/")
    names = sorted(path.name for path in (tmp_path / "out/data").iterdir())
    assert names == ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]
    assert (report.units, report.written) == (2, 3)
    assert card(tmp_path / "out") == {
        "configs": [
            {"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*.parquet"}]}
        ],
        "dataset_info": {
            "features": [
                {"name": "__key__", "dtype": "string"},
                {"name": "cls", "dtype": "int64"},
                {"name": "png", "dtype": "image"},
                {"name": "txt", "dtype": "string"},
                {"name": "json", "dtype": "string"},
            ]
        },
    }
    table = pq.read_table(tmp_path / "out/data" / names[0])
    told = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert told["png"] == {"_type": "Image"}
    assert told["cls"] == {"dtype": "int64", "_type": "Value"}
    assert table.to_pylist()[1]["png"] == {"bytes": fields(1)["png"], "path": "k/001.png"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "data"]


def test_parts_are_splits(tmp_path):
    urls = write(tmp_path, [8, 8])
    run(urls, "hf", tmp_path / "out", select=Select(part="train=0.5,test=0.5", fields="image=png"))
    splits = {each["split"]: each["path"] for each in card(tmp_path / "out")["configs"][0]["data_files"]}
    assert splits == {"train": "data/train-*.parquet", "test": "data/test-*.parquet"}
    keys = [
        row["__key__"]
        for path in sorted((tmp_path / "out/data").iterdir())
        for row in pq.read_table(path).to_pylist()
    ]
    assert sorted(keys) == [f"k/{number:03d}" for number in range(16)]
    features = card(tmp_path / "out")["dataset_info"]["features"]
    assert features[1] == {"name": "image", "dtype": "image"}


def test_what_is_there_is_not_replaced(tmp_path):
    urls = write(tmp_path, [1])
    (tmp_path / "out").mkdir()
    (tmp_path / "out/README.md").write_text("mine")
    with pytest.raises(UrlError, match="README"):
        run(urls, "hf", tmp_path / "out")
    assert (tmp_path / "out/README.md").read_text() == "mine"
    run(urls, "hf", tmp_path / "out", overwrite=True, split="validation")
    assert (tmp_path / "out/data/validation-00000-of-00001.parquet").exists()


def test_a_split_has_a_name():
    assert Layout("d", "train.a").name("", 1, 2) == "d/data/train.a-00001-of-00002.parquet"
    with pytest.raises(UrlError, match="--split"):
        Layout("d", "../x")


def test_splits_can_be_exported_one_by_one(tmp_path):
    (tmp_path / "v").mkdir()
    train, val = write(tmp_path, [2, 1]), write(tmp_path / "v", [3])
    run(train, "hf", tmp_path / "out")
    run(val, "hf", tmp_path / "out", split="validation")
    for again in (run(train, "hf", tmp_path / "out"), run(val, "hf", tmp_path / "out", split="validation")):
        assert again.done == 0
    files = card(tmp_path / "out")["configs"][0]["data_files"]
    assert sorted(each["split"] for each in files) == ["train", "validation"]
    assert len(list((tmp_path / "out/data").iterdir())) == 3
    with pytest.raises(UrlError, match="other columns"):
        run(val, "hf", tmp_path / "out", split="test", select=Select(fields="image=png"))
    assert len(list((tmp_path / "out/data").iterdir())) == 3
