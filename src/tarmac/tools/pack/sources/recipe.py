"""A recipe: lines that name the source of each member of each sample, as `tarp create` reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tarmac.errors import DuplicateField, UnsafeUrl, UsageError
from tarmac.storage import scheme_of
from tarmac.tools.localcopy import LocalCopy, ensure_local, resolve_name
from tarmac.tools.pack.sources.files import FileSource, locate_file
from tarmac.tools.pack.sources.source import File, Item, Skipped, SourceFormat, SourceOptions, register_source


@dataclass
class Recipe(FileSource):
    """Lines of `NAME SOURCE`; the source is a path, `file:path`, `text:the rest of the line` or `pipe:cmd`.

    Blank lines and those that begin with # are ignored. The lines of a sample need not be adjacent.
    """

    local: LocalCopy
    format = "recipe"

    def items(self, skipped: Skipped) -> Iterator[Item]:
        samples: dict[str, dict[str, File]] = {}
        with open(self.local.path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                text = line.rstrip(b"\r\n").lstrip()
                if not text or text.startswith(b"#"):
                    continue
                key, file = self._file(text.decode("utf-8", "surrogateescape"), number)
                fields = samples.setdefault(key, {})
                if file[0].lower() in fields:
                    what = f"line {number}: the sample already has a member {file[0]!r}."
                    raise DuplicateField(what, url=self.url, key=key)
                fields[file[0].lower()] = file
        for key, fields in samples.items():
            yield key, sum(max(file[2], 0) for file in fields.values()), tuple(fields.values())

    def _file(self, line: str, number: int) -> tuple[str, File]:
        name, *rest = line.split(None, 1)
        halves = self.options.split_name(name)
        if halves is None or not rest:
            raise UsageError(
                f"line {number}: expected KEY.FIELD SOURCE, got {line[:60]!r}.",
                url=self.url,
                hint="lines such as `a/1.jpg path/to.jpg`.",
            )
        key, field = halves
        source = rest[0]
        if source.startswith("text:"):
            data = source[5:].encode("utf-8", "surrogateescape")
            return key, (field, data, len(data), None)
        source = source.rstrip()
        if scheme_of(source) == "pipe":
            if not self.options.allow_exec:
                hint = "`allow_exec`, if you trust the recipe."
                raise UnsafeUrl(f"line {number} would run a command.", url=self.url, hint=hint)
            return key, (field, source, -1, None)
        if source == "-":
            raise UsageError(f"line {number}: standard input cannot be a member.", url=self.url)
        name = source.removeprefix("file:") if "://" not in source else source
        url = resolve_name(name, self.options.base, self.url)
        return key, locate_file(field, url, self.options.storage, self.options.needs_sizes)


def _open(url: str, options: SourceOptions) -> Recipe:
    return Recipe(url, options, ensure_local(url, options.directory, options.storage))


register_source(SourceFormat("recipe", _open, (".recipe",), lists_files=True))
