"""Resolve the numbers that a search returns to samples: keys, captions, and where the samples are now."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tarmac.display import display_url, examples, html_table
from tarmac.embedding.keys import HINT, KeyIndex
from tarmac.embedding.layout import CAPTION, KEY, SHARD
from tarmac.errors import MissingField, TarmacError, UsageError
from tarmac.indexing.sidecar import sidecar_url
from tarmac.jobs.entries import public_name
from tarmac.searching.searcher import Found
from tarmac.searching.sources import Sources
from tarmac.storage import is_local, location
from tarmac.storage.local import local_path

if TYPE_CHECKING:
    from tarmac.exact.dataset import Dataset
    from tarmac.runtime.types import Integers
    from tarmac.tools.show.verb import SampleView


@dataclass(frozen=True)
class Hit:
    """A sample that a search returned."""

    key: str
    score: float
    """The inner product, or the squared distance."""
    number: int
    """The number of its vector."""
    query: int = 0
    """The number of its query."""
    caption: str | None = None
    shard: str = ""
    """The URL of its shard: of the samples, or when it was embedded."""
    offset: int | None = None
    """Where its first field begins in the shard, and ..."""
    sizes: Mapping[str, int] | None = None
    """... the size of each field, if samples were given."""
    index: int | None = None
    """Its number in the samples."""

    def to_dict(self) -> dict[str, Any]:
        """Return the hit as JSON."""
        return asdict(self) | {"shard": display_url(self.shard)}


class Hits(list[Hit]):
    """The hits of a search, one query after the other, the best first. They can be drawn, too."""

    def __init__(self, hits: Iterable[Hit], samples: Dataset[Any] | None = None) -> None:
        super().__init__(hits)
        self._samples = samples

    def write_sheet(self, url: str | os.PathLike[str]) -> int:
        """Draw the pictures of the hits on one page (.png, .jpg, .webp), with scores and keys; return their number.

        They are read from the samples of the query; without them, from the shards that were embedded.
        """
        from tarmac.tools.show.sheet import write_sheet

        if not self:
            raise UsageError("there are no hits, so there is nothing to draw.")
        samples, hits = self._samples, list(self)
        if samples is None:
            samples = _embedded(self)
            hits = resolve(self, samples)
        return write_sheet(_views(hits, samples), os.fspath(url), images=len(self))

    def located(self) -> Hits:
        """Return the hits with where they are in the shards that were embedded, if these are local and have indexes."""
        if self._samples is not None or not all(map(_is_indexed, {hit.shard for hit in self})):
            return self
        with contextlib.suppress(TarmacError):  # other samples are there now
            samples = _embedded(self)
            return Hits(resolve(self, samples), samples)
        return self

    def _repr_html_(self) -> str:
        rows = {f"{hit.score:.4f} {hit.key}": hit.caption or display_url(hit.shard) for hit in self}
        return html_table(f"{len(self)} hits", rows)


def hits_of(
    results: Found, vectors: Sources, samples: Dataset[Any] | str | os.PathLike[str] | None = None
) -> Hits:
    """Return the hits of all queries, one query after the other, with where they are in the samples."""
    rows, columns = np.nonzero(results.numbers >= 0)
    numbers, scores = results.numbers[rows, columns], results.scores[rows, columns]
    table = vectors.metadata(numbers, [KEY, CAPTION, SHARD]).to_pydict()
    hits = [
        Hit(key, score, number, query, None if caption is None else str(caption), str(shard or ""))
        for key, score, number, query, caption, shard in zip(
            table[KEY],
            scores.tolist(),
            numbers.tolist(),
            rows.tolist(),
            table[CAPTION],
            table[SHARD],
            strict=True,
        )
    ]
    if samples is None or not hits:
        return Hits(hits)
    dataset = open_samples(samples)
    return Hits(resolve(hits, dataset), dataset)


def open_samples(samples: Dataset[Any] | str | os.PathLike[str]) -> Dataset[Any]:
    """Return the dataset that a manifest or shards name."""
    from tarmac.exact.dataset import Dataset

    return samples if isinstance(samples, Dataset) else Dataset(samples)


def resolve(hits: Sequence[Hit], samples: Dataset[Any]) -> list[Hit]:
    """Return the hits with the shard, the offset and the fields that their keys have in the samples.

    Of several samples with the key of a hit, it is the one in the shard that was embedded.
    """
    index, keys = KeyIndex(samples.keys()), [hit.key for hit in hits]
    numbers = index.find(keys)
    unknown = [key for key, number in zip(keys, numbers.tolist(), strict=True) if number < 0]
    if unknown:
        what = f"{len(unknown)} of {len(hits)} hits are not among the samples: {examples(unknown)}."
        raise UsageError(what, field="samples", hint="the samples that were embedded, or without `samples`.")
    for position in np.flatnonzero(index.repeated(keys)).tolist():
        numbers[position] = _in_shard(samples, index.find_all(keys[position]), hits[position])
    results = list(hits)
    for part, shard, rows, positions in samples._fetcher.groups(numbers):
        sidecar, url = part.shards.sidecar(shard), part.shards.url(shard)
        for row, position in zip(np.asarray(rows).tolist(), positions.tolist(), strict=True):
            members = slice(sidecar.starts[row], sidecar.starts[row + 1])
            names = [sidecar.fields[each] for each in sidecar.field_of[members].tolist()]
            sizes = dict(zip(names, sidecar.sizes[members].tolist(), strict=True))
            offset = int(sidecar.offsets[members].min()) if names else None
            results[position] = replace(
                hits[position], shard=url, offset=offset, sizes=sizes, index=int(numbers[position])
            )
    return results


def _is_indexed(shard: str) -> bool:
    return bool(shard) and is_local(shard) and os.path.exists(local_path(sidecar_url(shard)))


def _in_shard(samples: Dataset[Any], numbers: Integers, hit: Hit) -> int:
    """Return the one of several samples with the same key that is in the shard of the hit."""
    inside: list[int] = []
    for part, shard, _, positions in samples._fetcher.groups(numbers):
        if location(public_name(part.shards.url(shard))) == location(hit.shard):
            inside += numbers[positions].tolist()
    if len(inside) != 1:
        what = f"{len(numbers)} samples have the key {hit.key!r} of a hit."
        raise UsageError(what, field="samples", hint=HINT)
    return inside[0]


def _embedded(hits: Sequence[Hit]) -> Dataset[Any]:
    """Return the samples of the shards that were embedded."""
    from tarmac.exact.dataset import Dataset

    shards = sorted({hit.shard for hit in hits})
    if not all(shards):
        raise MissingField("it is unknown which shards were embedded.", hint="`samples`, their manifest.")
    return Dataset(shards)


def _views(hits: Sequence[Hit], samples: Dataset[Any]) -> Iterator[SampleView]:
    from tarmac.tools.show.verb import SampleView

    results = samples.batch([hit.index for hit in hits if hit.index is not None])
    for hit, sample in zip(hits, results, strict=True):
        fields = {name: data for name, data in sample.items() if not name.startswith("__")}
        yield SampleView(f"{hit.score:.3f} {hit.key}", hit.shard, fields)
