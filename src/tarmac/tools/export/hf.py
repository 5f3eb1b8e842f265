"""A directory as Hugging Face lays it out: `data/train-00000-of-00004.parquet`, and a card with the columns.

`datasets.load_dataset(DIRECTORY)` reads it, and so it can be uploaded to the hub as it is. Parts of `--part`
become splits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tarmac.errors import UrlError
from tarmac.storage import StorageOptions
from tarmac.tools.export.form import Shape
from tarmac.tools.export.parquet import features_of
from tarmac.tools.export.publish import published_stream

__all__ = ["Layout"]

_SPLIT = re.compile(r"\w+(\.\w+)*")


@dataclass(frozen=True)
class Layout:
    """Where what goes."""

    directory: str
    split: str = "train"
    """The name of the only split, where there are no parts."""

    def __post_init__(self) -> None:
        if not _SPLIT.fullmatch(self.split):
            raise UrlError(f"--split {self.split!r}: a split is called train, test, validation or so.")

    @property
    def card(self) -> str:
        """The card, which says what is in the directory."""
        return f"{self.directory}/README.md"

    def name(self, part: str, number: int, count: int) -> str:
        """The name of a file."""
        return f"{self.directory}/data/{part or self.split}-{number:05d}-of-{count:05d}.parquet"

    def finish(self, shape: Shape, parts: list[str], storage: StorageOptions) -> None:
        """Write the card."""
        import yaml

        features = [{"name": name, "dtype": kind} for name, kind in features_of(shape, images=True).items()]
        files = [
            {"split": part or self.split, "path": f"data/{part or self.split}-*.parquet"} for part in parts
        ]
        told = {
            "configs": [{"config_name": "default", "data_files": files}],
            "dataset_info": {"features": features},
        }
        text = yaml.safe_dump(told, sort_keys=False, allow_unicode=True)
        with published_stream(self.card, storage) as file:
            file.write(f"---\n{text}---\n".encode())
