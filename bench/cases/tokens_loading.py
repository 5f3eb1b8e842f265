"""Train on tokens: blocks of 1,024 in batches of 64, beside a memory-mapped array and litdata; packing."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.registry import Done, Site, Work, case

BLOCK, BATCH = 1024, 64
VOCABULARY = 50_000
SEQUENCE = 2048
FULL = 0.985
"""The share of packed sequences that must not be padding."""


def blocks(site: Site) -> int:
    return max(site.small * 6 // 10, BATCH)


def numbers(site: Site) -> Any:
    rng = np.random.default_rng(0)
    return rng.integers(0, VOCABULARY, blocks(site) * BLOCK).astype(np.uint16)


def once(site: Site, name: str, write: Any) -> Path:
    """Return a folder of data, which `write` makes if it is missing."""
    path = site.data / f"{name}-{blocks(site)}"
    if not path.exists():
        part = path.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write(part)
        part.rename(path)
    return path


def as_tarmac(site: Site) -> Path:
    from tarmac.tokens.info import TokenInfo
    from tarmac.tools.mappers.contract import Column
    from tarmac.tools.mappers.records import Ragged, Records, Schema
    from tarmac.tools.mappers.shards import RecordShardWriter, write_record_manifest

    def write(path: Path) -> None:
        columns = {"tokens": Column("uint16", (None,)), "segments": Column("uint32", (None,))}
        schema = Schema(columns, TokenInfo(vocab_size=VOCABULARY, packed=BLOCK).to_json())
        rows, shards = numbers(site).reshape(-1, BLOCK), []
        for shard, part in enumerate(np.array_split(rows, 4)):
            with RecordShardWriter(f"{path}/tokens-{shard:06d}.tar", schema) as writer:
                for start in range(0, len(part), 4096):
                    some = part[start : start + 4096]
                    count = np.arange(len(some) + 1)
                    segments = Ragged(np.full(len(some), BLOCK, np.uint32), count)
                    keys = [f"{shard:02d}{start + n:08d}" for n in range(len(some))]
                    values = {"tokens": Ragged(some.reshape(-1), count * BLOCK), "segments": segments}
                    writer.write(Records(schema, keys, values))
            shards.append(writer.shard)
        write_record_manifest(shards, schema, f"{path}/tokens.json")

    return once(site, "blocks", write)


def as_array(site: Site) -> Path:
    return once(site, "array", lambda path: numbers(site).tofile(path / "tokens.bin"))


def as_litdata(site: Site) -> Path:
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    def write(path: Path) -> None:
        rows = numbers(site).astype(np.int32).reshape(-1, BLOCK)
        size = BLOCK * 4096
        writer = BinaryWriter(str(path), chunk_size=size, item_loader=TokensLoader(block_size=BLOCK))
        for number, row in enumerate(rows):
            writer[number] = torch.from_numpy(row)
        writer.done()
        writer.merge()

    return once(site, "litdata-tokens", write)


def epoch(batches: Any, count: int) -> Work:
    """Count the rows of an epoch."""

    def work() -> Done:
        seen = sum(len(batch) for batch in batches())
        lost = "" if seen >= count - BATCH else f"{seen} of {count} blocks were read"
        return Done(seen, fault=lost)

    return work


def from_tarmac(site: Site) -> Work:
    import tarmac

    loader = tarmac.Loader(tarmac.Tokens(as_tarmac(site), dtype="uint16", segments=False), BATCH, threads=0)
    return epoch(lambda: (batch["tokens"] for batch in loader), blocks(site))


def from_array(site: Site) -> Work:
    flat = np.memmap(as_array(site) / "tokens.bin", np.uint16, mode="r")
    rng, count = np.random.default_rng(0), blocks(site)

    def batches() -> Any:
        order = rng.permutation(count)
        for start in range(0, count, BATCH):
            some = order[start : start + BATCH].tolist()
            yield np.stack([flat[n * BLOCK : (n + 1) * BLOCK] for n in some])

    return epoch(batches, count)


def from_litdata(site: Site) -> Work:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming.item_loader import TokensLoader

    dataset = StreamingDataset(
        str(as_litdata(site)), item_loader=TokensLoader(block_size=BLOCK), shuffle=True, seed=0
    )
    return epoch(lambda: StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0), blocks(site))


@case("load blocks of 1,024 tokens, in batches of 64", sides=("tarmac", "numpy memmap"), ratio=0.8, repeat=3)
def beside_memmap(site: Site, side: str) -> Work:
    return {"tarmac": from_tarmac, "numpy memmap": from_array}[side](site)


@case(
    "load blocks of 1,024 tokens, each from its own format", sides=("tarmac", "litdata"), ratio=1.5, repeat=3
)
def beside_litdata(site: Site, side: str) -> Work:
    return {"tarmac": from_tarmac, "litdata": from_litdata}[side](site)


@case("pack documents of lognormal lengths into sequences of 2,048 tokens", sides=("tarmac",), repeat=3)
def packing(site: Site, side: str) -> Work:
    from tarmac.exact.packing import pack_lengths

    rng = np.random.default_rng(0)
    documents = max(10 * site.small, 10_000)  # a few leave gaps
    lengths = np.clip(rng.lognormal(6, 1, documents), 1, 100_000).astype(np.int64)

    def work() -> Done:
        begin = time.perf_counter()
        packing = pack_lengths(lengths, SEQUENCE)
        seconds = time.perf_counter() - begin
        fault = "" if packing.fill >= FULL else f"{packing.fill:.2%} full, {FULL:.1%} is required"
        return Done(len(packing), seconds, f"{packing.fill:.2%} full", fault)

    return work
