"""The layout of Hugging Face."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
import yaml

from tarmac.errors import UsageError
from tools.export.samples import fields, run, write


def card(folder):
    _, text, rest = (folder / "README.md").read_text().split("---\n")
    assert rest == ""
    return yaml.safe_load(text)


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
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["png"] == {"_type": "Image"}
    assert features["cls"] == {"dtype": "int64", "_type": "Value"}
    assert table.to_pylist()[1]["png"] == {"bytes": fields(1)["png"], "path": "k/001.png"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "data"]


def test_splits(tmp_path):
    urls = write(tmp_path, [8, 8])
    run(urls, "hf", tmp_path / "out", split={"train": 0.5, "test": 0.5}, fields={"image": "png"})
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


def test_an_existing_card_is_not_replaced(tmp_path):
    urls = write(tmp_path, [1])
    (tmp_path / "out").mkdir()
    (tmp_path / "out/README.md").write_text("mine")
    with pytest.raises(UsageError, match="README"):
        run(urls, "hf", tmp_path / "out")
    assert (tmp_path / "out/README.md").read_text() == "mine"
    run(urls, "hf", tmp_path / "out", overwrite=True, hf_split="validation")
    assert (tmp_path / "out/data/validation-00000-of-00001.parquet").exists()


def test_names_of_splits(tmp_path):
    urls = write(tmp_path, [1])
    run(urls, "hf", tmp_path / "out", hf_split="train.a")
    assert (tmp_path / "out/data/train.a-00000-of-00001.parquet").exists()
    with pytest.raises(UsageError, match="`hf_split`"):
        run(urls, "hf", tmp_path / "out", hf_split="../x")
    with pytest.raises(UsageError, match="stream"):
        run(urls, "hf", "-")


def test_only_one_of_the_splits(tmp_path):
    urls = write(tmp_path, [8, 8])
    report = run(urls, "hf", tmp_path / "out", split={"a": 0.5, "b": 0.5}, only="b", slice=slice(1, None))
    assert (report.units, report.read) == (2, 16)
    assert len(list((tmp_path / "out/data").glob("train-*-of-00002.parquet"))) == 2


def test_splits_can_be_exported_one_by_one(tmp_path):
    (tmp_path / "v").mkdir()
    train, val = write(tmp_path, [2, 1]), write(tmp_path / "v", [3])
    run(train, "hf", tmp_path / "out")
    run(val, "hf", tmp_path / "out", hf_split="validation")
    for again in (
        run(train, "hf", tmp_path / "out"),
        run(val, "hf", tmp_path / "out", hf_split="validation"),
    ):
        assert again.done == 0
    files = card(tmp_path / "out")["configs"][0]["data_files"]
    assert sorted(each["split"] for each in files) == ["train", "validation"]
    assert len(list((tmp_path / "out/data").iterdir())) == 3
    with pytest.raises(UsageError, match=r"README\.md"):
        run(val, "hf", tmp_path / "out", hf_split="test", fields={"image": "png"})
    assert len(list((tmp_path / "out/data").iterdir())) == 3
