"""Random shards, and helpers for tests of indexed datasets."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import tarmac
from harness.shards import LONG, members
from tarmac.exact.dataset import Dataset
from tarmac.exact.selection import whole
from tarmac.exact.shardset import OpenOptions, ShardSet
from tarmac.indexing.build import manifest_of
from tarmac.indexing.manifest import Manifest

NAMES = st.text(st.sampled_from("ab_- é€\udc80"), min_size=1, max_size=4)
KEYS = st.one_of(
    NAMES,
    st.builds("{}/{}".format, NAMES, NAMES),
    st.builds("./{}".format, NAMES),
    st.builds("{}{}".format, st.just(LONG), NAMES),
)
FIELDS = st.sampled_from(["cls", "JPG", "json", "seg.png", "t\udc80"])
PAYLOADS = st.one_of(st.binary(max_size=20), st.sampled_from([b"", b"x" * 511, b"y" * 512, b"z" * 513]))
SAMPLES = st.dictionaries(KEYS, st.dictionaries(FIELDS, PAYLOADS, min_size=1, max_size=3), max_size=6)
SKIPPED = st.lists(
    st.sampled_from(
        [
            (tarfile.REGTYPE, "README", b"no sample"),
            (tarfile.REGTYPE, "__meta__/x.json", b"{}"),
            (tarfile.REGTYPE, ".hidden", b"no key"),
            (tarfile.DIRTYPE, "d", b""),
            (tarfile.SYMTYPE, "l.txt", b"d"),
        ]
    ),
    max_size=3,
    unique=True,
)


@st.composite
def archives(draw: Any) -> bytes:
    """The bytes of a shard: samples of all shapes, and members between them that belong to no sample."""
    samples, skipped = draw(SAMPLES), draw(SKIPPED)
    entries = [
        [(tarfile.REGTYPE, f"{key}.{field}", data) for field, data in fields.items()]
        for key, fields in samples.items()
    ]
    for entry in skipped:
        entries.insert(draw(st.integers(0, len(entries))), [entry])
    text = "".join(name for group in entries for _, name, _ in group)
    # PAX has no agreed way to write names that are not UTF-8.
    forms = [tarfile.GNU_FORMAT] if "\udc80" in text else [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
    return members([entry for group in entries for entry in group], draw(st.sampled_from(forms)))


def items(samples: Any) -> list[list[tuple[str, Any]]]:
    """Return samples with the order of their fields."""
    return [list(sample.items()) for sample in samples]


def write_shards(folder: Path, counts: list[int], *, size: int = 10, index: bool = True) -> list[str]:
    """Write shards with the given numbers of samples; keys are numbered throughout."""
    urls, number = [], 0
    for shard, count in enumerate(counts):
        urls.append(str(folder / f"s{shard:03d}.tar"))
        with tarmac.TarWriter(urls[-1], index=index, encoder=False) as writer:
            for _ in range(count):
                writer.write({"__key__": f"{number:05d}", "cls": b"%d" % number, "txt": b"x" * size})
                number += 1
    return urls


def dataset_of(source: Any, **options: Any) -> Dataset:
    """Return a dataset with options that `Dataset` itself does not have."""
    manifest = source if isinstance(source, Manifest) else manifest_of(source)
    return Dataset._of_parts([whole(ShardSet(manifest, OpenOptions(**options)))])
