"""YAML documents."""

from __future__ import annotations

import yaml

from tools.export.samples import TEXT, fields, odd, run, write


def test_every_kind_of_field(tmp_path):
    run(write(tmp_path, [1, 1]), "yaml", tmp_path / "x.yaml")
    documents = list(yaml.safe_load_all((tmp_path / "x.yaml").read_bytes()))
    assert documents == [
        {
            "__key__": f"k/{number:03d}",
            "cls": number,
            "png": fields(number)["png"],
            "txt": f"{TEXT}{number}",
            "json": {"n": number, "é": [1, None, "x\ny"]},
        }
        for number in range(2)
    ]


def test_text_that_looks_like_something_else(tmp_path):
    texts = [b"no", b"12", b"---", b"", b"# x", b"a: b", b"\x07\n  x  \n"]
    shard = odd(tmp_path, [(f"{number}.txt", text) for number, text in enumerate(texts)])
    run(shard, "yaml", tmp_path / "x.yaml")
    documents = list(yaml.safe_load_all((tmp_path / "x.yaml").read_bytes()))
    assert [each["txt"].encode() for each in documents] == texts
    assert [each["__key__"] for each in documents] == [str(number) for number in range(len(texts))]
