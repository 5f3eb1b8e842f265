"""Tokenizing texts: beside the encoder alone, and beside datatrove. Both sides have two processes.

What a job takes for a few texts is its start-up: processes, imports, loading the tokenizer, a ledger. That is
subtracted and printed. The encoder alone gets texts that are in memory and writes nothing; datatrove reads JSON lines
and does not shuffle.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from bench import texts
from bench.cases.jobs import DATATROVE, temporary
from bench.registry import Done, Site, Work, case

BATCH = 1024
_DATATROVE = """
import sys, time
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer

if __name__ == "__main__":
    source, pattern, tokenizer, target = sys.argv[1:]
    for part in ("start", "all"):
        steps = [
            JsonlReader(source, glob_pattern=pattern.replace("PART", part)),
            DocumentTokenizer(f"{target}/{part}", tokenizer, shuffle_documents=False),
        ]
        executor = LocalPipelineExecutor(steps, tasks=2, workers=2, logging_dir=f"{target}/logs-{part}")
        begin = time.perf_counter()
        executor.run()
        print(time.perf_counter() - begin)
"""


def steady(count: int, start: float, seconds: float, tokens: int) -> Done:
    """Return the rate without the start-up."""
    return Done(count, max(seconds - start, 1e-9), f"start-up {start:.1f} s, {tokens:,} tokens")


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that work takes, and its result."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def with_tarmac(site: Site, kind: texts.Kind) -> Work:
    import tarmac

    tokenizer = texts.tokenizer(site)

    def tokenize(target: Path, part: str) -> Any:
        source = kind.path(site, part, "json")
        return tarmac.tokenize(
            str(source), target / part, text="txt", tokenizer=tokenizer, jobs=2, progress=False
        )

    def work() -> Done:
        with temporary(site) as target:
            start, _ = timed(lambda: tokenize(target, "start"))
            seconds, report = timed(lambda: tokenize(target, "all"))
        return steady(kind.count, start, seconds, report.notes["tokens"])

    return work


def bare(site: Site, kind: texts.Kind) -> Work:
    """The encoder alone: one array for each batch of texts in memory."""
    tokenizer = texts.tokenizer(site)

    def work() -> Done:
        context = multiprocessing.get_context("spawn")
        ready, results = context.Barrier(texts.SHARDS), context.SimpleQueue()
        begin = time.perf_counter()
        paths = [str(kind.path(site, f"all-{shard}", "tar")) for shard in range(texts.SHARDS)]
        processes = [
            context.Process(target=_encode, args=(path, tokenizer, ready, results)) for path in paths
        ]
        for each in processes:
            each.start()
        starts, ends, tokens = zip(*(results.get() for _ in processes), strict=True)
        for each in processes:
            each.join()
        return steady(kind.count, min(starts) - begin, max(ends) - begin, sum(tokens))

    return work


def _encode(path: str, tokenizer: str, ready: Any, results: Any) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import numpy as np
    from tokenizers import Tokenizer

    import tarmac

    encode = Tokenizer.from_file(tokenizer).encode_batch_fast
    loaded = [sample["txt"].decode() for sample in tarmac.read(path)]
    ready.wait()
    begin, tokens = time.perf_counter(), 0
    for start in range(0, len(loaded), BATCH):
        ids = [encoding.ids for encoding in encode(loaded[start : start + BATCH])]
        tokens += len(np.fromiter(chain.from_iterable(ids), np.uint16))
    results.put((begin, time.perf_counter(), tokens))


def in_datatrove(site: Site, kind: texts.Kind) -> Work:
    tokenizer = texts.tokenizer(site)

    def work() -> Done:
        with temporary(site) as target:
            script = target / "tokenize_documents.py"  # a file: its processes import the main program
            script.write_text(_DATATROVE)
            pattern = kind.path(site, "PART-*", "jsonl")
            command = [DATATROVE, script, pattern.parent, pattern.name, tokenizer, target]
            environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}  # faster for it, too
            output = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            ).stdout
            tokens = sum(path.stat().st_size for path in (target / "all").glob("*.ds")) // 2
        start, seconds = map(float, output.split()[-2:])
        return steady(kind.count, start, seconds, tokens)

    return work


SIDES = {"tarmac": with_tarmac, "encode_batch_fast": bare, "datatrove": in_datatrove}


def tokenizing(site: Site, side: str, kind: texts.Kind) -> Work:
    texts.prepare(site, kind)
    return SIDES[side](site, kind)


@case("tokenize 500,000 captions, the encoder", sides=("tarmac", "encode_batch_fast"), ratio=0.9)
def captions_beside_the_encoder(site: Site, side: str) -> Work:
    return tokenizing(site, side, texts.captions(site))


@case("tokenize 500,000 captions", sides=("tarmac", "datatrove"), ratio=1.5)
def captions_beside_datatrove(site: Site, side: str) -> Work:
    return tokenizing(site, side, texts.captions(site))


@case("tokenize 20,000 texts of 4 KB, the encoder", sides=("tarmac", "encode_batch_fast"), ratio=0.9)
def documents_beside_the_encoder(site: Site, side: str) -> Work:
    return tokenizing(site, side, texts.documents(site))


@case("tokenize 20,000 texts of 4 KB", sides=("tarmac", "datatrove"), ratio=1.15)
def documents_beside_datatrove(site: Site, side: str) -> Work:
    return tokenizing(site, side, texts.documents(site))
