"""A tree of files: those that share a path up to the first dot of their names form a sample."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import itemgetter
from sys import intern

from tarmac.errors import AccessDenied, NotFound, TransferError, UrlError
from tarmac.limits import DEFAULT_LIMITS
from tarmac.samples.naming import first_dot
from tarmac.storage import StorageOptions, is_local, scheme_of
from tarmac.storage.local import local_path
from tarmac.storage.schemes import LISTABLE
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.pack.sources.files import loading, look_at
from tarmac.tools.pack.sources.source import UNSEEN, File, Item, Load, Seen, Skipped, Source, Where

__all__ = ["Directory", "HIDDEN", "NO_FIELD"]

HIDDEN, NO_FIELD, SPECIAL = "hidden", "without an extension", "not plain files"
LOOP, HIDDEN_FOLDER = "links that lead in a circle", "hidden folders"


@dataclass
class Directory(Source):
    """A directory, or a prefix of a bucket; keys are paths relative to it."""

    name: str
    storage: StorageOptions = DEFAULT_STORAGE
    sized: bool = False
    """Whether sizes are needed when planning: looking at every file takes its time."""
    kind = "dir"

    def items(self, skipped: Skipped) -> Iterator[Item]:
        found = self._local(skipped) if is_local(self.name) else self._remote(skipped)
        found.sort(key=itemgetter(0))
        return iter(found)

    def opened(self, wheres: Sequence[Where], seen: Seen) -> AbstractContextManager[Load]:
        return loading(self.storage, seen)

    def has(self, where: Where) -> set[str] | None:
        return {file[0].lower() for file in where}

    def _local(self, skipped: Skipped) -> list[Item]:
        root = local_path(self.name).rstrip("/") or "/"
        waiting = [(root, "", False)]
        items: list[Item] = []
        while waiting:
            path, prefix, behind_link = waiting.pop()
            for folder, linked in _list_folder(path, prefix, self.sized, items, skipped):
                linked = linked or behind_link
                if linked and _identity(folder) in _chain(
                    path, root
                ):  # only a link leads back to where it is
                    skipped.add(LOOP, folder)
                else:
                    waiting.append((folder, f"{prefix}{os.path.basename(folder)}/", linked))
        return items

    def _remote(self, skipped: Skipped) -> list[Item]:
        if scheme_of(self.name) not in LISTABLE:
            raise UrlError(
                "what is there cannot be listed.", url=self.name, hint="a recipe or a table of URLs."
            )
        from tarmac.storage.objects import list_infos

        base = f"{self.name.rstrip('/')}/"
        samples: dict[str, list[File]] = {}
        for url, info in list_infos(base, DEFAULT_LIMITS.shards, self.storage):
            name = url.removeprefix(base)
            folders, _, basename = name.rpartition("/")
            halves = first_dot(name)
            if basename.startswith(".") or f"/{folders}".find("/.") >= 0:
                skipped.add(HIDDEN, name)
            elif halves is None:
                skipped.add(NO_FIELD, name)
            else:
                samples.setdefault(halves[0], []).append((halves[1], url, info.size, info.version))
        return [(key, sum(file[2] for file in files), tuple(files)) for key, files in samples.items()]


def _list_folder(
    path: str, prefix: str, sized: bool, items: list[Item], skipped: Skipped
) -> Iterator[tuple[str, bool]]:
    """Add the samples of one folder, and yield the folders in it, and whether each is a link."""
    samples: dict[str, list[File]] = {}
    folders: list[tuple[str, bool]] = []
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
                if dot <= 0 or dot == len(name) - 1:
                    skipped.add(NO_FIELD if dot else HIDDEN, prefix + name)
                    continue
                # Of a link that leads nowhere, reading it will say what is wrong, and of which sample.
                if not (entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))):
                    skipped.add(SPECIAL, prefix + name)
                    continue
                stem, field, place = name[:dot], intern(name[dot + 1 :]), entry.path
                size, mark = look_at(place) if sized else (-1, UNSEEN)
                file: File = (field, place, size, mark)
                if stem in samples:
                    samples[stem].append(file)
                else:
                    samples[stem] = [file]
    except PermissionError as error:
        raise AccessDenied("this folder may not be listed.", url=path) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound("this folder is not there.", url=path) from error
    except OSError as error:
        raise TransferError(f"this folder cannot be listed: {error.strerror}.", url=path) from error
    for stem, files in samples.items():
        if len(files) > 1:
            files.sort()
        size = sum(file[2] for file in files) if sized else 0
        items.append((prefix + stem, size, tuple(files)))
    return iter(folders)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _chain(path: str, root: str) -> list[tuple[int, int] | None]:
    """The folders from the root down to this one."""
    chain = [_identity(path)]
    while len(path) > len(root):
        path = os.path.dirname(path)
        chain.append(_identity(path))
    return chain
