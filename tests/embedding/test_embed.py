"""Embedding samples: vectors, metadata, failures, and what a job may continue."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import tarmac
from embedding.models import HERE, Both, Colours, Letters, letters
from embedding.shards import caption, captions, picture, write, written
from harness.waiting import until
from tarmac.errors import (
    DecodeFailed,
    ErrorBudgetExceeded,
    JobError,
    JobMismatch,
    MissingField,
    NotFound,
    TransformFailed,
    UsageError,
)
from tarmac.extras import MissingExtra


def unit(vector):
    return vector / np.linalg.norm(vector)


def embed(shards, output, **options):
    return tarmac.embed(shards, output, **{"model": f"{HERE}:Letters", "text": "txt", "jobs": 1} | options)


def test_vectors_of_texts(tmp_path):
    shards = captions(tmp_path, 30, 1, 20)
    report = embed(shards, tmp_path / "out", batch_size=4)
    assert (report.read, report.written, report.failed, report.units) == (51, 51, 0, 3)
    vectors = tarmac.Embeddings(tmp_path / "out")
    assert vectors.keys() == [f"{number:06d}" for number in range(51)]
    for number in range(51):
        expected = unit(letters(caption(number))).astype(np.float32).astype(np.float16)
        assert np.array_equal(vectors[number], expected.astype(np.float32)), number
    stored = np.load(tmp_path / "out/text_emb/text_emb_2.npy")
    assert (stored.shape, stored.dtype) == ((20, 32), np.float16)
    rows = vectors.metadata([30], ["key", "image_path", "caption", "shard"]).to_pylist()
    assert rows == [
        {"key": "000030", "image_path": "000030", "caption": caption(30), "shard": shards[1]},
    ]
    assert vectors.facts.normalized
    assert vectors.facts.model == f"{HERE}:Letters"


def test_images_and_texts_in_one_space(tmp_path):
    write(tmp_path / "in.tar", range(9))
    report = embed(f"{tmp_path}/in.tar", tmp_path / "out", model=Both, image="png;jpg", batch_size=4)
    assert report.bytes == sum(map(len, written(tmp_path / "out").values())) - len(
        (tmp_path / "out/embeddings.json").read_bytes()
    )
    images = tarmac.Embeddings(tmp_path / "out")
    texts = tarmac.Embeddings(tmp_path / "out", kind="text")
    assert images.kinds == ("img", "text")
    for number in range(9):
        if caption(number).startswith(("red", "green", "blue")):
            scores = images[:] @ texts[number]
            assert {int(best) % 3 for best in np.argsort(-scores)[:3]} == {number % 3}


def test_metadata_of_samples(tmp_path):
    write(tmp_path / "in.tar", range(9))
    embed(f"{tmp_path}/in.tar", tmp_path / "out", model=Both, image="jpg", meta=["json", "cls", "absent"])
    vectors = tarmac.Embeddings(tmp_path / "out")
    row = vectors.metadata([7]).to_pylist()[0]
    assert row == {
        "image_path": "000007", "key": "000007", "shard": f"{tmp_path}/in.tar", "caption": caption(7),
        "width": 40, "height": 32, "similarity": 1.0, "punsafe": 1, "cls": "2",
    }  # fmt: skip
    assert vectors.where("similarity >= 1 and punsafe = 1").tolist() == [n == 7 for n in range(9)]


def test_sizes_of_images_that_are_not_embedded_are_metadata(tmp_path):
    """Without an image, a width in JSON is a value as any other."""
    with tarmac.TarWriter(tmp_path / "in.tar") as writer:
        for number in range(4):
            writer.write({"__key__": f"{number}", "txt": f"caption {number}", "json": {"width": number}})
    embed(f"{tmp_path}/in.tar", tmp_path / "out", text="txt", meta="json")
    vectors = tarmac.Embeddings(tmp_path / "out")
    assert vectors.where("width > 1").tolist() == [False, False, True, True]
    with pytest.raises(tarmac.errors.BadCondition) as caught:
        vectors.where("height > 1")
    assert caught.value.hint is None or "index" not in caught.value.hint


def test_types_of_metadata_are_those_of_the_whole_part(tmp_path):
    values = [{"a": 1}, {"a": 2.5, "b": True}, {"b": "yes", "c": None}, {"d": 1 << 70, "\ud800": "\ud800"}]
    with tarmac.TarWriter(tmp_path / "in.tar", encoder=False) as writer:
        for number, value in enumerate(values):
            writer.write({"__key__": str(number), "txt": b"x", "json": json.dumps(value).encode()})
    embed(f"{tmp_path}/in.tar", tmp_path / "out", meta=["json"], batch_size=1)
    table = tarmac.Embeddings(tmp_path / "out").metadata(range(4), ["a", "b", "c", "d"])
    assert table.column("a").to_pylist() == [1.0, 2.5, None, None]
    assert table.column("b").to_pylist() == [None, "true", "yes", None]
    assert table.column("c").to_pylist() == [None] * 4
    assert table.column("d").to_pylist() == [None, None, None, str(1 << 70)]


def test_bad_samples_have_no_vector_and_are_named(tmp_path):
    fields = [
        {"txt": b"good"}, {"cls": b"1"}, {"txt": b"\xff"}, {"txt": b"a nan"}, {"txt": b"infinite"},
        {"txt": b"zero"}, {"txt": b"good", "json": b"{"}, {"txt": b"good", "json": b"[]"}, {"txt": b"good, too"},
    ]  # fmt: skip
    with tarmac.TarWriter(tmp_path / "in.tar", encoder=False) as writer:
        for number, each in enumerate(fields):
            writer.write({"__key__": str(number), **each})
    options = {"model": f"{HERE}:Unsure", "meta": ["json"], "batch_size": 3}
    report = embed(f"{tmp_path}/in.tar", tmp_path / "out", on_error="skip", **options)
    assert (report.read, report.written, report.failed) == (9, 2, 7)
    for number, error in enumerate(sorted(report.errors), 1):
        assert f'"{number}"' in error
    assert tarmac.Embeddings(tmp_path / "out").keys() == ["0", "8"]
    for row, kind in ((1, MissingField), (2, DecodeFailed), (3, TransformFailed), (5, TransformFailed)):
        with pytest.raises(kind, match=f'"{row}"'):
            embed(f"{tmp_path}/in.tar", tmp_path / f"out{row}", slice=slice(row, row + 1), **options)
    with pytest.raises(ErrorBudgetExceeded):
        embed(f"{tmp_path}/in.tar", tmp_path / "few", on_error="skip", max_errors=3, **options)
    again = embed(f"{tmp_path}/in.tar", tmp_path / "out", on_error="skip", retry="failed", **options)
    assert again.done == 1


def test_damaged_pictures_fail_alone(tmp_path):
    with tarmac.TarWriter(tmp_path / "in.tar", encoder=False) as writer:
        for number in range(6):
            data = picture((9, 9, 9))
            writer.write({"__key__": str(number), "jpg": data[:30] if number == 4 else data})
    report = embed(
        f"{tmp_path}/in.tar", tmp_path / "out", model=Colours, text=None, image="jpg", on_error="skip", jobs=2
    )
    assert (report.written, report.failed) == (5, 1)
    assert '"4"' in report.errors[0]
    assert tarmac.Embeddings(tmp_path / "out").metadata([0], ["width"]).to_pylist() == [{"width": 40}]


def test_a_shard_without_vectors_has_no_part(tmp_path):
    shards = captions(tmp_path, 3, 4, 5)
    embed(shards, tmp_path / "out", slice=slice(0, 3))
    vectors = tarmac.Embeddings(tmp_path / "out")
    assert (len(vectors), len(vectors.parts)) == (3, 1)
    with tarmac.TarWriter(tmp_path / "bad.tar") as writer:
        writer.write({"__key__": "0", "cls": 1})
    report = embed(f"{tmp_path}/bad.tar", tmp_path / "none", on_error="skip")
    assert (report.written, report.failed) == (0, 1)
    with pytest.raises(NotFound):
        tarmac.Embeddings(tmp_path / "none")


def test_models_that_cannot_be_used(tmp_path, monkeypatch):
    shards = captions(tmp_path, 3)
    for options in (
        {"model": f"{HERE}:Wrong"},
        {"model": f"{HERE}:Silent"},
        {"model": f"{HERE}:Absent"},
        {"model": "no_such_module:Model"},
        {"model": "name"},
        {"model": "open_clip:ViT-B-32"},
        {"model": "sentence:"},
        {"model": "sentence:./no_such_directory"},
        {"model": Colours},
        {"model": Letters, "image": "jpg"},
        {"text": None},
        {"batch_size": 0},
    ):
        with pytest.raises(UsageError):
            embed(shards, tmp_path / "out", on_error="skip", **options)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    for model in ("open_clip:ViT-B-32/", "sentence:all-MiniLM-L6-v2"):
        with pytest.raises(MissingExtra, match="pip install"):
            embed(shards, tmp_path / "out", model=model)
    assert not written(tmp_path / "out") if (tmp_path / "out").exists() else True


def test_parts_of_different_dimensions(tmp_path, monkeypatch):
    shards = captions(tmp_path, 3, 3)
    model = {"model": f"{HERE}:Changing"}
    embed(shards[:1], tmp_path / "one", **model)
    embed(shards, tmp_path / "out", **model)
    Path(tmp_path / "out/text_emb/text_emb_1.npy").unlink()
    monkeypatch.setenv("LONGER", "1")
    with pytest.raises(JobError, match="expected vectors of 32"):
        embed(shards, tmp_path / "out", **model)


def test_another_model_is_refused_by_name(tmp_path):
    shards = captions(tmp_path, 3, 3)
    embed(shards, tmp_path / "out")
    before = written(tmp_path / "out")
    with pytest.raises(JobMismatch, match="model"):
        embed(shards, tmp_path / "out", model=f"{HERE}:Unsure")
    with pytest.raises(JobMismatch, match="batch_size"):
        embed(shards, tmp_path / "out", batch_size=7)
    assert written(tmp_path / "out") == before
    report = embed(shards[:1], tmp_path / "out", model=f"{HERE}:Unsure", overwrite=True)
    assert len(report.removed_outputs) == 2
    assert len(tarmac.Embeddings(tmp_path / "out")) == 3


def test_files_of_others_are_not_replaced(tmp_path):
    shards = captions(tmp_path, 3)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/embeddings.json").write_text("{}")
    with pytest.raises(UsageError, match="exists"):
        embed(shards, tmp_path / "out")
    embed(shards, tmp_path / "out", overwrite=True)
    assert len(tarmac.Embeddings(tmp_path / "out")) == 3


def test_missing_parts_are_made_again(tmp_path):
    shards = captions(tmp_path, 9, 9, 9)
    embed(shards, tmp_path / "out")
    before = written(tmp_path / "out")
    (tmp_path / "out/text_emb/text_emb_1.npy").unlink()
    (tmp_path / "out/metadata/metadata_2.parquet").write_bytes(b"damaged")
    report = embed(shards, tmp_path / "out")
    assert (report.done, report.kept) == (2, 1)
    assert written(tmp_path / "out") == before


def test_the_same_bytes_with_any_number_of_processes(tmp_path):
    shards = captions(tmp_path, 40, 3, 17)
    for jobs in (1, 2, 5):
        embed(shards, tmp_path / str(jobs), jobs=jobs, batch_size=4)
    one = written(tmp_path / "1")
    assert len(one) == 7
    assert written(tmp_path / "2") == one == written(tmp_path / "5")


def test_numbers_of_parts_have_the_same_length(tmp_path):
    shards = captions(tmp_path, *[2] * 11)
    embed(shards, tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out/text_emb").iterdir())
    assert names == [f"text_emb_{number:02d}.npy" for number in range(11)]
    embed(shards, tmp_path / "few", keys=["000001", "000021"])
    assert len(list((tmp_path / "few/text_emb").iterdir())) == 2
    assert tarmac.Embeddings(tmp_path / "few").keys() == ["000001", "000021"]


def test_what_limits_the_speed_is_reported(tmp_path):
    report = embed(captions(tmp_path, 20), tmp_path / "out")
    assert {
        "seconds_loading",
        "seconds_reading",
        "seconds_preparing",
        "seconds_inferring",
        "seconds_writing",
    } <= report.notes.keys()
    (remark,) = [remark for remark in report.remarks if remark.startswith("limited by ")]
    for activity in ("loading the model", "reading", "preparing", "the model", "writing"):
        assert activity in remark
    assert "samples per second and process" in remark
    assert not any(
        remark.startswith("limited by ") for remark in embed(captions(tmp_path, 20), tmp_path / "out").remarks
    )


class Padded(Letters):
    """Letters that note how long the texts of each batch are."""

    lengths: list[list[int]] = []

    def encode_texts(self, texts):
        self.lengths.append([len(text) for text in texts])
        return super().encode_texts(texts)


def test_texts_of_similar_length_share_a_batch(tmp_path):
    """Padding to the longest of a batch costs little; in the order of samples it would nearly double the work."""
    rng = np.random.default_rng(0)
    texts = ["x" * int(length) for length in rng.lognormal(4, 0.6, 1000)]
    with tarmac.TarWriter(tmp_path / "in.tar") as writer:
        for number, text in enumerate(texts):
            writer.write({"__key__": f"{number:04d}", "txt": text})
    Padded.lengths.clear()
    embed(f"{tmp_path}/in.tar", tmp_path / "out", model=Padded, batch_size=16)

    assert sorted(length for batch in Padded.lengths for length in batch) == sorted(map(len, texts))
    padded = sum(max(batch) * len(batch) for batch in Padded.lengths)
    unsorted = sum(16 * max(map(len, texts[start : start + 16])) for start in range(0, 1000, 16))
    assert padded < 1.15 * sum(map(len, texts)) < 0.6 * unsorted
    assert tarmac.Embeddings(tmp_path / "out").keys() == [f"{number:04d}" for number in range(1000)]


class Device(Letters):
    """A model on a device: each of its calls waits until all samples of the next one are prepared."""

    prepared = 0
    called: list[int] = []
    each, total = 4, 40

    def prepare_texts(self, texts):
        Device.prepared += len(texts)
        return texts

    def prepare_image(self, data):
        return self.prepare_texts([data])[0]

    def encode_images(self, images):
        self.called.append(len(images))
        needed = min(sum(self.called) + self.each, self.total)
        assert until(lambda: self.prepared >= needed, 30)
        return self.encode_texts([image.decode() for image in images])


def test_a_device_does_not_wait_for_samples(tmp_path):
    shards = captions(tmp_path, Device.total)
    report = embed(
        shards,
        tmp_path / "out",
        model=Device,
        text=None,
        image="txt",
        batch_size=Device.each,
        device="cuda:0",
    )
    assert (report.written, report.failed) == (Device.total, 0)
    assert Device.called == [Device.each] * 10


def test_compressed_shards_and_commands(tmp_path):
    """Samples that have no index are embedded as they are read."""
    shards = captions(tmp_path, 5, 6, 7)
    packed = [f"{tmp_path}/{number}.tar.gz" for number in range(2)]
    for shard, name in zip(shards, packed, strict=False):
        tarmac.copy(shard, name)
    embed([*packed, f"pipe:cat {shards[2]}"], tmp_path / "packed")
    embed(shards, tmp_path / "plain")
    vectors = [tarmac.Embeddings(tmp_path / name) for name in ("packed", "plain")]
    assert vectors[0].keys() == vectors[1].keys()
    assert np.array_equal(vectors[0][:], vectors[1][:])
    assert vectors[0].metadata([5], "shard").to_pylist() == [{"shard": packed[1]}]


def test_arguments_of_other_types(tmp_path):
    shards = captions(tmp_path, 3)
    for name, values in {"batch_size": ("64", 2.5, 0), "text": (5, ["txt"]), "image": (b"jpg",)}.items():
        for value in values:
            with pytest.raises(UsageError) as error:
                embed(shards, tmp_path / "out", **{name: value})
            assert error.value.field == name
    assert not (tmp_path / "out").exists()


def test_nothing_to_embed(tmp_path):
    tarmac.TarWriter(tmp_path / "empty.tar").close()
    report = embed(f"{tmp_path}/empty.tar", tmp_path / "out")
    assert (report.read, report.written) == (0, 0)
    assert "there are no samples" in str(report)
    with pytest.raises(NotFound):
        tarmac.Embeddings(tmp_path / "out")
    shards = captions(tmp_path, 3, 3)
    Path(shards[1]).unlink()
    with pytest.raises(NotFound) as caught:
        embed(shards, tmp_path / "out")
    assert caught.value.location.startswith(shards[1])
    with pytest.raises(NotFound, match="no file matches"):
        embed(f"{tmp_path}/absent-*.tar", tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="expected a directory, got a file"):
        embed(shards[:1], tmp_path / "file")


def test_vectors_go_with_the_samples_of_a_dataset(tmp_path):
    shards = captions(tmp_path, 20, 20)
    embed(shards, tmp_path / "out")
    tarmac.copy(shards, f"{tmp_path}/shuffled-{{i}}.tar", shuffle=True, max_samples=7)
    vectors = tarmac.Embeddings(tmp_path / "out")
    assert pickle.loads(pickle.dumps(vectors)).fingerprint == vectors.fingerprint
    dataset = tarmac.Dataset(f"{tmp_path}/shuffled-*.tar").map(vectors.add).to_tuple("__key__", "text_emb")
    for processes in (0, 1):
        seen = 0
        for keys, batch in tarmac.Loader(dataset, batch_size=8, processes=processes, tail="short"):
            for key, vector in zip(keys, np.asarray(batch), strict=True):
                assert np.array_equal(vector, vectors[int(key)])
                seen += 1
        assert seen == 40
