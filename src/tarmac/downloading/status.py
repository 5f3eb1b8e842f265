"""The status of rows: one line for each row of the input, in a Parquet file beside each shard."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tarmac.downloading.hashes import as_signed
from tarmac.downloading.network.fetch import is_transient
from tarmac.storage import StorageOptions, read_all, write_all
from tarmac.storage.types import WriteOptions
from tarmac.tar.compression import format_of_name

SUCCESS = "success"
DROPPED = frozenset({"opted_out", "filtered", "duplicate"})
"""Statuses of rows that are left out on request: of the one who offers the picture, or of the user."""
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


def schema(digest: str) -> Any:
    """Return the columns of a status file."""
    import pyarrow as pa

    return pa.schema(
        [
            ("row", pa.int64()), ("key", pa.string()), ("url", pa.string()), ("caption", pa.string()),
            ("status", pa.string()), ("error_message", pa.string()), ("http_status", pa.int16()),
            ("bytes", pa.int64()), ("extension", pa.string()), ("width", pa.int32()), ("height", pa.int32()),
            ("original_width", pa.int32()), ("original_height", pa.int32()), (digest, pa.string()),
            ("content_hash", pa.int64()), ("perceptual_hash", pa.int64()), ("exif", pa.string()),
            ("seconds", pa.float32()), ("requests", pa.int16()),
        ]
    )  # fmt: skip


class StatusFile:
    """Collects the status of rows, and writes them."""

    def __init__(self, digest: str) -> None:
        import pyarrow.parquet as pq

        self._schema = schema(digest)
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

    def add(self, facts: dict[str, Any]) -> None:
        """Add a row."""
        for name in ("content_hash", "perceptual_hash"):
            facts[name] = as_signed(facts.get(name))
        self._rows.append({name: facts.get(name) for name in self._schema.names})
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


def read_statuses(
    url: str, storage: StorageOptions, columns: Sequence[str] = ("row", "status", "http_status")
) -> Iterator[dict[str, Any]]:
    """Yield these columns of the rows of a status file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(io.BytesIO(read_all(url, storage))) as file:
        for batch in file.iter_batches(columns=list(columns)):
            yield from batch.to_pylist()


def failed_rows(urls: Iterable[str], which: Sequence[str], storage: StorageOptions) -> list[int]:
    """Return the rows whose last status is one of `which`: `transient`, `failed` or names, in ascending order."""
    rows: set[int] = set()
    for url in urls:
        for each in read_statuses(url, storage):
            rows.discard(each["row"])
            if _is_one_of(each["status"], each["http_status"] or 0, which):
                rows.add(each["row"])
    return sorted(rows)


def _is_one_of(status: str, http: int, which: Sequence[str]) -> bool:
    if status == SUCCESS or status in DROPPED:
        return False
    named = status in which or (status == "http" and f"http_{http}" in which)
    return named or "failed" in which or ("transient" in which and is_transient(status, http))
