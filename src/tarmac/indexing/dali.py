"""Convert the index files that NVIDIA DALI's `wds2idx` writes: text, one line per sample.

v1.2 2
jpg 512 20480 0001.jpg cls 21504 1 0001.cls
jpg 22528 19870 0002.jpg cls 43008 1 0002.cls
"""

from __future__ import annotations

from tarmac.errors import IndexingError
from tarmac.indexing.entries import Entries, Extent
from tarmac.indexing.sidecar import make_sidecar
from tarmac.storage import StorageOptions, read_all, stat
from tarmac.storage.types import DEFAULT_STORAGE


def dali_url(shard: str) -> str:
    """Return the URL of DALI's index of a shard: `train-0.idx` for `train-0.tar`."""
    return f"{shard.removesuffix('.tar')}.idx"


def read_dali(shard: str, storage: StorageOptions = DEFAULT_STORAGE) -> bytes:
    """Convert DALI's index to the content of a sidecar, without reading the shard."""
    url = dali_url(shard)
    text = read_all(url, storage).decode("utf-8", "surrogateescape")
    lines = text.removesuffix("\n").split("\n")  # names may contain other line separators
    head = lines[0].split()
    if len(head) != 2 or not head[1].isdigit():
        raise IndexingError("not a DALI index.", url=url)
    if head[0] != "v1.2":
        raise IndexingError(
            f"the index has version {head[0]}, which lacks the names of samples.",
            url=url,
            hint="index the shard without `dali`, or run wds2idx of a newer DALI.",
        )
    if len(lines) - 1 != int(head[1]):
        raise IndexingError(f"expected {head[1]} samples, got {len(lines) - 1}.", url=url)
    entries, info, seen = Entries(), stat(shard, storage), set()
    for number, line in enumerate(lines[1:], 2):
        try:
            key, extents = _parse_sample(line)
            if key in seen:
                raise ValueError(f"duplicate sample {key!r}")
            if extents:
                seen.add(key)
                entries.add(key, extents)
        except (ValueError, IndexError, OverflowError) as error:
            raise IndexingError(f"line {number} is invalid: {error}.", url=url) from None
    return make_sidecar(entries, info, {}, digests=False, url=shard, storage=storage)


def _parse_sample(line: str) -> tuple[str, dict[str, Extent]]:
    """Parse a line: field, offset, size and name of each member; names may contain spaces."""
    words = line.split(" ")
    extents: dict[str, Extent] = {}
    key = ""
    while words:
        field, offset, size = words[0], int(words[1]), int(words[2])
        if max(offset, size) >= 1 << 63:
            raise ValueError(f"offset or size {max(offset, size)} is too large")
        # The name ends with the field; the next field follows.
        for end in range(4, len(words) + 1):
            name = " ".join(words[3:end])
            if name == field or name.endswith(f".{field}"):
                break
        else:
            raise ValueError(f"no name ends with .{field}")
        if name == field:  # a file without a dot, which DALI lists as a sample
            words = words[end:]
            continue
        stem = name[: -len(field) - 1]
        if key not in ("", stem) or field.lower() in extents:
            raise ValueError(f"{name!r} does not belong to the sample {key!r}")
        key, extents[field.lower()], words = stem, (offset, size, 0), words[end:]
    return key, extents
