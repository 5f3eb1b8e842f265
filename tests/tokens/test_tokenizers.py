"""Tokenizers and models of many kinds: what they return is stored exactly, or refused with a reason."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tarmac
from tarmac.errors import JobMismatch, TransformFailed, UsageError
from tarmac.jobs.task import MAX_REASONS
from tarmac.tools.mappers.records import FIELD, from_arrow
from tokens.models import Letters, caption, train_tokenizer
from tokens.test_tokenize import MODELS, make, reference, rows


def shard(path: Path, samples: list[dict[str, bytes]]) -> str:
    with tarmac.TarWriter(path, encoder=False) as writer:
        for number, sample in enumerate(samples):
            writer.write({"__key__": str(number), **sample})
    return str(path)


def tokens(shards, output: Path, tokenizer, **options) -> list[list[int]]:
    """Return the tokens of all samples."""
    given = {"text": "txt", "tokenizer": tokenizer, "jobs": 1, **options}
    tarmac.tokenize(shards, output, **given)
    return [row["tokens"] for row in rows(output).values()]


def schema(folder: Path):
    return from_arrow(next(iter(tarmac.read(f"{folder}/*.tar")))[FIELD]).schema


@pytest.fixture
def padding(tmp_path):
    """Return a tokenizer that pads and truncates by itself."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(train_tokenizer(tmp_path / "plain.json"))
    tokenizer.enable_padding(length=16, pad_id=3, pad_token="<pad>")
    tokenizer.enable_truncation(4)
    return tokenizer


def test_what_a_tokenizer_pads_or_truncates_by_itself_does_not_count(tmp_path, padding):
    shards = make(tmp_path, 1)
    expected = reference(f"{tmp_path}/plain.json", [caption(number) for number in range(50)])
    padding.save(f"{tmp_path}/padding.json")
    assert tokens(shards, tmp_path / "file", f"{tmp_path}/padding.json") == expected
    assert tokens(shards, tmp_path / "object", padding) == expected
    assert len(padding.encode("a dog").ids) == 16  # the object of the user is as it was
    assert schema(tmp_path / "object").info["special_tokens"]["<pad>"] == 3


