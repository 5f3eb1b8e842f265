"""Every sample that comes in is accounted for, and a selection that nobody can have meant is an error."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from tarmac.cli import main
from tarmac.errors import BadCondition
from tools.shards import keys, make

FUNCTIONS = """
def twice(sample):
    yield sample
    yield sample | {"__key__": sample["__key__"] + "-2"}

def some(sample):
    if sample["__key__"].endswith("1"):
        return None
    if sample["__key__"].endswith("2"):
        raise ValueError("two")
    return sample
"""
VERBS = {
    "copy": ["copy", "-o", "out/"],
    "copy to one": ["copy", "-o", "out/x.tar"],
    "shuffled": ["copy", "--shuffle", "-o", "out/x-{i}.tar", "--max-samples", "3"],
    "sort": ["sort", "-o", "out/x-{i}.tar"],
    "first of each class": ["sort", "--by", "cls", "--unique", "first", "-o", "out/x-{i}.tar"],
    "map": ["map", "--py", "f.py:some", "--on-error", "skip", "-o", "out/"],
    "map to more": ["map", "--py", "f.py:twice", "-o", "out/x.tar"],
    "join": ["join", "--with", "t.csv", "-o", "out/"],
    "inner join": ["join", "--with", "t.csv", "--how", "inner", "-o", "out/x.tar"],
    "jsonl": ["export", "-o", "out/x.jsonl"],
    "parquet": ["export", "--on-error", "skip", "-o", "out/x-{i}.parquet"],
}
SELECT = {
    "all": [],
    "where": ["--where", "json.width < 50"],
    "keys": ["--keys", "keys.txt"],
    "slice": ["--slice", "2:9"],
    "slice of each": ["--slice-shard", "1::2"],
    "part": ["--part", "a=0.5,b=0.5", "--only", "a"],
    "fields": ["--fields", "cls,extra", "--missing", "skip"],
    "several": ["--where", "json.width > 0", "--slice-shard", ":6", "--slice", ":7", "--missing", "skip"],
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Two shards of ten samples; the first three of each have one more field."""
    for shard in range(2):
        with tarmac.TarWriter(str(tmp_path / f"in-{shard}.tar")) as writer:
            for number in range(10):
                extra = {"extra": b"x"} if number < 3 else {}
                writer.write(
                    {
                        "__key__": f"{shard}{number}",
                        "cls": number % 4,
                        "json": {"width": 10 * number},
                        **extra,
                    }
                )
        packed = gzip.compress((tmp_path / f"in-{shard}.tar").read_bytes())
        (tmp_path / f"in-{shard}.tar.gz").write_bytes(packed)
    (tmp_path / "f.py").write_text(FUNCTIONS)
    (tmp_path / "t.csv").write_text("key,score\n" + "".join(f"0{i},{i}\n" for i in range(5)))
    (tmp_path / "keys.txt").write_text("00\n03\n11\n17\nnone\n./12\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tarmac_cli(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    shown = capsys.readouterr()
    return done.value.code or 0, shown.out, shown.err


def balanced(facts):
    out = facts["written"] + facts["failed"] + facts["dropped"] + facts["left_out"]
    return facts["read"] + facts["added"] == out


@pytest.mark.parametrize("form", ["tar", "tar.gz"])
@pytest.mark.parametrize("select", SELECT)
@pytest.mark.parametrize("verb", VERBS)
def test_what_comes_in_is_out_or_left_out_or_dropped_or_failed(here, capsys, verb, select, form):
    command = [*VERBS[verb], *SELECT[select], f"in-0.{form}", f"in-1.{form}", "-j", "1", "--json"]
    status, told, said = tarmac_cli(capsys, *command)
    if form == "tar.gz" and status == 2:  # what cannot be done with streams
        assert any(words in said for words in ("front to back", "need one output", "makes one file"))
        return
    facts = json.loads(told)
    assert balanced(facts), facts
    assert facts["read"] == 20 or (form == "tar.gz" and "--slice" in SELECT[select])
    assert facts.get("remarks", []) == (
        ["1 keys of keys.txt are not there: 'none'"] if select == "keys" else []
    )
    again = json.loads(tarmac_cli(capsys, *command)[1])
    same = ("read", "left_out", "added", "written", "failed", "dropped")
    assert [again[name] for name in same] == [facts[name] for name in same]
    assert again["done"] == 0


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_numbers_are_those_of_the_selection(tmp_path_factory, data):
    """The report says what Python counts: 20 in, so many chosen, as many out."""
    from tarmac.tools.copy import copy
    from tarmac.tools.output import Output
    from tarmac.tools.select import Select
    from tools.shards import RUN

    folder = tmp_path_factory.mktemp("law")
    sizes = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
    urls = make(folder, *sizes)
    width = data.draw(st.integers(0, 60))
    first, last = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 8))
    chosen = list(tarmac.read(urls))
    expected = [s["__key__"] for s in chosen if json.loads(s["json"])["width"] < width][first:last]
    select = Select(where=f"json.width < {width}", slice=f"{first}:{last}")
    if sum(sizes) and not expected:
        with pytest.raises(tarmac.errors.JobError, match=f"chooses none of {sum(sizes)} samples"):
            copy(urls, Output(f"{folder}/o.tar"), RUN, select=select)
        return
    report = copy(urls, Output(f"{folder}/o.tar"), RUN, select=select)
    assert (report.read, report.left_out) == (sum(sizes), sum(sizes) - len(expected))
    assert keys(f"{folder}/o.tar") == expected


