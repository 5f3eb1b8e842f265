"""Conditions name the same columns in a Dataset and in every verb, with an index and without."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tarmac
from harness.folder import folder as folder_server
from tarmac.errors import BadCondition, TarmacError

CASES = {
    "jpg.width >= 24": [2, 3],
    "width >= 24": [2, 3],
    "height = 8 and lang = 'en'": [1, 3],
    "json.lang = 'de'": [0, 2],
    "deep.er > 1": [2, 3],
    "list.1 >= 4": [2, 3],
    "caption = 'Word 2' or lower(caption) = 'word 3'": [2, 3],
    "width = 8 and caption like '%0' and cls = 0": [0],
    "aes.json > 0.5": [2, 3],
    "score.txt >= 20 and score.txt < 30": [2],
    "number(txt) is null": [1, 3],
    "number(txt) = 2": [2],
    "cls in (1, 2)": [1, 2],
    "has(aes.json) and key > '1'": [2, 3],
    "score > 0.3": [2, 3],
    "score between 0.2 and 0.4 or score = 0": [0, 1, 2],
}
COLUMNS = [
    "jpg.width",
    "jpg.height",
    "json.lang",
    "json.deep.er",
    "json.list.1",
    "json.caption",
    "aes.json",
    "score.txt",
    "txt",
    "cls",
    "score",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("conditions")
    for name in ("plain", "indexed"):
        with tarmac.TarWriter(path / f"{name}.tar") as writer:
            for i in range(4):
                writer.write(
                    {
                        "__key__": str(i),
                        "jpg": np.zeros((8, 8 * (i + 1), 3), np.uint8),
                        "json": {
                            "lang": "en" if i % 2 else "de",
                            "deep": {"er": i},
                            "list": [i, 2 * i],
                            "caption": f"Word {i}",
                        },
                        "aes.json": i / 4 + 0.1,
                        "score.txt": str(i * 10),
                        "score": str(i / 5).encode(),  # as join adds it
                        "txt": "word" if i % 2 else str(i),
                        "cls": i,
                    }
                )
    tarmac.index(path / "indexed.tar", path / "index.json", meta=COLUMNS)
    return path


def copied(source, target, condition):
    tarmac.copy(source, target, where=condition)
    return [int(sample["__key__"]) for sample in tarmac.read(target)]


@pytest.mark.processes
@pytest.mark.parametrize(("condition", "expected"), CASES.items())
def test_the_same_names_everywhere(folder, tmp_path, monkeypatch, condition, expected):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    manifest, plain, indexed = (str(folder / name) for name in ("index.json", "plain.tar", "indexed.tar"))
    assert [int(key) for key in tarmac.Dataset(manifest).where(condition).keys()] == expected  # noqa: SIM118
    assert copied(manifest, tmp_path / "a.tar", condition) == expected
    assert copied(indexed, tmp_path / "b.tar", condition) == expected
    assert copied(plain, tmp_path / "c.tar", condition) == expected
    assert copied(f"pipe:cat {plain}", tmp_path / "d.tar", condition) == expected
    for source in (manifest, plain, f"pipe:cat {plain}"):
        assert [int(sample.key) for sample in tarmac.show(source, where=condition)] == expected
    tarmac.export(plain, tmp_path / "e.jsonl", fields=["cls"], where=condition)
    assert len((tmp_path / "e.jsonl").read_text().splitlines()) == len(expected)
    tarmac.sort(plain, tmp_path / "f.tar", by="key", where=condition)
    assert [int(sample["__key__"]) for sample in tarmac.read(tmp_path / "f.tar")] == expected
    for source in (manifest, plain):
        audit = tarmac.audit(source, where=condition, batch_size=1)
        assert audit.summary().samples == len(expected)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["widht", "jpg.widht", "json.lagn", "lagn"])
def test_misspelt_columns(folder, tmp_path, monkeypatch, name):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    right = "jpg.width" if "wid" in name else "json.lang"
    condition = f"{name} > 3" if "wid" in name else f"{name} = 'en'"
    manifest, plain = str(folder / "index.json"), str(folder / "plain.tar")
    for use in (
        lambda: tarmac.Dataset(manifest).where(condition),
        lambda: tarmac.copy(manifest, tmp_path / "a.tar", where=condition),
        lambda: tarmac.copy(plain, tmp_path / "b.tar", where=condition),
        lambda: tarmac.copy(f"pipe:cat {plain}", tmp_path / "c.tar", where=condition),
        lambda: tarmac.export(plain, tmp_path / "d.jsonl", where=condition),
        lambda: list(tarmac.show(plain, where=condition)),
        lambda: tarmac.audit(plain, where=condition, batch_size=1),
    ):
        with pytest.raises(TarmacError, match=f"did you mean {right}"):
            use()


def test_ambiguous_names(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    with pytest.raises(BadCondition, match=r"ambiguous: .*cls.size"):
        tarmac.copy(str(folder / "plain.tar"), tmp_path / "a.tar", where="size > 3")


@pytest.mark.processes
@pytest.mark.parametrize("source", ["index.json", "x.tar"])
def test_an_index_decides_what_a_short_name_means(tmp_path, source):
    """Also where samples are read from start to end."""
    with tarmac.TarWriter(tmp_path / "x.tar") as writer:
        for i in range(4):
            image = np.zeros((8, 8, 3), np.uint8)
            writer.write({"__key__": str(i), "jpg": image, "json": {"width": i}})
    tarmac.index(tmp_path / "x.tar", tmp_path / "index.json", meta=["json.width"])
    url, condition = str(tmp_path / source), "width >= 2"
    assert [int(sample.key) for sample in tarmac.show(url, where=condition)] == [2, 3]
    assert [int(sample.key) for sample in tarmac.show(url, where=condition, at=[0])] == [2]
    assert copied(url, tmp_path / "a.tar", condition) == [2, 3]
    with folder_server(tmp_path) as server:
        tarmac.copy(f"{server}/{source}", f"{tmp_path}/out/", where=condition)
    assert [int(sample["__key__"]) for sample in tarmac.read(str(tmp_path / "out/x.tar"))] == [2, 3]


def test_a_field_without_an_extension_that_is_not_text(tmp_path):
    with tarmac.TarWriter(tmp_path / "x.tar", encoder=False) as writer:
        writer.write({"__key__": "a", "raw": b"\xff\xfe"})
    with pytest.raises(BadCondition, match=r'"raw".*available: raw\.size'):
        list(tarmac.show(str(tmp_path / "x.tar"), where="raw = 1"))


@pytest.mark.parametrize(
    ("name", "columns"), [("cls", ["cls"]), ("score", ["score"]), ("json.lang", ["json.lang"])]
)
def test_the_hint_for_a_column_that_is_not_indexed(folder, tmp_path, name, columns):
    manifest = str(tmp_path / "some.json")
    tarmac.index(str(folder / "plain.tar"), manifest, sidecars=str(tmp_path), meta=["txt"])
    condition = f"{name} is not null"
    with pytest.raises(BadCondition) as caught:
        tarmac.Dataset(manifest).where(condition)
    hinted = re.search(r"--meta (?:FIELD\S+ or )?(\S+)", caught.value.hint)[1]
    assert [hinted] == columns
    tarmac.index(manifest, manifest, meta=[hinted])
    assert len(tarmac.Dataset(manifest).where(condition)) == 4
