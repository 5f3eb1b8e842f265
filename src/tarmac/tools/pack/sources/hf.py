"""A directory in the layout of Hugging Face: the rows of its Parquet files, in the order of their names."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tarmac.errors import NotFound
from tarmac.jobs.task import Status
from tarmac.samples.grouping import Sample
from tarmac.storage import is_local, list_objects
from tarmac.storage.local import local_path
from tarmac.tools.pack.sources.source import (
    File,
    FileStats,
    Item,
    Load,
    Location,
    Skipped,
    Source,
    SourceFormat,
    SourceOptions,
    register_source,
)
from tarmac.tools.pack.sources.table import TableSource, open_table
from tarmac.tools.tables import Parquet


@dataclass
class HubDirectory(Source):
    """The tables of all splits. A location is the number of a table, and the location in it."""

    url: str
    tables: list[TableSource]
    format = "hf"

    @property
    def unique_keys(self) -> bool:  # type: ignore[override]
        return all(table.unique_keys for table in self.tables)

    def items(self, skipped: Skipped) -> Iterator[Item]:
        for number, table in enumerate(self.tables):
            for key, size, location in table.items(skipped):
                yield key, size, (number, *location)

    @contextlib.contextmanager
    def opened(self, locations: Sequence[Location], stats: FileStats) -> Iterator[Load]:
        with contextlib.ExitStack() as stack:
            loads = {
                number: stack.enter_context(
                    self.tables[number].opened(
                        [location[1:] for location in locations if location[0] == number], stats
                    )
                )
                for number in sorted({location[0] for location in locations})
            }

            def load(key: str, location: Location) -> Sample:
                sample: Sample = loads[location[0]](key, location[1:])
                return sample

            yield load

    def files(self, location: Location) -> tuple[File, ...]:
        return self.tables[location[0]].files(location[1:])

    def fingerprint(self) -> str:
        return " ".join(table.fingerprint() for table in self.tables)

    def statuses(self) -> dict[str, Status]:
        return {url: status for table in self.tables for url, status in table.statuses().items()}


def _is_hub(path: str) -> bool:
    return any(glob.iglob(f"{glob.escape(path)}/data/*.parquet"))


def _open(url: str, options: SourceOptions) -> HubDirectory:
    root = url.rstrip("/")
    if is_local(url):
        path = glob.escape(local_path(root))
        names = [name for folder in ("data/", "") for name in glob.glob(f"{path}/{folder}*.parquet")]
    else:
        names = [name for name, _ in list_objects(f"{root}/", options.storage) if name.endswith(".parquet")]
    if not names:
        raise NotFound("the directory has no Parquet files.", url=url)
    return HubDirectory(
        url, [open_table("parquet", Parquet, name, options) for name in sorted(names, key=os.fspath)]
    )


register_source(SourceFormat("hf", _open, has_columns=True, lists_files=True, directory=_is_hub))
