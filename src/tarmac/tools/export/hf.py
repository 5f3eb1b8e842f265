"""A directory as Hugging Face lays it out: `data/train-00000-of-00004.parquet`, and a card with the columns.

`datasets.load_dataset(DIRECTORY)` reads it, and so it can be uploaded to the hub as it is. Parts of `--part`
become splits; or each is exported by itself, to the same directory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tarmac.errors import NotFound, UrlError
from tarmac.storage import StorageOptions, read_all
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

    def adds_to(self, shape: Shape, parts: list[str], storage: StorageOptions) -> bool:
        """Whether there are other splits already, which these join; they must have the same columns."""
        files, features = self._told(storage)
        splits = {part or self.split for part in parts}
        if not files or any(each["split"] in splits for each in files):
            return False
        if features != _features(shape):
            raise UrlError("the splits that are there have other columns.", url=self.card)
        return True

    def finish(self, shape: Shape, parts: list[str], storage: StorageOptions) -> None:
        """Write the card, with the splits that are there already."""
        import yaml

        splits = [part or self.split for part in parts]
        before, features = self._told(storage)
        files = [each for each in before if each["split"] not in splits and features == _features(shape)]
        files += [{"split": split, "path": f"data/{split}-*.parquet"} for split in splits]
        told = {
            "configs": [{"config_name": "default", "data_files": files}],
            "dataset_info": {"features": _features(shape)},
        }
        text = yaml.safe_dump(told, sort_keys=False, allow_unicode=True)
        with published_stream(self.card, storage) as file:
            file.write(f"---\n{text}---\n".encode())

    def _told(self, storage: StorageOptions) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
        """What a card that is there says of the files of each split and of the columns."""
        import yaml

        try:
            told = yaml.safe_load(read_all(self.card, storage).decode().split("---\n")[1])
            return list(told["configs"][0]["data_files"]), list(told["dataset_info"]["features"])
        except (NotFound, UnicodeDecodeError, LookupError, TypeError, yaml.YAMLError):
            return [], []  # none, or one that somebody else wrote


def _features(shape: Shape) -> list[dict[str, str]]:
    return [{"name": name, "dtype": kind} for name, kind in features_of(shape, images=True).items()]
