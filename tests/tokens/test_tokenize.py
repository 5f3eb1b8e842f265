"""`tarmac.tokenize`: texts, images and sequences of both become records, exactly."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest

import tarmac
from tarmac.errors import DecodeFailed, JobMismatch, MissingField, TransformFailed, UsageError
from tarmac.tools.mappers.records import FIELD, from_arrow, iter_rows
from tokens.models import Letters, caption, train_tokenizer

MODELS = f"{Path(__file__).parent}/models.py"


def rows(folder: Path) -> dict[str, dict[str, list[int]]]:
    """Return the rows of all parts by key; a key that occurs twice is an error."""
    present = [
        row for sample in tarmac.read(f"{folder}/*.tar") for row in iter_rows(from_arrow(sample[FIELD]))
    ]
    assert len(present) == len({key for key, _ in present})
    return {key: {name: np.asarray(value).tolist() for name, value in row.items()} for key, row in present}


def picture(number: int) -> bytes:
    import simplejpeg

    colour = np.zeros(3, np.uint8) if number == 0 else np.random.default_rng(number).integers(0, 256, 3)
    pixels = np.broadcast_to(colour.astype(np.uint8), (48, 80, 3))
    return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=95)


def make(folder: Path, shards: int = 3, samples: int = 50, images: bool = False) -> str:
    for shard in range(shards):
        with tarmac.TarWriter(folder / f"in-{shard}.tar") as writer:
            for number in range(shard * samples, (shard + 1) * samples):
                sample = {"__key__": f"{number:06d}", "txt": caption(number), "cls": number}
                writer.write(sample | ({"jpg": picture(number)} if images else {}))
    return f"{folder}/in-*.tar"


def reference(tokenizer: str, texts: list[str], block: int | None = None) -> list[list[int]]:
    """Tokenize one text at a time, in plain Python."""
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(tokenizer)
    if block is not None:
        loaded.enable_truncation(block)
    return [loaded.encode(text).ids for text in texts]


def test_texts(tmp_path):
    shards, tokenizer = make(tmp_path), train_tokenizer(tmp_path / "tokenizer.json")
    report = tarmac.tokenize(shards, tmp_path / "out", text="txt", tokenizer=tokenizer, batch_size=16, jobs=1)
    expected = reference(tokenizer, [caption(number) for number in range(150)])
    size = len(json.loads(Path(tokenizer).read_text())["model"]["vocab"])
    present = rows(tmp_path / "out")
    assert [present[f"{number:06d}"]["tokens"] for number in range(150)] == expected
    assert (report.read, report.written, report.failed, report.units) == (150, 150, 0, 3)
    assert report.notes["tokens"] == sum(map(len, expected))
    sample = next(iter(tarmac.read(f"{tmp_path}/out/in-0.tar")))
    info = from_arrow(sample[FIELD]).schema.info
    assert (info["vocab_size"], info["pad_token"], info["special_tokens"]["</s>"]) == (size, 3, 2)
    assert from_arrow(sample[FIELD]).schema.columns["tokens"].dtype == "uint16"


def test_texts_are_cut_to_blocks_and_keep_their_special_tokens(tmp_path):
    shards, tokenizer = make(tmp_path), train_tokenizer(tmp_path / "tokenizer.json")
    report = tarmac.tokenize(shards, tmp_path / "out", text="txt", tokenizer=tokenizer, block_size=8, jobs=1)
    texts = [caption(number) for number in range(150)]
    expected, whole = reference(tokenizer, texts, 8), reference(tokenizer, texts)
    present = [present for _, present in sorted(rows(tmp_path / "out").items())]
    assert [row["tokens"] for row in present] == expected
    assert [row["truncated"] for row in present] == [max(len(each) - 8, 0) for each in whole]
    assert report.notes["samples_truncated"] == sum(len(each) > 8 for each in whole)


@pytest.mark.parametrize("options", [{"jobs": 2}, {"batch_size": 7, "jobs": 1}, {"task": "0/1"}])
def test_the_same_rows_however_they_are_computed(tmp_path, options):
    shards = make(tmp_path)
    tokenizer = train_tokenizer(tmp_path / "tokenizer.json")
    tarmac.tokenize(shards, tmp_path / "a", text="txt", tokenizer=tokenizer, jobs=1)
    tarmac.tokenize(shards, tmp_path / "b", text="txt", tokenizer=tokenizer, **options)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")


def test_an_object_with_encode(tmp_path):
    shards = make(tmp_path, 1)
    tarmac.tokenize(
        shards, tmp_path / "out", text="txt", tokenizer=f"{MODELS}:Letters", block_size=10, jobs=1
    )
    present = rows(tmp_path / "out")
    assert [present[f"{n:06d}"]["tokens"] for n in range(50)] == [
        list(caption(n).encode())[:10] for n in range(50)
    ]


def test_an_instance_with_encode(tmp_path):
    shards = make(tmp_path, 1)
    tarmac.tokenize(shards, tmp_path / "a", text="txt", tokenizer=f"{MODELS}:Letters", jobs=1)
    tarmac.tokenize(shards, tmp_path / "b", text="txt", tokenizer=Letters(), jobs=1)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")


def test_large_vocabularies_take_32_bits(tmp_path):
    shards = make(tmp_path, 1)
    tarmac.tokenize(shards, tmp_path / "out", text="txt", tokenizer=f"{MODELS}:Wide", jobs=1)
    record = from_arrow(next(iter(tarmac.read(f"{tmp_path}/out/in-0.tar")))[FIELD])
    assert record.columns["tokens"].values.dtype == np.uint32
    assert record.columns["tokens"][0][0] == 99_999


def codes(number: int) -> list[int]:
    """What the model gives for a picture of one colour, computed without tarmac."""
    import simplejpeg
    import torch

    from tokens.models import VQ

    model = VQ()
    model.setup("cpu")
    pixels = simplejpeg.decode_jpeg(picture(number))
    return model.encode(np.ascontiguousarray(pixels[:32, 24:56])[None])[0].tolist() if torch else []


def test_images_and_texts_have_columns_of_their_own(tmp_path):
    shards = make(tmp_path, 2, 20, images=True)
    report = tarmac.tokenize(
        shards, tmp_path / "out", text="txt", tokenizer=f"{MODELS}:Letters", image="jpg",
        image_tokenizer=f"{MODELS}:VQ", resolution=32, batch_size=8, image_token_shift=256, jobs=1,
    )  # fmt: skip
    present = rows(tmp_path / "out")
    for number in range(40):
        row = present[f"{number:06d}"]
        assert row["text"] == list(caption(number).encode())
        assert row["image"] == codes(number)
    assert present["000000"]["image"] == [0, 0, 0, 0]  # a valid code
    assert report.written == 40


def test_sequences_of_texts_and_images(tmp_path):
    with tarmac.TarWriter(tmp_path / "in.tar") as writer:
        for number in range(9):
            listed = [caption(number), {"image": "1.jpg"}, {"text": "end"}]
            sample = {"0.txt": caption(number), "0.jpg": picture(number), "1.jpg": picture(number + 1)}
            writer.write({"__key__": str(number), **sample, "list.json": listed})
    options = {
        "tokenizer": f"{MODELS}:Letters",
        "image_tokenizer": f"{MODELS}:VQ",
        "resolution": 32,
        "jobs": 1,
    }
    tarmac.tokenize(f"{tmp_path}/in.tar", tmp_path / "a", interleave="0.txt,0.jpg,1.jpg", **options)
    tarmac.tokenize(f"{tmp_path}/in.tar", tmp_path / "b", interleave=["list.json"], block_size=12, **options)
    a, b = rows(tmp_path / "a"), rows(tmp_path / "b")
    for number in range(9):
        text, first, second = list(caption(number).encode()), codes(number), codes(number + 1)
        assert a[str(number)]["tokens"] == [*text, *first, *second]
        assert a[str(number)]["modality"] == [0] * len(text) + [1] * 8
        whole = [*text, *second, *b"end"]
        assert b[str(number)]["tokens"] == whole[:12]
        assert b[str(number)]["modality"] == ([0] * len(text) + [1] * 4 + [0] * 3)[:12]
        assert b[str(number)]["truncated"] == max(len(whole) - 12, 0)


def test_failed_samples_are_counted_with_a_reason(tmp_path):
    with tarmac.TarWriter(tmp_path / "in.tar", encoder=False) as writer:
        for number in range(10):
            fields = {"txt": b"\xff" if number == 3 else b"text"} if number != 7 else {"cls": b"1"}
            writer.write({"__key__": str(number), **fields})
    options = {"text": "txt", "tokenizer": f"{MODELS}:Letters", "jobs": 1}
    with pytest.raises(DecodeFailed, match=r'in\.tar.*"3"'):
        tarmac.tokenize(f"{tmp_path}/in.tar", tmp_path / "out", **options)
    report = tarmac.tokenize(f"{tmp_path}/in.tar", tmp_path / "out", on_error="skip", **options)
    assert (report.read, report.written, report.failed) == (10, 8, 2)
    assert "UTF-8" in report.errors[0]
    assert 'no field "txt"' in report.errors[1]
    assert rows(tmp_path / "out").keys() == set("01245689")
    with pytest.raises(MissingField):
        tarmac.tokenize(f"{tmp_path}/in.tar", tmp_path / "b", slice=slice(7, 8), **options)


def test_a_batch_that_fails_fails_only_its_bad_samples(tmp_path):
    def encode(text):
        if "tree" in text:
            raise ValueError("no trees")
        return [1, 2]

    encode.vocab_size = 3
    shards = make(tmp_path, 1, 50)
    report = tarmac.tokenize(shards, tmp_path / "out", text="txt", tokenizer=encode, on_error="skip", jobs=1)
    bad = [number for number in range(50) if "tree" in caption(number)]
    assert report.failed == len(bad) > 0
    assert rows(tmp_path / "out").keys() == {f"{n:06d}" for n in range(50) if n not in bad}


@pytest.mark.parametrize("runs", [[{"jobs": 1}], [{"jobs": 2}], [{"task": "1/2"}, {"task": "0/2"}]])
def test_limit_takes_the_first_samples(tmp_path, runs):
    shards = make(tmp_path)
    for run in runs:
        tarmac.tokenize(shards, tmp_path / "out", text="txt", tokenizer=f"{MODELS}:Letters", limit=70, **run)
    assert rows(tmp_path / "out").keys() == {f"{number:06d}" for number in range(70)}


@pytest.mark.parametrize("options", [{"jobs": 1}, {"jobs": 2}])
def test_shards_that_are_only_streams(tmp_path, options):
    """Compressed shards, and commands, have the parts of plain ones."""
    plain = sorted(Path(make(tmp_path)).parent.glob("in-*.tar"))
    streams = []
    for number, path in enumerate(plain):
        (tmp_path / f"packed-{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        streams.append(f"{tmp_path}/packed-{path.name}.gz" if number else f"pipe:cat {path}")
    letters = {"text": "txt", "tokenizer": f"{MODELS}:Letters", "batch_size": 16, **options}
    tarmac.tokenize(plain, tmp_path / "plain", **letters)
    report = tarmac.tokenize(streams, tmp_path / "out", **letters)
    assert (report.read, report.written) == (150, 150)
    assert rows(tmp_path / "out") == rows(tmp_path / "plain")
    assert tarmac.combine(tmp_path / "out", jobs=1).written == 150


def test_shards_that_a_job_cannot_read_in_this_way(tmp_path):
    (tmp_path / "in.tar.gz").write_bytes(
        gzip.compress(Path(make(tmp_path, 1).replace("*", "0")).read_bytes())
    )
    for source, options, message in (
        ("-", {}, "standard input has no name, which its part would have"),
        (f"{tmp_path}/in.tar.gz", {"limit": 5}, "`limit`: .*compressed shards cannot be counted"),
    ):
        with pytest.raises(UsageError, match=message):
            tarmac.tokenize(source, tmp_path / "out", text="txt", tokenizer=Letters(), jobs=1, **options)


def test_other_tokenizers_are_other_jobs(tmp_path):
    shards, tokenizer = make(tmp_path, 1), train_tokenizer(tmp_path / "tokenizer.json")
    options = {"text": "txt", "jobs": 1}
    tarmac.tokenize(shards, tmp_path / "out", tokenizer=tokenizer, **options)
    again = tarmac.tokenize(shards, tmp_path / "out", tokenizer=tokenizer, **options)
    assert (again.done, again.kept) == (0, 1)
    with pytest.raises(JobMismatch):
        tarmac.tokenize(shards, tmp_path / "out", tokenizer=tokenizer, block_size=9, **options)
    changed = json.loads(Path(tokenizer).read_text())
    changed["post_processor"] = None
    Path(tokenizer).write_text(json.dumps(changed))
    with pytest.raises(JobMismatch):
        tarmac.tokenize(shards, tmp_path / "out", tokenizer=tokenizer, **options)


def test_bad_tokenizers(tmp_path):
    shards = make(tmp_path, 1)
    (tmp_path / "damaged.json").write_text('{"version": "1.0", "model"')
    bad = {
        f"{tmp_path}/missing.json": (UsageError, "no such file"),
        f"{tmp_path}/damaged.json": (UsageError, "not a file of the tokenizers library"),
        f"{MODELS}:Silent": (UsageError, "size of its vocabulary"),
        f"{MODELS}:Missing": (UsageError, "has no function 'Missing'"),
        f"{MODELS}:Beyond": (TransformFailed, "from 0 to 99"),
    }
    for name, (error, message) in bad.items():
        with pytest.raises(error, match=message):
            tarmac.tokenize(shards, tmp_path / "out", text="txt", tokenizer=name, jobs=1)
    assert not list(tmp_path.glob("out/*.tar"))
    tarmac.tokenize(shards, tmp_path / "a", text="txt", tokenizer=f"{MODELS}:Silent", vocab_size=256, jobs=1)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"text": "txt"}, {"tokenizer": "x:y"}, {"image": "jpg", "tokenizer": f"{MODELS}:Letters"},
        {"text": "txt", "tokenizer": f"{MODELS}:Letters", "interleave": "txt"},
        {"text": "txt", "tokenizer": f"{MODELS}:Letters", "limit": 0},
        {"text": "txt", "tokenizer": f"{MODELS}:Letters", "block_size": 0},
        {"text": "txt", "tokenizer": f"{MODELS}:Letters", "limit": 2, "slice": slice(0, 3)},
        {"text": "txt", "tokenizer": f"{MODELS}:Letters", "add_tokens": ["<image>"]},
    ],
)  # fmt: skip
def test_options_that_make_no_sense(tmp_path, options):
    with pytest.raises(UsageError):
        tarmac.tokenize(make(tmp_path, 1), tmp_path / "out", **options)


def test_added_tokens(tmp_path):
    with tarmac.TarWriter(tmp_path / "in.tar") as writer:
        writer.write({"__key__": "a", "txt": "a <image> dog"})
    tokenizer = train_tokenizer(tmp_path / "tokenizer.json")
    options = {"text": "txt", "tokenizer": tokenizer, "add_tokens": ["<image>"], "jobs": 1}
    tarmac.tokenize(f"{tmp_path}/in.tar", tmp_path / "out", **options)
    size = len(json.loads(Path(tokenizer).read_text())["model"]["vocab"])
    assert size in rows(tmp_path / "out")["a"]["tokens"]
    again = tarmac.tokenize(f"{tmp_path}/in.tar", tmp_path / "out", **options | {"add_tokens": "<image>"})
    assert again.kept == 1  # one name is a list of one


def test_only_the_needed_fields_are_read(tmp_path, monkeypatch):
    shards = make(tmp_path, 1, 5, images=True)
    seen = []
    from tarmac.tokens.mapper import TokenMapper

    prepare = TokenMapper.prepare_all
    monkeypatch.setattr(
        TokenMapper, "prepare_all", lambda self, s: seen.extend(map(set, s)) or prepare(self, s)
    )
    tarmac.tokenize(shards, tmp_path / "out", text="txt", tokenizer=f"{MODELS}:Letters", jobs=1)
    assert all("jpg" not in fields and "txt" in fields for fields in seen)
    assert len(seen) == 5


def test_the_command_line(tmp_path, capsys):
    from tarmac.cli import main

    shards, tokenizer = make(tmp_path, 1), train_tokenizer(tmp_path / "tokenizer.json")
    arguments = ["tokenize", shards, "-o", f"{tmp_path}/out", "--text", "txt", "--tokenizer", tokenizer]
    with pytest.raises(SystemExit, match="0"):
        main([*arguments, "--block-size", "8", "-j", "1"])
    assert "samples truncated" in capsys.readouterr().err
    assert len(rows(tmp_path / "out")) == 50


def test_pictures_of_any_shape(tmp_path):
    from PIL import Image

    with tarmac.TarWriter(tmp_path / "in.tar", encoder=False) as writer:
        for number, (mode, size) in enumerate([("L", (40, 90)), ("RGBA", (33, 32)), ("RGB", (8, 8))]):
            stream = io.BytesIO()
            Image.new(mode, size).save(stream, "PNG")
            writer.write({"__key__": str(number), "png": stream.getvalue()})
    options = {"image": "png", "image_tokenizer": f"{MODELS}:VQ", "resolution": 32, "jobs": 1}
    tarmac.tokenize(f"{tmp_path}/in.tar", tmp_path / "out", **options)
    assert {key: len(row["tokens"]) for key, row in rows(tmp_path / "out").items()} == {
        "0": 4,
        "1": 4,
        "2": 4,
    }


@pytest.mark.processes
def test_repeated_samples(tmp_path):
    """A key may occur again in a shard, also as the first of several records; combining keeps it once."""
    import subprocess

    urls = []
    for number in range(2):
        with tarmac.TarWriter(tmp_path / f"{number}.tar") as writer:
            for key in ("a", "b"):
                writer.write({"__key__": key, "txt": f"{key}{number}"})
        urls.append(f"{tmp_path}/{number}.tar")
    subprocess.run(["tar", "-A", "-f", *urls], check=True)
    options = {"text": "txt", "tokenizer": f"{MODELS}:Letters", "batch_size": 1, "jobs": 1}
    report = tarmac.tokenize(urls[0], tmp_path / "out", repeated="keep", **options)
    assert report.written == 4
    assert tarmac.combine(tmp_path / "out").notes["duplicates"] == 2
    combined = tarmac.Tokens(tmp_path / "out" / "combined")
    assert {row["__key__"]: bytes(row["tokens"].tolist()) for row in combined} == {"a": b"a0", "b": b"b0"}