COUNT_THREADS = """
import os, sys
import tarmac
tarmac.tokenize(sys.argv[1], sys.argv[2], text="txt", tokenizer=sys.argv[3], jobs=1, progress=False)
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.processes
def test_the_library_starts_no_threads(tmp_path):
    """There is a process for each core. Left alone, the library would start as many threads as there are cores."""
    tokenizer = train_tokenizer(tmp_path / "tokenizer.json")
    arguments = [sys.executable, "-c", COUNT_THREADS, make(tmp_path, 1), str(tmp_path / "out"), tokenizer]
    settings = os.environ | {"RAYON_NUM_THREADS": "40", "TOKENIZERS_PARALLELISM": "true"}
    output = subprocess.run(arguments, env=settings, check=True, stdout=subprocess.PIPE).stdout
    assert int(output) < 40


@pytest.mark.parametrize("block", [2, 3, 7, 20])
def test_truncation_is_that_of_the_library(tmp_path, block):
    shards, tokenizer = make(tmp_path, 1), train_tokenizer(tmp_path / "tokenizer.json")
    texts = [caption(number) for number in range(50)]
    whole = reference(tokenizer, texts)
    assert tokens(shards, tmp_path / "out", tokenizer, block_size=block) == reference(tokenizer, texts, block)
    lost = [row["truncated"] for row in rows(tmp_path / "out").values()]
    assert lost == [max(len(each) - block, 0) for each in whole]


def test_a_block_must_hold_what_the_tokenizer_adds(tmp_path):
    tokenizer = train_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(UsageError, match="at least 2"):
        tokens(make(tmp_path, 1), tmp_path / "out", tokenizer, block_size=1)


def test_a_block_of_one_token(tmp_path):
    shards = shard(tmp_path / "in.tar", [{"txt": b"abc"}, {"txt": b""}, {"txt": b"d"}])
    assert tokens(shards, tmp_path / "out", Letters(), block_size=1, batch_size=1) == [[97], [], [100]]


def test_a_directory_of_a_model_has_a_tokenizer(tmp_path):
    (tmp_path / "model").mkdir()
    tokenizer = train_tokenizer(tmp_path / "model" / "tokenizer.json")
    shards = make(tmp_path, 1, 5)
    expected = reference(tokenizer, [caption(number) for number in range(5)])
    assert tokens(shards, tmp_path / "a", tmp_path / "model") == expected
    assert tokens(shards, tmp_path / "b", Path(tokenizer)) == expected


class Transformer:
    """A tokenizer as `transformers` has them: `vocab_size` does not count added tokens."""

    vocab_size, pad_token_id = 256, 5
    all_special_tokens, all_special_ids = ["<s>"], [300]

    def __len__(self):
        return 301

    def encode(self, text, add_special_tokens=True):
        return [300] * add_special_tokens + list(text.encode())


class CallOnly:
    """The same by its other method."""

    vocab_size = 301

    def __call__(self, text):
        return {"input_ids": [300, *text.encode()], "attention_mask": [1] * (len(text) + 1)}


class Tiktoken:
    """A tokenizer as `tiktoken` has them."""

    n_vocab, special_tokens_set = 301, {"<s>"}

    def encode_batch(self, texts, *, num_threads=8):
        return [[300, *text.encode()] for text in texts]

    def encode(self, text):
        raise AssertionError

    def encode_single_token(self, text):
        return 300


class Pieces:
    """A tokenizer as `sentencepiece` has them."""

    def vocab_size(self):
        return 301

    def encode(self, text):
        return np.array([300, *text.encode()])


@pytest.mark.parametrize("kind", [Transformer, CallOnly, Tiktoken, Pieces])
def test_tokenizers_of_other_libraries(tmp_path, kind):
    shards = shard(tmp_path / "in.tar", [{"txt": b"abc"}, {"txt": b""}, {"txt": "é".encode()}])
    assert tokens(shards, tmp_path / "a", kind) == [[300, 97, 98, 99], [300], [300, 195, 169]]
    assert tokens(shards, tmp_path / "b", kind()) == [[300, 97, 98, 99], [300], [300, 195, 169]]
    info = schema(tmp_path / "b").info
    assert info["vocab_size"] == 301
    if kind in (Transformer, Tiktoken):
        assert info["special_tokens"] == {"<s>": 300}
    if kind is Transformer:
        assert info["pad_token"] == 5


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([-1], "got -1 to -1"), ([256], "got 256 to 256"), ([1.5], "list of integers"), (None, "list of integers"),
        (["a"], "list of integers"), (np.zeros((1, 2), int), "list of integers"), ([2**70], "too"),
    ],
)  # fmt: skip
def test_what_is_not_a_token_is_refused(tmp_path, value, message):
    class Wrong(Letters):
        def encode(self, text):
            return value

    shards = shard(tmp_path / "in.tar", [{"txt": b"abc"}])
    with pytest.raises(TransformFailed, match=message):
        tokens(shards, tmp_path / "out", Wrong())
    report = tarmac.tokenize(shards, tmp_path / "out", text="txt", tokenizer=Wrong(), on_error="skip", jobs=1)
    assert (report.read, report.failed) == (1, 1)


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "uint16"), (65_537, "uint32"), (1 << 32, "uint32")])
def test_the_vocabulary_chooses_the_type(tmp_path, size, dtype):
    class Last:
        vocab_size = size

        def encode(self, text):
            return [size - 1, 0]

    shards = shard(tmp_path / "in.tar", [{"txt": b"abc"}])
    assert tokens(shards, tmp_path / "out", Last()) == [[size - 1, 0]]
    assert schema(tmp_path / "out").columns["tokens"].dtype == dtype


def test_shifts_and_padding_are_recorded_and_not_applied(tmp_path):
    shards = make(tmp_path, 1, 4, images=True)
    options = {"image": "jpg", "image_tokenizer": f"{MODELS}:VQ", "resolution": 32, "jobs": 1}
    tarmac.tokenize(shards, tmp_path / "a", **options)
    tarmac.tokenize(shards, tmp_path / "b", image_token_shift=32_001, pad_token=9, block_size=99, **options)
    plain, shifted = rows(tmp_path / "a"), rows(tmp_path / "b")
    assert [row["tokens"] for row in plain.values()] == [row["tokens"] for row in shifted.values()]
    info = schema(tmp_path / "b").info
    assert (info["image_token_shift"], info["pad_token"], info["block_size"]) == (32_001, 9, 99)


def test_images_alone_are_cut_and_texts_beside_images_are(tmp_path):
    shards = make(tmp_path, 1, 4, images=True)
    images = {"image": "jpg", "image_tokenizer": f"{MODELS}:VQ", "resolution": 32, "block_size": 3, "jobs": 1}
    tarmac.tokenize(shards, tmp_path / "a", **images)
    assert [(len(row["tokens"]), row["truncated"]) for row in rows(tmp_path / "a").values()] == [(3, 1)] * 4
    tarmac.tokenize(shards, tmp_path / "b", text="txt", tokenizer=Letters(), **images)
    assert {(len(row["text"]), len(row["image"])) for row in rows(tmp_path / "b").values()} == {(3, 4)}


def test_images_that_fail_have_a_reason(tmp_path):
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (40, 40)).save(stream, "PNG")
    good = stream.getvalue()
    samples = [{"png": good}, {"png": b"broken"}, {"txt": b"none"}, {"png": good[:60]}, {"png": good}]
    shards = shard(tmp_path / "in.tar", samples)
    options = {"image": "png", "image_tokenizer": f"{MODELS}:VQ", "resolution": 32, "jobs": 1}
    report = tarmac.tokenize(shards, tmp_path / "out", on_error="skip", **options)
    assert (report.read, report.written, report.failed) == (5, 2, 3)
    assert rows(tmp_path / "out").keys() == {"0", "4"}
    assert ["not an image" in report.errors[0], 'no field "png"' in report.errors[1]] == [True, True]


def test_the_log_of_a_job_lists_failed_samples(tmp_path, capsys):
    from tarmac.cli import main

    shards = shard(tmp_path / "in.tar", [{"txt": b"a"}, {"txt": b"\xff"}, {"cls": b"1"}])
    tarmac.tokenize(shards, tmp_path / "out", text="txt", tokenizer=Letters(), on_error="skip", jobs=1)
    with pytest.raises(SystemExit, match="0"):
        main(["jobs", "log", f"{tmp_path}/out"])
    printed = capsys.readouterr().out
    assert 'sample "1": the field "txt" is not UTF-8' in printed
    assert 'sample "2": the sample has no field "txt"' in printed


def test_the_ledger_has_each_failed_sample(tmp_path, capsys):
    from tarmac.cli import main

    samples = [{"txt": b"\xff" if number % 2 else b"a"} for number in range(100)]
    shards = shard(tmp_path / "in.tar", samples)
    for kept in (0, 1):
        report = tarmac.tokenize(
            shards, tmp_path / "out", text="txt", tokenizer=Letters(), on_error="skip", batch_size=8, jobs=1
        )
        assert (report.failed, len(report.errors), report.kept) == (50, MAX_REASONS, kept)
    with pytest.raises(SystemExit, match="0"):
        main(["jobs", "log", f"{tmp_path}/out"])
    named = re.findall(r'FAILED .*sample "(\d+)": the field "txt" is not UTF-8', capsys.readouterr().out)
    assert named == [str(number) for number in range(1, 100, 2)]


def test_sequences_listed_in_json(tmp_path):
    listed = [
        ["a", {"image": "9.jpg"}], [{"image": None}], {"a": 1}, [1], [{"foo": 1}], [{"text": None}], 3, None,
        [{"text": "a", "image": "0.jpg"}],
    ]  # fmt: skip
    samples = [
        {"list.json": json.dumps(each).encode()} for each in ([], ["ab", {"text": "c", "id": 1}], *listed)
    ]
    shards = shard(tmp_path / "in.tar", [*samples, {"list.json": b"{"}])
    options = {
        "interleave": "list.json",
        "tokenizer": Letters(),
        "image_tokenizer": f"{MODELS}:VQ",
        "jobs": 1,
    }
    report = tarmac.tokenize(shards, tmp_path / "out", on_error="skip", **options)
    assert {key: row["tokens"] for key, row in rows(tmp_path / "out").items()} == {"0": [], "1": [97, 98, 99]}
    assert report.failed == len(listed) + 1
    assert 'no field "9.jpg"' in report.errors[0]
    assert all("expected a list of texts" in error for error in report.errors[1:-1])
    assert "not JSON" in report.errors[-1]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"interleave": "txt,,"}, "interleave"),
        ({"interleave": "txt,jpg"}, "image_tokenizer"),
        ({"interleave": "txt", "tokenizer": None, "image_tokenizer": f"{MODELS}:VQ"}, "tokenizer"),
        ({"text": "txt", "image_token_shift": -1}, "image_token_shift"),
        ({"text": "txt", "pad_token": -1}, "pad_token"),
        ({"text": "txt", "pad_token": 65_536}, "pad_token"),
        ({"text": "txt", "vocab_size": 0}, "vocab_size"),
        ({"text": "txt", "vocab_size": (1 << 32) + 1}, "vocab_size"),
        ({"text": "txt", "limit": "5"}, "limit"),
        ({"text": "txt", "block_size": 8.0}, "block_size"),
        ({"text": "txt", "vocab_size": "256"}, "vocab_size"),
        ({"text": "txt", "batch_size": 2.5}, "batch_size"),
        ({"text": "txt", "pad_token": "<pad>"}, "pad_token"),
        ({"text": "txt", "resolution": "32"}, "resolution"),
        ({"text": "txt", "add_tokens": [1]}, "add_tokens"),
        ({"text": "txt", "image_vocab_size": 16}, "image_vocab_size"),
        ({"text": "txt", "image_token_shift": 256}, "image_token_shift"),
        ({"text": ["txt"]}, "text"),
        ({"text": "txt", "image": b"jpg"}, "image"),
        ({"interleave": ["txt", 3]}, "interleave"),
        ({"interleave": 3}, "interleave"),
        ({"text": "txt", "tokenizer": "gpt2"}, "tokenizer"),
        ({"text": "txt", "tokenizer": "/"}, "tokenizer"),
        ({"text": "txt", "tokenizer": "missing:Class"}, "tokenizer"),
        ({"text": "txt", "tokenizer": "pathlib:PurePath.joinpath"}, "tokenizer"),
        ({"text": "txt", "tokenizer": "tokens.test_tokenizers:NeedsArguments"}, "tokenizer"),
    ],
)
def test_errors_name_the_argument(tmp_path, options, field):
    with pytest.raises(UsageError) as caught:
        tarmac.tokenize(
            make(tmp_path, 1), tmp_path / "out", **({"tokenizer": Letters(), "jobs": 1} | options)
        )
    assert caught.value.field == field
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("argument", "value"),
    [("vocab_size", 256), ("add_tokens", ["<image>"])],
    ids=["vocab_size", "add_tokens"],
)
def test_arguments_of_a_tokenizer_that_is_not_there(tmp_path, argument, value):
    options = {"image": "jpg", "image_tokenizer": f"{MODELS}:VQ", argument: value}
    with pytest.raises(UsageError, match="needs `tokenizer`") as caught:
        tarmac.tokenize(make(tmp_path, 1, 5, images=True), tmp_path / "out", jobs=1, **options)
    assert caught.value.field == argument


@pytest.mark.parametrize(
    ("output", "message"),
    [("", "an empty name"), ("-", "a stream"), ("pipe:touch ran; cat", "a stream"), ("in-0.tar", "a file")],
)
def test_outputs_that_are_not_directories(tmp_path, monkeypatch, output, message):
    shards = make(tmp_path, 1, 5)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"expected a directory, got {message}") as caught:
        tokens(shards, output, Letters())
    assert caught.value.field == "output"
    assert os.listdir(tmp_path) == ["in-0.tar"]


class NeedsArguments:
    def __init__(self, path):
        pass


def test_sequences_with_parts_that_nothing_tokenizes(tmp_path):
    shards = shard(tmp_path / "in.tar", [{"l.json": b'["a", {"image": "0.png"}]', "0.png": PNG}])
    for options in ({"tokenizer": Letters()}, {"image_tokenizer": f"{MODELS}:VQ"}):
        with pytest.raises(UsageError, match="sequences have"):
            tarmac.tokenize(shards, tmp_path / "out", interleave="l.json", jobs=1, on_error="skip", **options)


def _png() -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "PNG")
    return stream.getvalue()


PNG = _png()


class Broken(Letters):
    """A model that cannot be loaded."""

    def setup(self, device):
        raise RuntimeError("no such device")


def test_a_device_that_does_not_exist(tmp_path):
    shards = shard(tmp_path / "in.tar", [{"png": PNG}])
    with pytest.raises(UsageError, match="'cuda:7' raised RuntimeError: no such device"):
        tarmac.tokenize(
            shards, tmp_path / "out", image="png", image_tokenizer=Broken, device="cuda:7", jobs=1
        )


def test_long_texts(tmp_path):
    shards = shard(tmp_path / "in.tar", [{"txt": b"dog " * 500_000}, {"txt": b"a"}])
    tokenizer = train_tokenizer(tmp_path / "tokenizer.json")
    (first, second) = tokens(shards, tmp_path / "out", tokenizer, block_size=4)
    assert (len(first), len(second)) == (4, 3)
    assert rows(tmp_path / "out")["0"]["truncated"] == 500_002 - 4


class Counted:
    """A tokenizer that notes how many characters it gets at a time."""

    vocab_size = 1 << 32

    def __init__(self):
        self.version, self.sizes = "1", []

    def encode(self, text):
        raise AssertionError

    def encode_batch(self, texts):
        self.sizes.append(sum(map(len, texts)))
        return [[len(text), number] for number, text in enumerate(texts)]


def test_long_texts_are_tokenized_a_few_at_a_time(tmp_path):
    lengths = [3, 1 << 20, 0, 3 << 20, 5, 9 << 20, 1, *[1 << 19] * 20, 0, 7]
    shards = shard(tmp_path / "in.tar", [{"txt": b"a" * length} for length in lengths])
    tokenizer = Counted()
    present = tokens(shards, tmp_path / "out", tokenizer)
    assert [row[0] for row in present] == lengths
    assert len(tokenizer.sizes) > 4
    assert max(tokenizer.sizes) <= (4 << 20) + (9 << 20)
    assert sorted(tokenizer.sizes)[-2] <= 5 << 20
    whole = tokens(shards, tmp_path / "cut", Counted(), block_size=1, batch_size=3)
    assert [row[0] for row in whole] == lengths


def test_another_tokenizer_in_the_same_object_is_another_job(tmp_path, padding):
    shards = make(tmp_path, 1, 5)
    tokens(shards, tmp_path / "out", padding)
    padding.add_tokens(["dog"])
    with pytest.raises(JobMismatch, match="tokenizer"):
        tokens(shards, tmp_path / "out", padding)


def test_a_mismatch_names_what_differs(tmp_path):
    shards = make(tmp_path, 1, 5)
    tokens(shards, tmp_path / "out", Letters())
    for options, message in (
        ({"batch_size": 3}, "batch_size 1024 -> 3"),
        ({"vocab_size": 300}, "vocab_size 256 -> 300"),
    ):
        with pytest.raises(JobMismatch, match=message):
            tokens(shards, tmp_path / "out", Letters(), **options)


def test_a_dry_run_writes_nothing(tmp_path):
    shards = make(tmp_path)
    report = tarmac.tokenize(shards, tmp_path / "out", text="txt", tokenizer=Letters(), dry_run=True, jobs=1)
    assert report.units == 3
    assert not (tmp_path / "out").exists()


def test_files_of_others_are_kept(tmp_path):
    shards = make(tmp_path, 1, 5)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "in-0.tar").write_text("mine")
    with pytest.raises(UsageError, match=r"in-0\.tar: the file exists"):
        tokens(shards, tmp_path / "out", Letters())
    (tmp_path / "out" / "in-0.tar").unlink()
    assert len(tokens(shards, tmp_path / "out", Letters())) == 5
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    with pytest.raises(UsageError, match="overwrite an input"):
        tokens(shards, tmp_path, Letters())
