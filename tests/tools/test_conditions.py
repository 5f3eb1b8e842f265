"""Conditions name the same columns in a Dataset and in every verb, with an index and without."""

from __future__ import annotations

import numpy as np
import pytest

import tarmac
from tarmac.errors import BadCondition, TarmacError

CASES = {
    "jpg.width >= 24": [2, 3],
    "width >= 24": [2, 3],
    "height = 8 and lang = 'en'": [1, 3],
    "json.lang = 'de'": [0, 2],
    "deep.er > 1": [2, 3],
    "aes.json > 0.5": [2, 3],
    "score.txt >= 20 and score.txt < 30": [2],
    "number(txt) is null": [1, 3],
    "number(txt) = 2": [2],
    "cls in (1, 2)": [1, 2],
    "has(aes.json) and key > '1'": [2, 3],
}
COLUMNS = ["jpg.width", "jpg.height", "json.lang", "json.deep.er", "aes.json", "score.txt", "txt", "cls"]


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
                        "json": {"lang": "en" if i % 2 else "de", "deep": {"er": i}},
                        "aes.json": i / 4 + 0.1,
                        "score.txt": str(i * 10),
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
