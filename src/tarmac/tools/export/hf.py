"""A directory in the layout of Hugging Face: `data/train-00000-of-00004.parquet`, and a card with the columns.

`datasets.load_dataset(DIRECTORY)` reads it, and it can be uploaded to the hub as it is. Splits can be exported
together, or one by one to the same directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tarmac.errors import NotFound, UsageError
from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.task import Unit
from tarmac.storage import is_stream, read_all
from tarmac.tools.export.destination import Destination, published_stream
from tarmac.tools.export.formats import RowOptions
from tarmac.tools.export.parquet import features_of

_SPLIT = re.compile(r"\w+(\.\w+)*")
Features = list[dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class HubDestination(Destination):
    """A directory of Parquet files and a card."""

    @classmethod
    def to(cls, output: str, *, several: bool = False, **options: Any) -> Self:
        pattern = "{split}-{i:06d}" if several else "{i:06d}"
        return cls(pattern, directory=output, several=several, **options)

    @property
    def ledger(self) -> str:
        # Splits that are exported one by one to the same directory each have a ledger.
        return ledger_url(self._root, "export" if self.several else f"export-{self.hf_split}")

    @property
    def card(self) -> str:
        """The card, which describes the content of the directory."""
        return f"{self._root}/README.md"

    def __post_init__(self) -> None:
        if is_stream(self.directory):
            raise UsageError(
                "hf cannot be written to a stream.", url=self.directory, hint="a directory as the output."
            )
        if not _SPLIT.fullmatch(self.hf_split):
            raise UsageError(
                f"expected a name such as train, test or validation, got {self.hf_split!r}.", field="hf_split"
            )
        super().__post_init__()

    def options(self) -> dict[str, Any]:
        # The pattern is that in ledgers of earlier versions.
        return super().options() | {"directory": self.directory, "pattern": "{part}-{i:06d}"}

    def unit_name(self, name: str, split: str, number: int, count: int) -> str:
        return f"{self._root}/data/{split or self.hf_split}-{number:05d}-of-{count:05d}.parquet"

    def begin(self, units: Sequence[Unit], row: RowOptions, splits: Sequence[str]) -> None:
        card = [] if self._joins(row, splits) else [self.card]
        self.check_new([*(unit.name for unit in units), *card])

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        yield from (unit.name for unit in units)
        yield self.card

    def _joins(self, row: RowOptions, splits: Sequence[str]) -> bool:
        """Return whether only other splits exist; raise if their columns differ."""
        files, features = self._read_card()
        names = self._names(splits)
        if not files or any(each["split"] in names for each in files):
            return False
        if features != _features(row):
            raise UsageError("the existing splits have different columns.", url=self.card)
        return True

    def complete(self, row: RowOptions, splits: Sequence[str]) -> None:
        """Write the card, which keeps the other splits that exist."""
        import yaml

        names = self._names(splits)
        existing, features = self._read_card()
        files = [each for each in existing if each["split"] not in names and features == _features(row)]
        files += [{"split": name, "path": f"data/{name}-*.parquet"} for name in names]
        card = {
            "configs": [{"config_name": "default", "data_files": files}],
            "dataset_info": {"features": _features(row)},
        }
        text = yaml.safe_dump(card, sort_keys=False, allow_unicode=True)
        with published_stream(self.card, self.storage) as file:
            file.write(f"---\n{text}---\n".encode())

    def _names(self, splits: Sequence[str]) -> list[str]:
        return [split or self.hf_split for split in splits]

    def _read_card(self) -> tuple[list[dict[str, str]], Features]:
        """Return the files of each split and the columns in the existing card."""
        import yaml

        try:
            card = yaml.safe_load(read_all(self.card, self.storage).decode().split("---\n")[1])
            return list(card["configs"][0]["data_files"]), list(card["dataset_info"]["features"])
        except (NotFound, UnicodeDecodeError, LookupError, TypeError, yaml.YAMLError):
            return [], []  # none, or one that tarmac did not write


def _features(row: RowOptions) -> Features:
    return [{"name": name, "dtype": kind} for name, kind in features_of(row, images=True).items()]
