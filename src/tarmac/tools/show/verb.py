"""Show samples: keys, fields, sizes, and a description of their content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

from tarmac.display import display_url, html_table
from tarmac.errors import MissingField, UsageError
from tarmac.indexing.manifest import Inputs, Manifest
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import is_reserved
from tarmac.storage import StorageOptions
from tarmac.storage.urls import Shards
from tarmac.tools.options import Access, AccessArgs, SelectArgs, bundle, verb

if TYPE_CHECKING:
    from tarmac.exact.dataset import Dataset
    from tarmac.tools.plan import IndexedSamples
    from tarmac.tools.select import Select


class ShowArgs(SelectArgs, AccessArgs, total=False):
    """The keyword arguments of `show` and `stats`."""


@dataclass(frozen=True, slots=True)
class SampleView:
    """One sample: its key, its shard, and the bytes of its fields."""

    key: str
    url: str
    fields: Mapping[str, bytes]

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of each field in bytes."""
        return {name: len(data) for name, data in self.fields.items()}

    def field(self, name: str) -> bytes:
        """Return the bytes of a field."""
        if name not in self.fields:
            what = f'the sample has no field "{name}"; it has {", ".join(self.fields)}.'
            raise MissingField(what, url=self.url, key=self.key)
        return bytes(self.fields[name])

    def describe(self) -> dict[str, str]:
        """Return a description of the content of each field: text and JSON as they are, arrays in a few words."""
        from tarmac.tools.show.describe import describe

        return {name: describe(name, data) for name, data in self.fields.items()}

    def to_sample(self) -> Sample:
        """Return the sample as a dictionary, as `tarmac.read` does."""
        return {"__key__": self.key, "__url__": self.url, **self.fields}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {size} bytes" for name, size in self.sizes.items())
        return f"<sample {self.key!r} of {display_url(self.url)}: {sizes}>"

    def _repr_html_(self) -> str:
        return html_table(self.key, {"shard": display_url(self.url)} | self.describe())


class SampleViews(Iterator[SampleView]):
    """The selected samples, one after the other. They can also be written to files."""

    def __init__(self, samples: Iterator[SampleView], storage: StorageOptions) -> None:
        self._samples, self._storage = samples, storage

    def __next__(self) -> SampleView:
        return next(self._samples)

    def write_sheet(self, url: str, images: int = 64) -> int:
        """Draw the first images on one page (.png, .jpg, .webp); return their number."""
        from tarmac.tools.show.sheet import write_sheet

        return write_sheet(self, url, images=images, storage=self._storage)

    def extract(self, directory: str, *, overwrite: bool = False) -> tuple[int, int]:
        """Write the fields to files of a directory; return the number of samples and of files."""
        from tarmac.tools.show.extract import extract

        return extract(self, directory, overwrite=overwrite)


@verb(ShowArgs, Access)
def show(
    sources: Shards | Manifest,
    n: int | None = None,
    *,
    at: Sequence[int | str] = (),
    **options: Unpack[ShowArgs],
) -> SampleViews:
    """Iterate over the selected samples: the first `n`, or those `at` some numbers and keys.

    >>> tarmac.show("train-*.tar", 64).write_sheet("sheet.png")
    >>> tarmac.show("train-*.tar", at=["00042"]).extract("look/")

    Negative numbers count from the end. Without a selection, shards are read from the start and only as far
    as necessary. Of combined tokens, a sample is a row.
    """
    if n is not None and n < 0:
        raise UsageError(f"expected 0 or more, got {n}.", field="n")
    access = bundle(Access, options)
    inputs = access.inputs(sources)
    if inputs.manifest is not None and inputs.manifest.info:
        from tarmac.tools.show.rows import find_rows

        rows = find_rows(inputs.manifest, access, at, options)
        if rows is not None:
            return SampleViews(islice(rows, n), access.storage)
    return SampleViews(map(_view, islice(_samples(inputs, access, at, options), n)), access.storage)


def _view(sample: Sample) -> SampleView:
    fields = {name: data for name, data in sample.items() if not is_reserved(name)}
    return SampleView(sample["__key__"], sample["__url__"], fields)


def _samples(
    inputs: Inputs, access: Access, at: Sequence[int | str], options: Mapping[str, Any]
) -> Iterator[Sample]:
    if not at and not (options.keys() & SelectArgs.__annotations__.keys()):
        # Without numpy and pyarrow, which take longer than a small shard.
        return iter(access.reader(inputs.urls))
    from tarmac.tools.plan import can_index, open_indexed
    from tarmac.tools.select import Select

    select = bundle(Select, options)
    if can_index(inputs.urls):
        if at:
            return pick(open_indexed(inputs, select, access), at)
        if _counts_from_the_end(select):
            indexed = open_indexed(inputs, select, access)
            return indexed.samples(indexed.everything)
    return _find_in_stream(inputs, select, access, at) if at else _stream(inputs, select, access)


def _counts_from_the_end(select: Select) -> bool:
    edges = [edge for each in (select.slice, select.slice_shard) if each for edge in (each.start, each.stop)]
    return any(edge is not None and edge < 0 for edge in edges)


def _stream(inputs: Inputs, select: Select, access: Access) -> Iterator[Sample]:
    from tarmac.tools.plan import OnePass, with_indexed_names
    from tarmac.tools.tally import Tally

    tally, select = Tally(), with_indexed_names(inputs, select, access)
    yield from OnePass(inputs.urls, select, access).samples(OnePass.everything, tally)
    select.remarks(tally, empty=True)  # showing an empty selection is not an error


def pick(indexed: IndexedSamples, at: Sequence[int | str]) -> Iterator[Sample]:
    """Return the samples of these numbers and keys."""
    return indexed.select.cut(_find(indexed.dataset, each) for each in at)


def _find(dataset: Dataset, at: int | str) -> Sample:
    try:
        sample: Sample = dataset[at] if isinstance(at, int) else dataset.get(at)
    except (IndexError, KeyError):
        raise _unknown([at], len(dataset)) from None
    return sample


def _find_in_stream(
    inputs: Inputs, select: Select, access: Access, at: Sequence[int | str]
) -> Iterator[Sample]:
    """Search inputs that can only be read from start to end; samples are yielded in the order of the shards."""
    numbers, keys = (
        {each for each in at if isinstance(each, int)},
        {each for each in at if isinstance(each, str)},
    )
    if min(numbers, default=0) < 0:
        raise UsageError(
            "negative numbers need inputs that can be indexed: plain files or objects.", field="at"
        )
    select, rule = replace(select, fields=None, drop_fields=()), select
    count = 0
    for number, sample in enumerate(_stream(inputs, select, access)):
        count = number + 1
        if number in numbers or sample["__key__"] in keys:
            numbers.discard(number)
            keys.discard(sample["__key__"])
            yield from rule.cut([sample])
            if not numbers and not keys:
                return
    raise _unknown([*sorted(numbers), *sorted(keys)], count)


def _unknown(at: Sequence[int | str], samples: int) -> UsageError:
    which = ", ".join(f"number {each}" if isinstance(each, int) else f"key {each!r}" for each in at)
    hint = "tarmac show lists the keys."
    return UsageError(f"none of the {samples} samples has {which}.", field="at", hint=hint)
