"""The status of rows: one line for each row of the input, in a Parquet file beside each shard."""

from __future__ import annotations

import io
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tarmac.downloading.hashes import as_signed
from tarmac.downloading.network.fetch import is_transient
from tarmac.errors import DecodeFailed, UsageError
from tarmac.storage import StorageOptions, is_local, read_all, stat, write_all
from tarmac.storage.local import local_path
from tarmac.storage.types import WriteOptions
from tarmac.tar.compression import format_of_name

SUCCESS = "success"
DROPPED = frozenset({"opted_out", "filtered", "duplicate"})
"""Statuses of rows that are left out on request: of the one who offers the picture, or of the user."""
FAILURES = frozenset({
    "http", "redirects", "protocol", "too_large", "dns", "connect", "tls", "timeout", "truncated", "host_down", "rules",
    "deadline", "not_image", "bad_image", "too_many_pixels", "other_content", "bad_boxes", "bad_key", "invalid_url",
    "refused_address",
})  # fmt: skip
"""All other statuses but that of success."""
_TIMES = ("seconds", "requests")
"""Columns that differ from run to run; they have a fixed size in the file."""


def status_url(shard: str) -> str:
    """Return the name of the file with the status of the rows of a shard."""
    stem = shard
    if format_of_name(stem):
        stem = stem.rpartition(".")[0]
    return f"{stem.removesuffix('.tar')}.parquet"


def public_url(url: Any) -> str | None:
    """Return a URL without the user and the password that it may contain."""
    if not isinstance(url, str):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.rpartition("@")[2]
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def schema(digest: str, saved: Mapping[str, str]) -> Any:
    """Return the columns of a status file: its own, and those saved columns that have other names."""
    import pyarrow as pa

    own = pa.schema(
        [
            ("row", pa.int64()), ("key", pa.string()), ("url", pa.string()), ("caption", pa.string()),
            ("status", pa.string()), ("error_message", pa.string()), ("http_status", pa.int16()),
            ("bytes", pa.int64()), ("extension", pa.string()), ("width", pa.int32()), ("height", pa.int32()),
            ("original_width", pa.int32()), ("original_height", pa.int32()), (digest, pa.string()),
            ("content_hash", pa.int64()), ("perceptual_hash", pa.int64()), ("exif", pa.string()),
            ("seconds", pa.float32()), ("requests", pa.int16()),
        ]
    )  # fmt: skip
    more = [(name, pa.type_for_alias(kind)) for name, kind in saved.items() if name not in own.names]
    return pa.schema([*own, *(pa.field(name, kind) for name, kind in more)])


class StatusFile:
    """Collects the status of rows, and writes them."""

    def __init__(self, digest: str, saved: Mapping[str, str]) -> None:
        import pyarrow.parquet as pq

        self._schema = schema(digest, saved)
        self._own = schema(digest, {}).names
        self._rows: list[dict[str, Any]] = []
        self._stream = io.BytesIO()
        names = self._schema.names
        self._writer = pq.ParquetWriter(
            self._stream,
            self._schema,
            compression={name: "NONE" if name in _TIMES else "ZSTD" for name in names},
            use_dictionary=[name for name in names if name not in _TIMES],
            write_statistics=[name for name in names if name not in _TIMES],
        )

    def add(self, facts: dict[str, Any], saved: Mapping[str, Any]) -> None:
        """Add a row, with the values of the saved columns."""
        for name in ("content_hash", "perceptual_hash"):
            facts[name] = as_signed(facts.get(name))
        more = {name: value for name, value in saved.items() if name not in self._own}
        self._rows.append({name: facts.get(name) for name in self._own} | more)
        if len(self._rows) >= 1000:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._writer.write_batch(pa.RecordBatch.from_pylist(self._rows, self._schema))
            self._rows = []

    def write(self, url: str, storage: StorageOptions) -> int:
        """Write the file, and return its size."""
        self._flush()
        self._writer.close()
        content = self._stream.getvalue()
        write_all(url, content, storage, WriteOptions(overwrite=True))
        return len(content)


def check_statuses(url: str, storage: StorageOptions) -> None:
    """Raise unless a file is there and, if it is local, has the status of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stat(url, storage)
    if not is_local(url):
        return
    try:
        names = pq.read_schema(local_path(url)).names
    except (pa.ArrowException, OSError) as error:
        raise DecodeFailed(f"invalid Parquet file: {error}.", url=url) from None
    if not {"status", "content_hash", "perceptual_hash"} <= set(names):
        what = "the file does not have the status of the rows of a download."
        raise UsageError(what, field="known", url=url)


def read_statuses(
    url: str, storage: StorageOptions, columns: Sequence[str] = ("row", "status", "http_status")
) -> Iterator[dict[str, Any]]:
    """Yield these columns of the rows of a status file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(io.BytesIO(read_all(url, storage))) as file:
        for batch in file.iter_batches(columns=list(columns)):
            yield from batch.to_pylist()


def failed_rows(
    urls: Iterable[str], which: Sequence[str], total: int, storage: StorageOptions
) -> tuple[array[int], Counter[str]]:
    """Return the rows whose last status is one of `which`, in ascending order, and how many have which status.

    `which` has `transient`, `failed`, or names. `total` is the number of rows, each of which needs two bytes here.
    """
    last = array("H", bytes(2 * total))
    numbers = {(SUCCESS, 0): 0}
    for url in urls:
        for each in read_statuses(url, storage):
            kind = each["status"], each["http_status"] or 0
            last[each["row"]] = numbers.setdefault(kind, len(numbers))
    chosen = {number: status for (status, http), number in numbers.items() if _is_one_of(status, http, which)}
    counts = Counter(last)
    rows = array("q", (row for row, number in enumerate(last) if number in chosen))
    statuses: Counter[str] = Counter()
    for number, status in chosen.items():
        statuses[status] += counts[number]
    return rows, statuses


def _is_one_of(status: str, http: int, which: Sequence[str]) -> bool:
    if status == SUCCESS or status in DROPPED:
        return False
    named = status in which or (status == "http" and f"http_{http}" in which)
    return named or "failed" in which or ("transient" in which and is_transient(status, http))
