"""Texts to tokenize, a tokenizer that was trained on such texts, and shards and JSON lines of them.

Words are made of syllables. The n-th most frequent one is about n times rarer than the first, as in natural languages,
and rare words are longer. So a tokenizer has words that it knows as a whole and words that it must divide.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.registry import Site

WORDS, VOCABULARY = 30_000, 16_000
SEED = 7
SHARDS = 2
"""One for each process, as datatrove needs a file for each task."""
STARTING = 64
"""Texts of the job whose duration counts as start-up."""


@dataclass(frozen=True)
class Kind:
    """Texts of about this many characters."""

    name: str
    characters: int
    count: int

    def path(self, site: Site, part: str, suffix: str) -> Path:
        return site.data / "texts" / f"{self.name}-{self.count}-{part}.{suffix}"


def captions(site: Site) -> Kind:
    return Kind("captions", 60, min(500_000, 5 * site.small))


def documents(site: Site) -> Kind:
    return Kind("documents", 4096, min(20_000, max(site.small // 5, 2)))


def vocabulary() -> list[str]:
    """Return all words, the frequent ones first."""
    rng = random.Random(SEED)
    onsets = [
        "b",
        "c",
        "d",
        "f",
        "g",
        "h",
        "l",
        "m",
        "n",
        "p",
        "r",
        "s",
        "t",
        "v",
        "st",
        "tr",
        "ch",
        "sh",
        "",
    ]
    syllables = [a + b + c for a in onsets for b in "aeiou" for c in ("", "n", "r", "s", "t", "l", "ng")]
    words: dict[str, None] = {}
    while len(words) < WORDS:
        longer = (len(words) > 50) + (len(words) > 1500 and rng.random() < 0.7) + (rng.random() < 0.2)
        words["".join(rng.choices(syllables, k=1 + longer))] = None
    return list(words)


def texts(count: int, characters: int, seed: int = SEED) -> Iterator[str]:
    """Yield sentences; half of them are shorter than this number of characters."""
    import numpy as np

    words, rng = vocabulary(), np.random.default_rng(seed)
    shares = np.cumsum(1 / (np.arange(WORDS) + 2.7))
    for _ in range(count):
        size = int(characters * rng.uniform(0.5, 1.5))
        numbers = np.searchsorted(shares, rng.random(size // 4 + 2) * shares[-1])
        yield " ".join([words[number] for number in numbers])[:size].capitalize() + "."


def tokenizer(site: Site) -> str:
    """Return the path of a tokenizer, as GPT-2 has one, trained on such texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    path = site.data / "texts" / "tokenizer.json"
    if not path.exists():
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trained = Tokenizer(models.BPE())
        trained.pre_tokenizer = bytes_
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY, show_progress=False, special_tokens=["<|endoftext|>"],
            initial_alphabet=bytes_.alphabet(),
        )  # fmt: skip
        trained.train_from_iterator(texts(2000, 2000, seed=1), trainer)
        path.parent.mkdir(parents=True, exist_ok=True)
        trained.save(str(path) + ".part")
        os.replace(f"{path}.part", path)
    return str(path)


def prepare(site: Site, kind: Kind) -> None:
    """Write the texts as shards with indexes and as JSON lines, and a few of them for measuring the start."""
    import tarmac

    tokenizer(site)
    if kind.path(site, "start", "json").exists():
        return
    every = list(texts(kind.count, kind.characters))
    for part, some in (("all", every), ("start", every[:STARTING])):
        names = []
        for shard in range(SHARDS):
            path = kind.path(site, f"{part}-{shard}", "tar")
            names.append(path)
            with (
                tarmac.TarWriter(path) as writer,
                open(kind.path(site, f"{part}-{shard}", "jsonl"), "w") as lines,
            ):
                for number, text in enumerate(some[shard::SHARDS]):
                    key = f"{shard}{number:08d}"
                    writer.write({"__key__": key, "txt": text})
                    print(json.dumps({"id": key, "text": text}), file=lines)
        tarmac.index(names, output=kind.path(site, part, "json"), progress=False)
