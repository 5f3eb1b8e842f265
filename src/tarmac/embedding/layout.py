"""Where the files of embeddings are: arrays of vectors, tables of metadata, and the manifest that lists both.

The arrays and tables have the names that clip-retrieval gives them, so each side reads what the other writes.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import xxhash

from tarmac.errors import BadManifest, NotFound, UsageError
from tarmac.storage import StorageOptions, is_local, read_all
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE

MANIFEST = "embeddings.json"
FORMAT = "tarmac-embeddings-1"
IMAGE, TEXT = "img", "text"
KINDS = (IMAGE, TEXT)
"""What vectors are made of; a directory has one kind or both."""
KEY, SHARD, CAPTION = "key", "shard", "caption"
"""Columns of the metadata: the key of a sample, the URL of the shard it was read from, and its text."""
KEYS = (KEY, "image_path")
"""Columns that may hold keys; the second is that of clip-retrieval."""
OWN = frozenset((*KEYS, SHARD, CAPTION))
"""Columns that neither values in JSON nor scores replace."""
_NUMBER = re.compile(r"(?:img|text)_emb_(\d+)\.npy|metadata_(\d+)\.parquet")


@dataclass(frozen=True)
class PartFacts:
    """What the manifest says of the vectors of one shard."""

    name: str
    """The number of the shard, with zeros before it, as in the names of the files."""
    rows: int
    source: str = ""
    """The URL of the shard."""
    files: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """The size and the digest of each file, by its path in the directory."""

    @property
    def origin(self) -> str:
        """Return what identifies the files; empty if their digests are unknown."""
        if not self.files or not all(digest for _, digest in self.files.values()):
            return ""
        return xxhash.xxh3_128_hexdigest(repr(sorted(map(str, self.files.items()))).encode())


@dataclass(frozen=True)
class Facts:
    """The manifest of a directory of embeddings."""

    parts: Sequence[PartFacts]
    kinds: Mapping[str, int]
    """The dimension of the vectors of each kind."""
    model: str = ""
    """The model as `embed` takes it; empty if it is unknown."""
    normalized: bool = False
    """Whether vectors have length 1."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What else is known about the model."""

    def to_json(self) -> str:
        """Return the manifest as text."""
        return json.dumps({"format": FORMAT} | asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: bytes | str, url: str) -> Facts:
        """Return the manifest that `to_json` wrote; raise BadManifest if the text is something else."""
        try:
            values = json.loads(text)
            if values.get("format") != FORMAT:
                raise ValueError(f"expected the format {FORMAT!r}, got {values.get('format')!r}")
            known = {name: values[name] for name in (each.name for each in fields(cls)) if name in values}
            parts = tuple(PartFacts(**part) for part in known.pop("parts"))
            return cls(parts=parts, **known)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadManifest(f"these are not embeddings: {error}.", url=url) from None


def vectors_name(kind: str, part: str) -> str:
    """Return the path of an array of vectors in the directory."""
    return f"{kind}_emb/{kind}_emb_{part}.npy"


def metadata_name(part: str) -> str:
    """Return the path of a table of metadata in the directory."""
    return f"metadata/metadata_{part}.parquet"


def scores_name(part: str) -> str:
    """Return the path of a table of scores in the directory."""
    return f"scores/scores_{part}.parquet"


def read_facts(directory: str, storage: StorageOptions = DEFAULT_STORAGE) -> Facts | None:
    """Return the manifest of a directory; None if it has none, as that of another program."""
    url = f"{directory.rstrip('/')}/{MANIFEST}"
    try:
        return Facts.from_json(bytes(read_all(url, storage)), url)
    except NotFound:
        return None


def list_parts(directory: str) -> dict[str, list[str]]:
    """Return the names of the parts of each kind in a local directory without a manifest, in order.

    Raise NotFound if there are none.
    """
    if not is_local(directory):
        raise UsageError(
            "embeddings of other programs are read from local directories only.",
            url=directory,
            hint="copy the directory to this machine.",
        )
    path = local_path(directory)
    parts: dict[str, list[str]] = {}
    for kind in KINDS:
        names = glob.glob(os.path.join(glob.escape(path), f"{kind}_emb", f"{kind}_emb_*.npy"))
        numbers = [match[1] for name in names if (match := _NUMBER.fullmatch(os.path.basename(name)))]
        if numbers:
            parts[kind] = sorted(numbers, key=lambda number: (int(number), number))
    if not parts:
        raise NotFound(
            f"the directory has neither {MANIFEST} nor {vectors_name(IMAGE, 'N')}.",
            url=directory,
            hint="tarmac embed SHARDS -o DIR.",
        )
    return parts
