"""A recipe: lines that say what each member of each sample is made of, as `tarp create` reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from tarmac.errors import DuplicateField, UnsafeUrl, UrlError
from tarmac.samples.naming import first_dot
from tarmac.storage import StorageOptions, scheme_of
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.pack.sources.files import file_at, loading
from tarmac.tools.pack.sources.near import Near, resolved
from tarmac.tools.pack.sources.source import File, Item, Load, Seen, Skipped, Source, Where

__all__ = ["Recipe"]


@dataclass
class Recipe(Source):
    """Lines of `NAME SOURCE`; the source is a path, `file:path`, `text:the rest of the line` or `pipe:cmd`.

    Blank lines and those that begin with # are passed over. Lines of a sample need not stand together.
    """

    name: str
    near: Near
    base: str = ""
    """What relative paths are relative to; else to the recipe."""
    allow_exec: bool = False
    timeout: float = 600.0
    """Seconds that a command may take."""
    sized: bool = False
    storage: StorageOptions = DEFAULT_STORAGE
    kind = "recipe"

    def items(self, skipped: Skipped) -> Iterator[Item]:
        samples: dict[str, dict[str, File]] = {}
        with open(self.near.path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                text = line.rstrip(b"\r\n").lstrip()
                if not text or text.startswith(b"#"):
                    continue
                key, file = self._file(text.decode("utf-8", "surrogateescape"), number)
                fields = samples.setdefault(key, {})
                if file[0].lower() in fields:
                    what = f"line {number}: the sample has a member {file[0]!r} already."
                    raise DuplicateField(what, url=self.name, key=key)
                fields[file[0].lower()] = file
        for key, fields in samples.items():
            yield key, sum(max(file[2], 0) for file in fields.values()), tuple(fields.values())

    def _file(self, line: str, number: int) -> tuple[str, File]:
        name, *rest = line.split(None, 1)
        halves = first_dot(name)
        if halves is None:
            raise self._wrong(number, f"{name!r} is no name of the form KEY.FIELD.")
        if not rest:
            raise self._wrong(number, f"{name!r} has no source.")
        key, field = halves
        source = rest[0]
        if source.startswith("text:"):
            data = source[5:].encode("utf-8", "surrogateescape")
            return key, (field, data, len(data), None)
        source = source.rstrip()
        if scheme_of(source) == "pipe":
            if not self.allow_exec:
                hint = "--allow-exec, if you trust the recipe."
                raise UnsafeUrl(f"line {number} would run a command.", url=self.name, hint=hint)
            return key, (field, source, -1, None)
        if source == "-":
            raise self._wrong(number, "standard input cannot be a member.")
        url = resolved(source.removeprefix("file:") if "://" not in source else source, self.base, self.name)
        return key, file_at(field, url, self.storage, self.sized)

    def _wrong(self, number: int, what: str) -> UrlError:
        return UrlError(
            f"line {number}: {what}", url=self.name, hint="lines of the form `a/1.jpg path/to.jpg`."
        )

    def opened(self, wheres: Sequence[Where], seen: Seen) -> AbstractContextManager[Load]:
        return loading(replace(self.storage, command_idle=self.timeout), seen)

    def fingerprint(self) -> str:
        return ""  # what the lines say is in what they stand for

    def has(self, where: Where) -> set[str] | None:
        return {file[0].lower() for file in where}
