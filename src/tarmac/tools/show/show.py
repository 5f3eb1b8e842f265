"""Show samples: their keys, the fields with their sizes, and what is in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tarmac.codecs import find_codec, json_loads
from tarmac.codecs.handlers import extension_of
from tarmac.codecs.images import open_image_field
from tarmac.display import visible
from tarmac.errors import MissingField, UrlError
from tarmac.exact.dataset import Dataset
from tarmac.indexing.manifest import read_manifest
from tarmac.samples.grouping import Sample
from tarmac.samples.reader import read
from tarmac.storage import Cache, StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards, expand
from tarmac.tar import TarOptions
from tarmac.tar.reader import DEFAULT_OPTIONS
from tarmac.tools.plan import OutputShard, StreamedShards, can_index, open_indexed
from tarmac.tools.select import Select
from tarmac.tools.tally import Tally

__all__ = [
    "chosen",
    "content",
    "describe",
    "Description",
    "line_of",
    "raw_field",
    "SampleLine",
    "show",
    "show_at",
]

TEXT_SHOWN = 4000
"""Letters of a text that are shown."""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)")
EVERYTHING = Select()


@dataclass(frozen=True, slots=True)
class SampleLine:
    """One sample as a listing shows it."""

    key: str
    url: str
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Description:
    """What a manifest says of a dataset as a whole."""

    name: str
    shards: int
    samples: int
    size: int
    fingerprint: str
    info: Any


def describe(manifest: str, *, storage: StorageOptions = DEFAULT_STORAGE) -> Description:
    """Say what is in a dataset, from its manifest alone."""
    found = read_manifest(manifest, storage)
    size = sum(shard.size or 0 for shard in found.shards)
    return Description(found.name, len(found.shards), found.samples, size, found.fingerprint, found.info)


def show_at(
    shards: Shards, numbers: Iterable[int], *, storage: StorageOptions = DEFAULT_STORAGE
) -> Iterator[SampleLine]:
    """Yield samples by number, through the index; negative numbers count from the end."""
    dataset = Dataset(shards, storage=storage)
    return (line_of(_by_number(dataset, number)) for number in numbers)


def show(
    shards: Shards,
    *,
    count: int | None = None,
    tar: TarOptions = DEFAULT_OPTIONS,
    storage: StorageOptions = DEFAULT_STORAGE,
) -> Iterator[SampleLine]:
    """Yield the first `count` samples, or all of them."""
    return map(line_of, islice(read(shards, tar=tar, storage=storage), count))


def line_of(sample: Sample) -> SampleLine:
    """A sample as a listing shows it."""
    sizes = {name: len(value) for name, value in sample.items() if name[:2] != "__"}
    return SampleLine(sample["__key__"], sample["__url__"], sizes)


def chosen(
    shards: Shards,
    *,
    select: Select = EVERYTHING,
    at: Sequence[str] = (),
    count: int | None = None,
    cache: Cache | None = None,
) -> Iterator[Sample]:
    """Yield the samples that are asked for: some of all, or those `at` numbers and keys.

    A whole number without zeros before it is a number, everything else a key; `=17` is the key 17.
    """
    urls = expand(shards, options=select.storage)
    indexed = can_index(urls)
    if at:
        samples = _at(shards, select, at, cache) if indexed else _at_in_stream(urls, select, at, cache)
    elif indexed and "-" in f"{select.slice}{select.slice_shard}":
        rows = open_indexed(urls, select, storage=select.storage, cache=cache)
        samples = rows.samples(OutputShard("", 0, rows.size))
    else:
        samples = _stream(urls, select, cache)
    return islice(samples, count)


def _stream(urls: Sequence[str], select: Select, cache: Cache | None) -> Iterator[Sample]:
    streams, tally = StreamedShards(urls, select, select.storage, cache), Tally()
    yield from select.cut(select.of_stream(streams.shards(), tally), tally)
    select.remarks(tally, empty=True)  # to ask for what is not there is no mistake


def _at(shards: Shards, select: Select, at: Sequence[str], cache: Cache | None) -> Iterator[Sample]:
    if select.meta is not None:
        dataset = open_indexed(expand(shards), select, storage=select.storage, cache=cache).dataset
    else:
        dataset = select.of_dataset(Dataset(shards, storage=select.storage, cache=cache))
    return select.cut(_found(dataset, place) for place in at)


def _found(dataset: Dataset, place: str) -> Sample:
    if _NUMBER.fullmatch(place):
        return _by_number(dataset, int(place))
    key = place.removeprefix("=")
    try:
        return dataset.get(key)  # type: ignore[no-any-return]
    except KeyError:
        raise UrlError(f"no sample has the key {key!r}.", hint="tarmac show lists the keys.") from None


def _by_number(dataset: Dataset, number: int) -> Sample:
    try:
        return dataset[number]  # type: ignore[no-any-return]
    except IndexError as error:
        raise UrlError(f"{error}.") from None


def _at_in_stream(
    urls: Sequence[str], select: Select, at: Sequence[str], cache: Cache | None
) -> Iterator[Sample]:
    """Look for samples in what can only be gone through; they come in the order in which they are there."""
    numbers = {int(place) for place in at if _NUMBER.fullmatch(place)}
    keys = {place.removeprefix("=") for place in at if not _NUMBER.fullmatch(place)}
    if min(numbers, default=0) < 0:
        raise UrlError("a stream has no end to count from; negative numbers need files that can be indexed.")
    for number, sample in enumerate(_stream(urls, select, cache)):
        if number in numbers or sample["__key__"] in keys:
            numbers.discard(number)
            keys.discard(sample["__key__"])
            yield sample
            if not numbers and not keys:
                return
    missing = ", ".join([*map(str, sorted(numbers)), *sorted(keys)])
    raise UrlError(f"there is no sample {missing}.", hint="tarmac show lists the keys.")


def raw_field(sample: Sample, field: str) -> bytes:
    """The bytes of one field of a sample."""
    if field not in sample or field[:2] == "__":
        there = ", ".join(name for name in sample if name[:2] != "__")
        raise MissingField(
            f'the sample has no field "{field}"; it has {there}.',
            url=sample.get("__url__"),
            key=sample["__key__"],
        )
    return bytes(sample[field])


def content(field: str, data: bytes) -> str:
    """What is in a field, for people: text and JSON as they are, images and arrays in a few words."""
    try:
        return visible(_content(field, data), keep="\n\t")
    except Exception as error:  # whatever a library says of damaged data
        reason = " ".join(str(error).split())[:200]
        return visible(f"{len(data)} bytes that are no {extension_of(field)}: {reason}")


def _content(field: str, data: bytes) -> str:
    codec = find_codec(field)
    kind = "bytes" if codec is None else codec.kind
    if kind == "image":
        image = open_image_field(field, data)
        return f"{image.format or extension_of(field)} image, {image.width}x{image.height}, {image.mode}"
    decode = None if codec is None else codec.decode
    if kind == "json":
        return _shortened(json.dumps((decode or json_loads)(data), indent=2, ensure_ascii=False))
    if kind == "array" and decode is not None:
        value = decode(data)
        if isinstance(value, dict):
            return "\n".join(f"{name}: {_summary(array)}" for name, array in value.items())
        return "\n".join(map(_summary, value if isinstance(value, list) else [value]))
    return _text(data)


def _summary(array: Any) -> str:
    shape = "x".join(map(str, array.shape)) or "one value"
    if array.size and array.dtype.kind in "iufb":
        low, high, mean = array.min(), array.max(), array.mean()
        return f"{array.dtype} array, {shape}, from {low:g} to {high:g}, mean {mean:g}"
    return f"{array.dtype} array, {shape}"


def _text(data: bytes) -> str:
    """Text as it is; of other bytes the first ones."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if "\0" not in text and (text or not data):
        return _shortened(text)
    return f"{len(data)} bytes, {data[:32].hex(' ')}{' …' if len(data) > 32 else ''}"


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}… ({len(text)} letters)"
