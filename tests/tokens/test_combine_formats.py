"""The formats of `combine`, read by other programs or in plain Python."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path

import numpy as np
import pytest

import tarmac
from tarmac.errors import UsageError
from tokens.megatron import words
from tokens.parts import expected, some_parts, unique, write_parts

GOLDEN = Path(words.__file__).parent


@pytest.fixture
def parts():
    """Rows of three parts, one of which repeats a key."""
    return [*some_parts(2, 40), [("000003", [1]), ("9", list(range(60)))]]


def combined(folder: Path, parts, format: str, **options) -> Path:
    tokens = write_parts(folder, parts, batch_size=16)
    tarmac.combine(tokens, folder / format, format=format, jobs=1, record_rows=25, **options)
    return folder / format


def opened(folder: Path) -> dict[str, np.ndarray]:
    return {path.name[:-4]: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}


def test_arrays_of_values_and_offsets(tmp_path, parts):
    arrays = opened(combined(tmp_path, parts, "npy"))
    rows = expected(unique(parts))
    assert arrays["keys"].tolist() == [key.encode() for key, _ in rows]
    for name in ("tokens", "modality"):
        offsets = arrays[f"{name}.offsets"]
        values = [arrays[name][a:b].tolist() for a, b in itertools.pairwise(offsets)]
        assert values == [row[name] for _, row in rows]
    assert arrays["square"].tolist() == [row["square"] for _, row in rows]
    assert arrays["count"].tolist() == [row["count"] for _, row in rows]
    types = {name: str(array.dtype) for name, array in arrays.items()}
    assert (types["tokens"], types["tokens.offsets"], types["count"]) == ("uint16", "int64", "uint32")
    info = json.loads((tmp_path / "npy" / "info.json").read_text())
    assert (info["rows"], info["info"]["pad_token"]) == (81, 7)


def test_arrays_of_blocks(tmp_path, parts):
    arrays = opened(combined(tmp_path, parts, "npy", block_size=64))
    assert arrays["tokens"].shape == arrays["tokens.mask"].shape == (81, 64)
    for (_, row), values, mask in zip(
        expected(unique(parts)), arrays["tokens"], arrays["tokens.mask"], strict=True
    ):
        count = len(row["tokens"])
        assert values.tolist() == row["tokens"] + [7] * (64 - count)
        assert mask.tolist() == [True] * count + [False] * (64 - count)
    assert arrays["modality"].dtype == np.uint8


def test_long_keys_are_bytes_and_offsets(tmp_path):
    parts = [[("a", [1]), ("b" * 300, [2, 3])]]
    arrays = opened(combined(tmp_path, parts, "npy"))
    ends = arrays["keys.offsets"]
    assert [bytes(arrays["keys"][a:b]) for a, b in itertools.pairwise(ends)] == [b"a", b"b" * 300]


def test_tensordict_opens_it(tmp_path, parts):
    tensordict = pytest.importorskip("tensordict")
    import torch

    folder = combined(tmp_path, parts, "tensordict", block_size=64)
    loaded = tensordict.TensorDict.load_memmap(folder)
    assert loaded.batch_size == torch.Size([81])
    assert (loaded["tokens"].dtype, loaded["count"].dtype) == (torch.uint16, torch.uint32)
    assert loaded["square"].shape == (81, 2)
    for number, (key, row) in enumerate(expected(unique(parts))):
        mask = loaded["tokens_mask"][number]
        assert loaded["tokens"][number].to(torch.int64)[mask].tolist() == row["tokens"]
        assert loaded["modality"][number][loaded["modality_mask"][number]].tolist() == row["modality"]
        assert loaded["square"][number].tolist() == row["square"]
        assert bytes(loaded["key"][number].tolist()).rstrip(b"\0") == key.encode()
    assert (loaded["tokens"].to(torch.int64)[~loaded["tokens_mask"]] == 7).all()


def test_tensordict_writes_the_same_files(tmp_path, parts):
    tensordict = pytest.importorskip("tensordict")
    folder = combined(tmp_path, parts, "tensordict")  # as long as the longest row
    tensordict.TensorDict.load_memmap(folder).clone().memmap(tmp_path / "again")
    for path in (tmp_path / "again").glob("*.memmap"):
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name
    ours, theirs = (json.loads((where / "meta.json").read_text()) for where in (folder, tmp_path / "again"))
    assert ours == theirs


@pytest.mark.parametrize("name", sorted(words.WORDS))
def test_megatron_files_are_those_of_datatrove(tmp_path, name):
    pytest.importorskip("tokenizers")
    count = words.WORDS[name]
    tokenizer = words.save_tokenizer(tmp_path / "words.json", count)
    for shard in range(3):
        with tarmac.TarWriter(tmp_path / f"in-{shard}.tar") as writer:
            for number in range(40 * shard, 40 * shard + 40):
                writer.write({"__key__": f"{number:03d}", "txt": words.document(number, count)})
    tokens = tmp_path / "tokens"
    tarmac.tokenize(f"{tmp_path}/in-*.tar", tokens, text="txt", tokenizer=tokenizer, batch_size=16, jobs=1)
    tarmac.combine(tokens, tmp_path / "out", format="megatron", jobs=1, record_rows=50)
    for end in ("bin", "idx"):
        ours = (tmp_path / "out" / f"tokens.{end}").read_bytes()
        assert ours == (GOLDEN / f"{name}.{end}").read_bytes()


def test_megatron_indexes_are_long(tmp_path, monkeypatch):
    from tarmac.tokens.formats import megatron

    monkeypatch.setattr(megatron, "_ROWS", 7)
    parts = some_parts()
    content = (combined(tmp_path, parts, "megatron") / "tokens.idx").read_bytes()
    rows = [tokens for _, tokens in unique(parts)]
    assert struct.unpack_from("<9sQBQQ", content) == (b"MMIDIDX\0\0", 1, 8, 150, 151)
    lengths = np.frombuffer(content, np.int32, 150, 34)
    pointers = np.frombuffer(content, np.int64, 150, 34 + 600)
    assert lengths.tolist() == list(map(len, rows))
    assert pointers.tolist() == [0, *(2 * np.cumsum(lengths)[:-1]).tolist()]
    assert np.frombuffer(content, np.int64, 151, 34 + 1800).tolist() == list(range(151))


def test_shards_beside_the_data(tmp_path):
    parts = some_parts(2, 30)
    parts[1][4] = (parts[0][2][0], [9, 9])  # the same key in another shard is another sample
    folder = combined(tmp_path, parts, "sidecar")
    for number, part in enumerate(parts):
        samples = list(tarmac.read(f"{folder}/in-{number:03d}.tokens.tar"))
        rows = expected(part)
        assert [sample["__key__"] for sample in samples] == [key for key, _ in rows]
        for sample, (_, row) in zip(samples, rows, strict=True):
            import io

            for name, value in row.items():
                array = np.load(io.BytesIO(sample[f"{name}.npy"]))
                assert array.tolist() == value
                assert array.dtype == {"tokens": "uint16", "modality": "uint8", "square": "float32"}.get(
                    name, "uint32"
                )
    data = tarmac.Dataset(f"{folder}/tokens.json")
    assert len(data) == 60
    for number, part in enumerate(parts):
        both = tarmac.Dataset(f"{tmp_path}/in-{number:03d}.tar").join(f"{folder}/in-{number:03d}.tokens.tar")
        for sample, (key, tokens) in zip(both.decode(), part, strict=True):
            assert (sample["__key__"], sample["json"]) == (key, tokens)
            assert sample["tokens.npy"].tolist() == tokens
    assert tarmac.check(f"{folder}/*.tokens.tar").ok


def test_a_key_that_occurs_again_in_its_shard_is_beside_it_once(tmp_path):
    parts = [[("b", [1]), ("a", [2]), ("b", [3])]]
    folder = combined(tmp_path, parts, "sidecar")
    assert [s["__key__"] for s in tarmac.read(f"{folder}/in-000.tokens.tar")] == ["b", "a"]


def test_texts_beside_images_keep_their_lengths(tmp_path):
    class Pairs(tarmac.Mapper):
        outputs = {
            "text": tarmac.tools.mappers.Column("uint16", (None,)),
            "image": tarmac.tools.mappers.Column("uint16", (None,)),
        }
        info = {"block_size": 4, "vocab_size": 10}

        def __call__(self, batch):
            return {"text": [[1, 2]] * len(batch), "image": [[5] * 9] * len(batch)}

    tokens = write_parts(tmp_path, some_parts(1, 5), mapper=Pairs)
    tarmac.combine(tokens, tmp_path / "out", format="npy", jobs=1)
    arrays = opened(tmp_path / "out")
    assert (arrays["text"].shape, arrays["image"].shape) == ((5, 4), (5, 9))
    tarmac.combine(tokens, tmp_path / "mega", format="megatron", jobs=1)
    assert {path.name for path in (tmp_path / "mega").glob("*.*")} == {
        "info.json", ".tarmac", "text.bin", "text.idx", "image.bin", "image.idx"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("format", "name"), [("npy", "keys"), ("npy", "tokens.mask"), ("tensordict", "shape"), ("megatron", "x")]
)
def test_columns_that_a_format_cannot_have(tmp_path, format, name):
    class Named(tarmac.Mapper):
        outputs = {name: tarmac.tools.mappers.Column("uint8", (None,))}

        def __call__(self, batch):
            return {name: [[1]] * len(batch)}

    tokens = write_parts(tmp_path, some_parts(1, 5), mapper=Named)
    with pytest.raises(UsageError) as caught:
        tarmac.combine(tokens, format=format, jobs=1)
    assert caught.value.field == "format"
    assert len(list(tokens.glob("*.tar"))) == 1


def test_packed_rows_in_other_formats(tmp_path):
    parts = some_parts()
    tokens = write_parts(tmp_path, parts)
    total = sum(len(row) for _, row in unique(parts))
    for name in ("npy", "tensordict", "megatron"):
        tarmac.combine(tokens, tmp_path / name, format=name, pack=64, jobs=1)
    arrays = opened(tmp_path / "npy")
    assert arrays["tokens"].shape[1] == 64
    assert arrays["tokens.mask"].sum() == arrays["segments"].sum() == total
    assert (tmp_path / "megatron" / "tokens.bin").stat().st_size == 2 * total
