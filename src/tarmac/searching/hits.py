"""Resolve the numbers that a search returns to samples: keys, captions, and where the samples are now."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tarmac.display import display_url, examples, html_table
from tarmac.embedding.layout import CAPTION, KEY, SHARD
from tarmac.errors import MissingField, UsageError
from tarmac.searching.searcher import Found
from tarmac.searching.sources import Sources

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

        samples = _embedded(self) if self._samples is None else self._samples
        return write_sheet(_views(resolve(self, samples), samples), os.fspath(url), images=max(len(self), 1))

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
        Hit(key, score, number, query, caption, shard or "")
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
    """Return the hits with the shard, the offset and the fields that their keys have in the samples."""
    numbers = find(samples, [hit.key for hit in hits])
    unknown = [hit.key for hit, number in zip(hits, numbers.tolist(), strict=True) if number < 0]
    if unknown:
        what = f"{len(unknown)} of {len(hits)} hits are not among the samples: {examples(unknown)}."
        raise UsageError(what, field="samples", hint="the samples that were embedded, or without `samples`.")
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


def find(samples: Dataset[Any], keys: Sequence[str]) -> Integers:
    """Return the number of the sample with each key; -1 if there is none."""
    from tarmac.exact.joined import AddFields

    numbers = AddFields(samples).find(keys)
    present = np.flatnonzero(numbers >= 0)
    for position, key in zip(present.tolist(), samples.keys(numbers[present]), strict=True):
        if key != keys[position]:  # another key with the same hash
            numbers[position] = -1
    return numbers


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
