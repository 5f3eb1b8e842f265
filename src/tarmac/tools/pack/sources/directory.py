"""A tree of files: those whose paths agree up to the first dot of the file name form a sample.

In an image folder, the number of the class, which is a folder, becomes a field of every sample in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from sys import intern

from tarmac.errors import AccessDenied, BadName, DuplicateField, NotFound, TransferError, UrlError
from tarmac.jobs.ledger import ledger_url
from tarmac.samples.naming import first_dot
from tarmac.storage import can_list, is_local, list_objects
from tarmac.storage.local import local_path
from tarmac.tools.pack.sources.files import FileSource, file_stat
from tarmac.tools.pack.sources.source import (
    UNKNOWN,
    File,
    Item,
    Skipped,
    SourceFormat,
    SourceOptions,
    register_source,
)

HIDDEN, NO_EXTENSION, SPECIAL = "hidden", "without an extension", "not plain files"
LOOP, HIDDEN_FOLDER = "links that form a loop", "hidden folders"
NO_CLASS = "outside of class folders"


@dataclass
class Directory(FileSource):
    """A directory, or a prefix of a bucket; keys are paths relative to it."""

    format = "dir"

    def items(self, skipped: Skipped) -> Iterator[Item]:
        items = self._local(skipped) if is_local(self.url) else self._remote(skipped)
        items.sort(key=itemgetter(0))
        if self.options.checks_names and not self._exported:
            for key, _, files in items:
                _check_names(self.url, str(key), [file[0] for file in files])
        return iter(items)

    @property
    def _exported(self) -> bool:
        """Whether `export` wrote the directory, so that the names are those of samples."""
        ledger = ledger_url(self.url.rstrip("/") or "/", "export")
        return is_local(self.url) and os.path.exists(local_path(ledger))

    def _local(self, skipped: Skipped) -> list[Item]:
        root = local_path(self.url).rstrip("/") or "/"
        pending = [(root, "", False)]
        items: list[Item] = []
        while pending:
            path, prefix, behind_link = pending.pop()
            for folder, linked in _list_folder(path, prefix, self.options, items, skipped):
                linked = linked or behind_link
                # Only a link can lead back to a folder that contains it.
                if linked and _identity(folder) in _ancestors(path, root):
                    skipped.add(LOOP, folder)
                else:
                    pending.append((folder, f"{prefix}{os.path.basename(folder)}/", linked))
        return items

    def _remote(self, skipped: Skipped) -> list[Item]:
        if not can_list(self.url):
            raise UrlError(
                "this location cannot be listed.", url=self.url, hint="a recipe or a table of URLs."
            )
        base = f"{self.url.rstrip('/')}/"
        samples: dict[str, list[File]] = {}
        for url, info in list_objects(base, self.options.storage):
            name = url.removeprefix(base)
            halves = self.options.split_name(name)
            if "/." in f"/{name}":
                skipped.add(HIDDEN, name)
            elif halves is None:
                skipped.add(NO_EXTENSION, name)
            else:
                samples.setdefault(halves[0], []).append((halves[1], url, info.size, info.version))
        return [(key, sum(file[2] for file in files), tuple(files)) for key, files in samples.items()]


@dataclass
class ImageFolder(Directory):
    """`cat/001.jpg` is a sample of the class `cat`, whose number is its position among the sorted names."""

    classes: list[str] = field(default_factory=list)
    format = "imagefolder"

    def items(self, skipped: Skipped) -> Iterator[Item]:
        inside: list[Item] = []
        for item in super().items(skipped):
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


def _list_folder(
    path: str, prefix: str, options: SourceOptions, items: list[Item], skipped: Skipped
) -> list[tuple[str, bool]]:
    """Add the samples of one folder; return its folders and whether each is a link."""
    samples: dict[str, list[File]] = {}
    folders: list[tuple[str, bool]] = []
    needs_sizes, rule = options.needs_sizes, options.split_name
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                dot = name.find(".")
                if entry.is_dir():
                    if dot == 0:
                        skipped.add(HIDDEN_FOLDER, prefix + name)
                    else:
                        folders.append((entry.path, entry.is_symlink()))
                    continue
                if rule is not first_dot and dot > 0:
                    dot = len(halves[0]) if (halves := rule(name)) else -1
                if dot <= 0 or dot == len(name) - 1:
                    skipped.add(NO_EXTENSION if dot else HIDDEN, prefix + name)
                    continue
                # A broken link is planned: reading it raises an error that names the sample.
                if not (entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))):
                    skipped.add(SPECIAL, prefix + name)
                    continue
                stem, field, location = name[:dot], intern(name[dot + 1 :]), entry.path
                size, version = file_stat(location) if needs_sizes else (-1, UNKNOWN)
                file: File = (field, location, size, version)
                if stem in samples:
                    samples[stem].append(file)
                else:
                    samples[stem] = [file]
    except PermissionError as error:
        raise AccessDenied("permission denied to list the folder.", url=path) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound("no such directory.", url=path) from error
    except OSError as error:
        raise TransferError(f"the folder cannot be listed: {error.strerror}.", url=path) from error
    for stem, files in samples.items():
        if len(files) > 1:
            files.sort()
        size = sum(file[2] for file in files) if needs_sizes else 0
        items.append((prefix + stem, size, tuple(files)))
    return folders


def _check_names(url: str, key: str, fields: list[str]) -> None:
    """Raise if dots that seem to belong to keys, as in `x.v1.0.png`, would become parts of fields."""
    numbered: dict[str, str] = {}
    for name in fields:
        middle, _, extension = name.rpartition(".")
        if middle and any(part.isdigit() for part in middle.split(".")):
            other = numbered.setdefault(extension.lower(), name)
            if other is not name:
                raise _joined(url, key, f"{key}.{other} and {key}.{name} would be one sample, {key!r}.")
        if " " in name:
            raise _joined(url, key, f"{key}.{name} would have the key {key!r}, and spaces in its field.")


def _joined(url: str, key: str, what: str) -> BadName:
    hint = "split_name=tarmac.last_dot, if keys contain dots; split_name=tarmac.first_dot, if they do not."
    return BadName(what, url=url, key=key, hint=hint)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _ancestors(path: str, root: str) -> list[tuple[int, int] | None]:
    """Return the identities of the folders from this one up to the root."""
    identities = [_identity(path)]
    while len(path) > len(root):
        path = os.path.dirname(path)
        identities.append(_identity(path))
    return identities


def _open(cls: type[Directory], url: str, options: SourceOptions) -> Directory:
    if is_local(url) and not os.path.isdir(local_path(url)):
        raise NotFound("no such directory.", url=url)
    return cls(url, options)


register_source(SourceFormat("dir", partial(_open, Directory)))
register_source(SourceFormat("imagefolder", partial(_open, ImageFolder)))
