"""A directory in the layout of Hugging Face: `data/train-00000-of-00004.parquet`, and a card with the columns.

`datasets.load_dataset(DIRECTORY)` reads it, and it can be uploaded to the hub as it is. Splits can be exported
together, or one by one to the same directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tarmac.errors import NotFound, UsageError
from tarmac.jobs.task import Unit
from tarmac.storage import StorageOptions, is_stream, read_all
from tarmac.tools.export.destination import Destination, Target
from tarmac.tools.export.formats import Format, RowOptions, register_format
from tarmac.tools.export.parquet import features_of, open_parquet
from tarmac.tools.export.publish import published_stream

_SPLIT = re.compile(r"\w+(\.\w+)*")
Features = list[dict[str, str]]


@dataclass
class HubDestination(Destination):
    """A directory of Parquet files and a card."""

    several: bool = False
    """Whether the files are those of several splits."""
    directory = True

    @property
    def pattern(self) -> str:
        return "{split}-{i:06d}" if self.several else "{i:06d}"

    def with_splits(self) -> HubDestination:
        return replace(self, several=True)

    @property
    def _root(self) -> str:
        return self.output.rstrip("/") or "/"

    @property
    def ledger(self) -> tuple[str, str]:
        # Splits that are exported one by one to the same directory each have a ledger.
        return self._root, "export" if self.several else f"export-{self.hf_split}"

    @property
    def card(self) -> str:
        """The card, which describes the content of the directory."""
        return f"{self._root}/README.md"

    def check(self) -> None:
        if is_stream(self.output):
            raise UsageError(
                "hf cannot be written to a stream.", url=self.output, hint="a directory as the output."
            )
        if not _SPLIT.fullmatch(self.hf_split):
            raise UsageError(
                f"expected a name such as train, test or validation, got {self.hf_split!r}.", field="hf_split"
            )

    def options(self) -> dict[str, Any]:
        return {"directory": self.output, "pattern": "{part}-{i:06d}"}  # as in ledgers of earlier versions

    def unit_name(self, name: str, split: str, number: int, count: int) -> str:
        return f"{self._root}/data/{split or self.hf_split}-{number:05d}-of-{count:05d}.parquet"

    def begin(self, target: Target, units: Sequence[Unit], row: RowOptions, splits: Sequence[str]) -> None:
        card = [] if self._joins(row, splits, target.storage) else [self.card]
        target.check_new([*(unit.name for unit in units), *card])

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        yield from (unit.name for unit in units)
        yield self.card

    def _joins(self, row: RowOptions, splits: Sequence[str], storage: StorageOptions) -> bool:
        """Return whether only other splits exist; raise if they have other columns."""
        files, features = self._read_card(storage)
        names = self._names(splits)
        if not files or any(each["split"] in names for each in files):
            return False
        if features != _features(row):
            raise UsageError("the existing splits have other columns.", url=self.card)
        return True

    def finish(self, target: Target, row: RowOptions, splits: Sequence[str]) -> None:
        """Write the card, which keeps the other splits that exist."""
        import yaml

        names = self._names(splits)
        existing, features = self._read_card(target.storage)
        files = [each for each in existing if each["split"] not in names and features == _features(row)]
        files += [{"split": name, "path": f"data/{name}-*.parquet"} for name in names]
        card = {
            "configs": [{"config_name": "default", "data_files": files}],
            "dataset_info": {"features": _features(row)},
        }
        text = yaml.safe_dump(card, sort_keys=False, allow_unicode=True)
        with published_stream(self.card, target.storage) as file:
            file.write(f"---\n{text}---\n".encode())

    def _names(self, splits: Sequence[str]) -> list[str]:
        return [split or self.hf_split for split in splits]

    def _read_card(self, storage: StorageOptions) -> tuple[list[dict[str, str]], Features]:
        """Return the files of each split and the columns in the existing card."""
        import yaml

        try:
            card = yaml.safe_load(read_all(self.card, storage).decode().split("---\n")[1])
            return list(card["configs"][0]["data_files"]), list(card["dataset_info"]["features"])
        except (NotFound, UnicodeDecodeError, LookupError, TypeError, yaml.YAMLError):
            return [], []  # none, or one that tarmac did not write


def _features(row: RowOptions) -> Features:
    return [{"name": name, "dtype": kind} for name, kind in features_of(row, images=True).items()]


register_format(
    Format("hf", partial(open_parquet, images=True), (".parquet",), table=True, destination=HubDestination)
)
