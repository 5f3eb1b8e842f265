"""Take over the index files that NVIDIA DALI's `wds2idx` writes: text, one line per sample.

v1.2 2
jpg 512 20480 0001.jpg cls 21504 1 0001.cls
jpg 22528 19870 0002.jpg cls 43008 1 0002.cls
"""

from __future__ import annotations

from tarmac.errors import IndexingError
from tarmac.indexing.entries import Entries, Place
from tarmac.indexing.marks import take_marks
from tarmac.indexing.sidecar import make_sidecar
from tarmac.storage import StorageOptions, is_local, read_all, stat
from tarmac.storage.types import DEFAULT_STORAGE

__all__ = ["dali_url", "read_dali"]


def dali_url(shard: str) -> str:
    """Where DALI's index of a shard lies: `train-0.tar` has `train-0.idx`."""
    return f"{shard.removesuffix('.tar')}.idx"


def read_dali(shard: str, storage: StorageOptions = DEFAULT_STORAGE) -> bytes:
    """Return the content of a sidecar made from DALI's index, without reading the shard."""
    url = dali_url(shard)
    text = read_all(url, storage).decode("utf-8", "surrogateescape")
    lines = text.removesuffix("\n").split("\n")  # names may contain other kinds of line ends
    head = lines[0].split()
    if len(head) != 2 or not head[1].isdigit():
        raise IndexingError("this is not an index of DALI.", url=url)
    if head[0] != "v1.2":
        raise IndexingError(
            f"the index has version {head[0]}, which does not say what samples are called.",
            url=url,
            hint="tarmac index without --dali, or wds2idx of a newer DALI.",
        )
    if len(lines) - 1 != int(head[1]):
        raise IndexingError(f"the index says {head[1]} samples and lists {len(lines) - 1}.", url=url)
    entries, info, seen = Entries(), stat(shard, storage), set()
    for number, line in enumerate(lines[1:], 2):
        try:
            key, places = _sample(line)
            if key in seen:
                raise ValueError(f"the sample {key!r} came before")
            if places:
                seen.add(key)
                entries.add(key, places)
        except (ValueError, IndexError, OverflowError) as error:
            raise IndexingError(f"line {number} cannot be read: {error}.", url=url) from None
    marks = take_marks(shard, info, entries.offsets, storage)
    return make_sidecar(entries, info, {}, digests=False, local=is_local(shard), marks=marks)


def _sample(line: str) -> tuple[str, dict[str, Place]]:
    """One line: field, offset, size and name of each member; names may contain spaces."""
    words = line.split(" ")
    places: dict[str, Place] = {}
    key = ""
    while words:
        field, offset, size = words[0], int(words[1]), int(words[2])
        if max(offset, size) >= 1 << 63:
            raise ValueError(f"{max(offset, size)} is no place in a file")
        # The name ends with the field; what follows it is the next field.
        for end in range(4, len(words) + 1):
            name = " ".join(words[3:end])
            if name == field or name.endswith(f".{field}"):
                break
        else:
            raise ValueError(f"no name ends with .{field}")
        if name == field:  # a file without a dot, which DALI takes for a sample of its own
            words = words[end:]
            continue
        stem = name[: -len(field) - 1]
        if key not in ("", stem) or field.lower() in places:
            raise ValueError(f"{name!r} does not belong to the sample {key!r}")
        key, places[field.lower()], words = stem, (offset, size, 0), words[end:]
    return key, places
