"""Shards, parts and combined tokens in an object store are what they are in directories."""

from __future__ import annotations

import contextlib

import pytest

import tarmac
from harness.servers import required, seaweed_s3
from tarmac.errors import UsageError
from tarmac.storage import StorageOptions, write_all
from tokens.test_tokenize import MODELS, make

FOLDER = "s3://tokens/job"


@pytest.mark.processes
def test_tokens_in_a_store(tmp_path):
    make(tmp_path, 3, 20)
    remote = [f"{FOLDER}/in-{number}.tar" for number in range(3)]
    letters = {"text": "txt", "tokenizer": f"{MODELS}:Letters", "jobs": 1}
    tarmac.tokenize(f"{tmp_path}/in-*.tar", tmp_path / "tokens", **letters)
    tarmac.combine(tmp_path / "tokens", tmp_path / "out", max_rows=25, jobs=1)
    tarmac.combine(tmp_path / "tokens", tmp_path / "megatron", format="megatron", jobs=1)
    with required(seaweed_s3()) as server:
        server.make_bucket("tokens")
        store = StorageOptions(config=server.config())
        for path in tmp_path.glob("in-*.tar"):
            write_all(f"{FOLDER}/{path.name}", path.read_bytes(), store)
        for kept in (0, 3):
            report = tarmac.tokenize(remote, f"{FOLDER}/tokens", storage=store, **letters)
            assert (report.written, report.kept) == (60, kept)
            report = tarmac.combine(f"{FOLDER}/tokens", f"{FOLDER}/out", max_rows=25, jobs=1, storage=store)
            assert (report.written, report.kept) == (60, kept)
        with contextlib.closing(tarmac.Tokens(f"{FOLDER}/out", storage=store)) as there:
            for pack in (None, 64):
                with tarmac.Loader(there, 6, pack=pack) as loader:
                    batches = [batch["tokens"].tolist() for batch in loader]
                here = tarmac.Loader(tarmac.Tokens(tmp_path / "out"), 6, pack=pack)
                assert batches == [batch["tokens"].tolist() for batch in here]
        tarmac.combine(f"{FOLDER}/tokens", tmp_path / "files", format="megatron", jobs=1, storage=store)
        for name in ("tokens.bin", "tokens.idx"):
            assert (tmp_path / "files" / name).read_bytes() == (tmp_path / "megatron" / name).read_bytes()
        with pytest.raises(UsageError, match="only local parts"):
            tarmac.combine(f"{FOLDER}/tokens", delete_parts=True, storage=store)
