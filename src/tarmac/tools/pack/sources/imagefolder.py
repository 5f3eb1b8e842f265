"""A folder for each class: the number of the class becomes a field of every sample in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from tarmac.errors import DuplicateField, UrlError
from tarmac.storage import StorageOptions, is_local
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.pack.sources.directory import Directory, check_directory
from tarmac.tools.pack.sources.files import FileSource
from tarmac.tools.pack.sources.registry import SourceFormat, register_source
from tarmac.tools.pack.sources.source import Item, Skipped, SourceOptions

NO_CLASS = "outside of class folders"


@dataclass
class ImageFolder(FileSource):
    """`cat/001.jpg` is a sample of the class `cat`, whose number is its position among the sorted names."""

    url: str
    storage: StorageOptions = DEFAULT_STORAGE
    needs_sizes: bool = False
    classes: list[str] = field(default_factory=list)
    format = "imagefolder"

    def items(self, skipped: Skipped) -> Iterator[Item]:
        inside: list[Item] = []
        for item in Directory(self.url, self.storage, self.needs_sizes).items(skipped):
            if "/" in str(item[0]):
                inside.append(item)
            else:
                skipped.add(NO_CLASS, str(item[0]))
        self.classes = self._folders(inside)
        if not self.classes:
            hint = '`format` "dir" for files without classes.'
            raise UrlError("the directory has no class folders.", url=self.url, hint=hint)
        numbers = {name: str(number).encode() for number, name in enumerate(self.classes)}
        for key, size, files in inside:
            number = numbers[str(key).partition("/")[0]]
            if any(file[0].lower() == "cls" for file in files):
                raise DuplicateField("the sample also has a file for the field cls.", url=self.url, key=key)
            yield key, size + len(number), (*files, ("cls", number, len(number), None))

    def _folders(self, items: list[Item]) -> list[str]:
        names = {str(key).partition("/")[0] for key, _, _ in items}
        if is_local(self.url):  # empty folders count, too: the numbers must not depend on the images
            with os.scandir(local_path(self.url)) as entries:
                names |= {entry.name for entry in entries if entry.is_dir() and entry.name[0] != "."}
        return sorted(names)


def _open(url: str, options: SourceOptions) -> ImageFolder:
    check_directory(url)
    return ImageFolder(url, options.storage, options.needs_sizes)


register_source(SourceFormat("imagefolder", _open))