def test_the_line_says_how_many_of_how_many(here, capsys):
    _, _, said = tarmac_cli(capsys, "copy", "in-0.tar", "in-1.tar", "-o", "x.tar", "--where", "cls = 1")
    assert said.startswith("copy: 20 samples in, 6 selected, 6 out, ")
    _, _, said = tarmac_cli(capsys, "copy", "in-0.tar", "-o", "y.tar", "--keys", "keys.txt")
    assert said.startswith(
        "4 keys of keys.txt are not there: '11', '12', '17', 'none'\ncopy: 10 samples in, 2 sel"
    )
    assert keys("y.tar") == ["00", "03"]


TYPO = '"json.widht" is missing in all 20 samples; did you mean json.width'


@pytest.mark.parametrize("form", ["tar", "tar.gz"])
@pytest.mark.parametrize(
    "verb",
    [
        *(VERBS[name] for name in ("copy", "copy to one", "sort", "map", "join", "jsonl", "parquet")),
        ["show"],
        ["show", "--total"],
    ],
    ids=lambda words: " ".join(words),
)
def test_a_column_that_no_sample_has_is_an_error(here, capsys, verb, form):
    shards = [f"in-0.{form}", f"in-1.{form}"]
    status, out, said = tarmac_cli(capsys, *verb, *shards, "--where", "cls = 1 and json.widht > 3")
    assert (status, out) == (2, "")
    assert TYPO in said or "read once, from front to back" in said or "makes one file" in said
    assert keys("out/*.tar") == []


@pytest.mark.parametrize("form", ["tar", "tar.gz"])
@pytest.mark.parametrize(
    "condition", ["json.widht is null", "json.widht > 3 or cls >= 0", "not has(nothing)"]
)
def test_a_column_that_no_sample_has_may_be_asked_for_all_the_same(here, capsys, condition, form):
    status, _, said = tarmac_cli(capsys, "copy", f"in-0.{form}", "-o", "x.tar", "--where", condition)
    assert (status, said[:22]) == (0, "copy: 10 samples in, 1"[:22])
    assert len(keys("x.tar")) == 10


def test_a_dataset_says_so_too(here):
    tarmac_index = ["index", "in-0.tar", "in-1.tar", "-o", "m.json", "--meta", "json.widht,json.width,cls"]
    with pytest.raises(SystemExit):
        main(tarmac_index)
    dataset = tarmac.Dataset("m.json")
    with pytest.raises(BadCondition, match=TYPO):
        dataset.where("json.widht > 3")
    with pytest.raises(BadCondition, match="missing in all 20 samples"):
        dataset.where("cls > 100 or json.widht > 3")
    assert len(dataset.where("json.widht is null")) == 20
    assert len(dataset.where("json.widht > 3 or cls = 1")) == 6
    assert len(dataset.where("cls > 100")) == 0
    assert len(dataset[:0].where("json.widht > 3")) == 0


@pytest.mark.parametrize("form", ["tar", "tar.gz"])
@pytest.mark.parametrize("verb", ["copy", "sort", "map", "jsonl"])
@pytest.mark.parametrize(
    "select",
    [("--where", "cls = 99"), ("--slice", "100:"), ("--slice-shard", "50:"), ("--keys", "wrong.txt")],
    ids=" ".join,
)
def test_an_empty_selection_is_an_error(here, capsys, verb, select, form):
    (here / "wrong.txt").write_text("000\n001\n")
    status, out, said = tarmac_cli(capsys, *VERBS[verb], f"in-0.{form}", *select)
    assert (status, out) == (2, "")
    if select[0] == "--keys":
        assert "wrong.txt: none of the 2 keys that are listed is there: '000', '001'." in said
        assert "such as '00'" in said
    elif "front to back" not in said and "need one output" not in said and "makes one file" not in said:
        assert f"the selection is empty: {' '.join(select)} chooses none of 10 samples." in said
    assert keys("out/*.tar") == []


def test_asking_for_what_is_not_there_is_no_mistake(here, capsys):
    assert tarmac_cli(capsys, "show", "in-0.tar", "--where", "cls = 99") == (0, "", "")
    assert tarmac_cli(capsys, "show", "in-0.tar", "--where", "cls = 99", "--total")[0] == 0


def test_nothing_to_do_is_said(here, capsys):
    status, _, said = tarmac_cli(capsys, "copy", "none-*.tar", "-o", "x.tar")
    assert (status != 0, "none-*.tar" in said) == (True, True)
    with tarmac.TarWriter("empty.tar"):
        pass
    for verb in ("copy", "sort", "map", "jsonl"):
        status, _, said = tarmac_cli(capsys, *VERBS[verb], "empty.tar")
        assert (status, "0 samples in, 0 out, 0 bytes; nothing to do: there are no samples" in said) == (
            0,
            True,
        )
    command = "copy", "in-0.tar", "-o", "done/"
    assert tarmac_cli(capsys, *command)[0] == 0
    status, _, said = tarmac_cli(capsys, *command)
    assert (status, said.endswith("nothing to do, all 1 were done before\n")) == (0, True)


def test_a_part_without_samples_is_said(here, capsys):
    command = "copy", "in-0.tar", "-o", "{part}.tar", "--part", "all=0.999999,none=0.000001"
    status, _, said = tarmac_cli(capsys, *command)
    assert (status, said.startswith("the part none has no samples\ncopy: 10 samples in, 10 out")) == (0, True)
