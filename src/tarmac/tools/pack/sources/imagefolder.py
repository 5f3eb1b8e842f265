"""A folder for each class: the number of the class becomes a field of every sample in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tarmac.errors import DuplicateField, UrlError
from tarmac.storage import StorageOptions, is_local
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.pack.sources.directory import Directory
from tarmac.tools.pack.sources.files import loading
from tarmac.tools.pack.sources.source import Item, Load, Seen, Skipped, Source, Where

__all__ = ["ImageFolder"]

NO_CLASS = "outside of class folders"


@dataclass
class ImageFolder(Source):
    """`cat/001.jpg` is a sample of the class `cat`, whose number is its place among the sorted names."""

    name: str
    storage: StorageOptions = DEFAULT_STORAGE
    sized: bool = False
    classes: list[str] = field(default_factory=list)
    """Known when the items are."""
    kind = "imagefolder"

    def items(self, skipped: Skipped) -> Iterator[Item]:
        inside: list[Item] = []
        for item in Directory(self.name, self.storage, self.sized).items(skipped):
            if "/" in str(item[0]):
                inside.append(item)
            else:
                skipped.add(NO_CLASS, str(item[0]))
        self.classes = self._folders(inside)
        if not self.classes:
            hint = "--from dir for files without classes."
            raise UrlError("there is no folder in it that could be a class.", url=self.name, hint=hint)
        numbers = {name: str(number).encode() for number, name in enumerate(self.classes)}
        for key, size, files in inside:
            number = numbers[str(key).partition("/")[0]]
            if any(file[0].lower() == "cls" for file in files):
                raise DuplicateField("there is a file for the field cls, too.", url=self.name, key=key)
            yield key, size + len(number), (*files, ("cls", number, len(number), None))

    def _folders(self, items: list[Item]) -> list[str]:
        found = {str(key).partition("/")[0] for key, _, _ in items}
        if is_local(self.name):  # those without an image count, too: numbers must not depend on that
            with os.scandir(local_path(self.name)) as entries:
                found |= {entry.name for entry in entries if entry.is_dir() and entry.name[0] != "."}
        return sorted(found)

    def opened(self, wheres: Sequence[Where], seen: Seen) -> AbstractContextManager[Load]:
        return loading(self.storage, seen)

    def has(self, where: Where) -> set[str] | None:
        return {file[0].lower() for file in where}
