"""Write shards: the Write arguments of every verb."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tarmac.display import display_url, identity
from tarmac.errors import CommitFailed, HookFailed, NotFound, UsageError
from tarmac.indexing.sidecar import sidecar_url
from tarmac.jobs.claims import Names
from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.outputs import UNKNOWN_SIZE, existing_sizes
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import Splitter, first_dot, is_reserved
from tarmac.samples.writer import TarWriter
from tarmac.storage import StorageOptions, WriteOptions, is_local, location, scheme_of, stat
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE, DEFAULT_WRITE, ReadableSink
from tarmac.tar.compression import FORMATS, format_of_name
from tarmac.tools.closing import close_job, closing_of, exists, real_path, stored_closing

_REPLACE = WriteOptions(overwrite=True)
_PERCENT = re.compile(r"%(?:0\d+)?d(?![0-9a-fA-F])")
"""`%06d` is a number, but `%20` and `%d0` are escaped characters of a URL."""
_NUMBER = re.compile(r"\{i[^}]*\}")
_ANY_NAME = "x" * 8


@dataclass(frozen=True)
class Output:
    """Where and how shards are written; `WriteArgs` documents the arguments.

    The pattern has `{i}` for the number of a shard, `{name}` for that of its input shard, and `{split}` for
    its split. A pattern that ends in a slash is a directory for `{name}.tar`.
    """

    pattern: str
    max_samples: int | None = None
    max_bytes: int | None = None
    rekey: str | None = None
    compress: str | None = None
    index: bool = False
    manifest: str | None = None
    post_cmd: str | None = None
    delete_after: bool = False
    overwrite: bool = False
    storage: StorageOptions = DEFAULT_STORAGE
    split_name: Splitter = first_dot

    def __post_init__(self) -> None:
        for name in ("max_samples", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"expected a positive number, got {value}.", field=name)
        if self.by_shard and (self.max_samples or self.max_bytes):
            raise UsageError(
                "`max_samples` and `max_bytes` need numbered shards; this pattern keeps the input shards.",
                url=self.pattern,
                hint="x-{i:06d}.tar as the output.",
            )
        if self.delete_after and not self.post_cmd:
            raise UsageError("`delete_after` needs `post_cmd`.")
        if self.delete_after and not is_local(self.pattern):
            raise UsageError("only local shards can be deleted.", field="delete_after", url=self.pattern)
        if self.rekey and self.key("a", 0) == self.key("b", 1):
            raise UsageError(
                "the pattern gives every sample the same key.", field="rekey", hint="{i:09d} or a-{key}."
            )
        if self.compress and self.compress not in FORMATS:
            names = ", ".join(sorted(FORMATS))
            raise UsageError(f"expected one of {names}, got {self.compress!r}.", field="compress")
        if (self.index or self.manifest) and (self.compress or format_of_name(self.pattern)):
            raise UsageError("compressed shards cannot be indexed.", url=self.pattern)
        if self.stream and (
            self.index or self.manifest or self.post_cmd or self.max_samples or self.max_bytes
        ):
            raise UsageError(
                "`index`, `manifest`, `post_cmd`, `max_samples` and `max_bytes` need shards, not a stream.",
                url=self.pattern,
            )
        if not self.stream:
            self.name(0, _ANY_NAME, _ANY_NAME)
            self._check_extension()

    def _check_extension(self) -> None:
        """Raise if a name is as likely to be meant as a directory: it has neither a slash at its end nor a dot."""
        path = local_path(self.pattern) if is_local(self.pattern) else ""
        name = os.path.basename(path)
        if name and os.path.isdir(path):
            hint = f"{self.pattern}/x-{{i:06d}}.tar, or {self.pattern}/ for shards that keep their names."
            raise UsageError("the target is a directory.", url=self.pattern, hint=hint)
        if not name or "." in name or "{" in path or self.numbered or _is_special(path):
            return
        what = "the output is neither a directory, DIR/, nor a name with an extension."
        raise UsageError(what, url=self.pattern, hint=f"{self.pattern}.tar or {self.pattern}/x-{{i:06d}}.tar")

    @property
    def stream(self) -> bool:
        """Return whether all samples go to standard output or to one command, as one shard."""
        return scheme_of(self.pattern) in ("-", "pipe") and "{" not in self.pattern

    @property
    def by_shard(self) -> bool:
        """Return whether each input shard becomes an output shard of the same name."""
        return "{name" in self._full_pattern

    @property
    def numbered(self) -> bool:
        """Return whether the pattern numbers shards."""
        return "{i" in self.pattern or self._by_percent

    @property
    def _by_percent(self) -> bool:
        return "{" not in self.pattern and bool(_PERCENT.search(self.pattern))

    @property
    def _full_pattern(self) -> str:
        return f"{self.pattern}{{name}}.tar" if self.pattern.endswith("/") else self.pattern

    def name(self, number: int, source: str = "", split: str = "") -> str:
        """Return the name of a shard."""
        pattern = self._full_pattern
        try:
            if self._by_percent:
                return _PERCENT.sub(lambda match: match[0] % number, pattern)
            return pattern.format(number, i=number, name=source, split=split)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            hint = "{i:06d}, {name} and {split} are the placeholders."
            raise UsageError(f"invalid output pattern ({error!r}).", url=pattern, hint=hint) from None

    def key(self, key: str, number: int) -> str:
        """Return the new key of a sample, by its number among all output samples."""
        try:
            return self.rekey.format(number, i=number, key=key) if self.rekey else key
        except (KeyError, IndexError, ValueError) as error:
            raise UsageError(
                f"invalid pattern ({error!r}).", field="rekey", hint="{i:09d} or a-{key}."
            ) from None

    @property
    def renumbers(self) -> bool:
        """Return whether new keys depend on the number alone, so that samples must be counted."""
        return bool(self.rekey) and self.key("a", 0) == self.key("b", 0)

    def is_full(self, samples: int, size: int, next_size: int) -> bool:
        """Return whether a shard has no room for the next sample; one sample always fits."""
        if samples == 0:
            return False
        too_large = self.max_bytes is not None and size + next_size > self.max_bytes
        return samples == self.max_samples or too_large

    def options(self) -> dict[str, Any]:
        """Return what the result depends on, for a ledger."""
        names = ("max_samples", "max_bytes", "rekey", "compress", "index")
        options = {name: getattr(self, name) for name in names if getattr(self, name)}
        if self.post_cmd:
            options["then"] = identity(f"pipe:{self.post_cmd}").removeprefix("pipe:")
        if self.manifest:
            options["manifest"] = identity(self.manifest)
        return {"pattern": identity(self.ledger_pattern)} | options

    @property
    def ledger_pattern(self) -> str:
        """Return the pattern as ledgers name it: those of the first version call a split a part."""
        return self.pattern.replace("{split", "{part")

    @property
    def home(self) -> str:
        """Return the absolute path or the URL of the directory beside the output for the files of jobs."""
        return location(ledger_url(self.ledger_pattern, "job").rpartition("/")[0])

    def check_new(self, names: Iterable[str]) -> None:
        """Raise if a file exists, unless `overwrite` allows replacing it."""
        if self.overwrite:
            return
        for name, size in existing_sizes(names, self.storage).items():
            if size != UNKNOWN_SIZE:
                raise exists(name)

    def names(self, shards: Iterable[str]) -> Iterator[str]:
        """Yield the names of all files that are written with these shards."""
        yield from shards
        if self.manifest:
            yield self.manifest

    def existing(self) -> list[str]:
        """Return the local files whose names a numbered pattern can produce."""
        if not is_local(self.pattern) or self.by_shard or "{split" in self.pattern:
            return []
        pieces = self.pieces(local_path(self.pattern))
        pattern = re.compile(r"(\d+)".join(map(re.escape, pieces)))
        paths = []
        for path in glob.glob("*".join(map(glob.escape, pieces))):
            match = pattern.fullmatch(path)
            if match and path == local_path(self.name(int(match[1]) if pattern.groups else 0)):
                paths.append(path)
        return paths

    def pieces(self, pattern: str) -> Names:
        """Return the text around the numbers of a pattern."""
        return tuple((_PERCENT if self._by_percent else _NUMBER).split(pattern))

    def run_post_cmd(self, outcome: Outcome) -> None:
        """Run the command that follows each shard, and delete the shard if requested."""
        if not self.post_cmd:
            return
        for path in list(outcome.outputs):
            plain = local_path(path) if is_local(path) else path
            command = self.post_cmd.replace("{path}", shlex.quote(plain))
            # Standard input may be the source of the samples.
            null = subprocess.DEVNULL
            done = subprocess.run(command, shell=True, stdin=null, stdout=null)  # noqa: S602 - the user's own
            if done.returncode:
                shown = display_url(f"pipe:{self.post_cmd}").removeprefix("pipe:").strip()
                raise HookFailed(f"`post_cmd` exited with status {done.returncode}: {shown}", url=path)
            if self.delete_after and is_local(path):
                for file in (plain, *map(local_path, outcome.companions)):
                    with contextlib.suppress(FileNotFoundError):  # the command may have moved it
                        os.unlink(file)
                outcome.removed = True

    def closing(self) -> dict[str, Any]:
        """Return what finishes a job that writes these shards, for `close_job`."""
        return closing_of(self.manifest, overwrite=self.overwrite)

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        """Write the manifest of all shards."""
        close_job(self.closing(), outcomes, self.storage)


class ShardTask(Task):
    """A job whose units are the shards of an output."""

    output: Output

    def begin(self, units: Sequence[Unit]) -> None:
        self.output.check_new(self.writes(units))

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        return self.output.names(unit.name for unit in units)

    def commit(self, unit: Unit, outcome: Outcome) -> None:
        self.output.run_post_cmd(outcome)

    def closing(self) -> dict[str, Any] | None:
        return stored_closing(self.ending(), self.output.pattern)

    def ending(self) -> dict[str, Any]:
        """Return what `finish` does, for `close_job`; it may contain secrets."""
        return self.output.closing()

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        close_job(self.ending(), outcomes, self.output.storage)


def _is_special(path: str) -> bool:
    """Return whether a path is a device or a named pipe."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


class Sources:
    """The input shards, which must not be overwritten while they are still being read."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._paths = {real_path(url) for url in urls if scheme_of(url) not in ("-", "pipe")}

    def check(self, name: str) -> None:
        """Raise if an output is one of the inputs."""
        if real_path(name) in self._paths:
            hint = "another output; move the shards afterwards."
            raise UsageError("the output would overwrite an input shard.", url=name, hint=hint)


def fields_of(sample: Sample) -> Sample:
    """Return the fields of a sample, without its key and URL."""
    return {name: value for name, value in sample.items() if name[:2] != "__" or not is_reserved(name)}


def same_name(pattern: str) -> UsageError:
    """Return the error for a pattern without a number that several shards would share."""
    directory, slash, name = pattern.rpartition("/")
    stem, dot, extension = name.partition(".")
    hint = f"{directory}{slash}{stem}-{{i:06d}}{dot}{extension} as the output."
    return UsageError("several outputs would have the same name.", url=pattern, hint=hint)


def check_splits(pattern: str, shares: Collection[str], only: str | None) -> None:
    """Raise unless the pattern names the splits that are written, or there is only one."""
    named = "{split" in pattern
    if named and not shares:
        hint = "`split`, or an output without {split}."
        raise UsageError("{split} in the output needs `split`.", url=pattern, hint=hint)
    if shares and not named and not only:
        hint = "{split}-{i:06d}.tar as the output, or `only` for one split."
        raise UsageError("`split` needs {split} in the output.", url=pattern, hint=hint)


def write_shard(
    output: Output,
    name: str,
    samples: Iterable[Sample],
    *,
    first: int = 0,
    last: int | None = None,
    outcome: Outcome | None = None,
    opened: Callable[[JobWriter], None] | None = None,
) -> Outcome:
    """Write samples to one shard.

    `first` is the number of the first sample among all output samples; `last` is that of the next shard, if it
    is fixed. Samples hold bytes. Without samples no shard is written; to a stream, an empty shard is. With
    `opened`, which gets the writer, the samples have their new keys already.
    """
    outcome = Outcome() if outcome is None else outcome
    if output.rekey and opened is None:
        samples = (rekeyed(output, sample, number, last) for number, sample in enumerate(samples, first))
    remaining = iter(samples)
    head = next(remaining, None)
    if head is None:
        if output.stream:
            _writer(output, name).close()
        elif output.overwrite and is_local(name):
            for stale in (name, sidecar_url(name)):  # of a previous job
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(local_path(stale))
        return outcome
    if is_local(name) and not output.stream:
        make_directory(name)
    size, count = 0, 0
    with _writer(output, name) as writer:
        if opened is not None:
            opened(writer)
        write = writer.write
        for sample in itertools.chain((head,), remaining):
            size += write(sample)
            count += 1
    outcome.bytes += size
    outcome.written += count
    if not output.stream:
        outcome.outputs[name] = _size(name, output.storage)
    if writer.sidecar is not None:
        outcome.companions = {writer.sidecar: _size(writer.sidecar, output.storage)}
    return outcome


def rekeyed(output: Output, sample: Sample, number: int, last: int | None) -> Sample:
    """Return a sample with its new key, by its number among all output samples; `last` is that of the next shard."""
    key = output.key(sample["__key__"], number)
    if last is not None and number >= last and output.renumbers:
        what = "there are more output samples than input samples, so numbers would repeat."
        raise UsageError(
            what, field="rekey", hint="{key} in the pattern, or renumber with tarmac copy afterwards."
        )
    return sample | {"__key__": key}


def directory_name(given: str | os.PathLike[str], field: str) -> str:
    """Return the name of a directory with a slash at its end; an empty name is not the root of the file system."""
    name = os.fspath(given)
    if not name:
        raise UsageError("expected a directory, got an empty name.", field=field)
    return f"{name.rstrip('/')}/"


def output_directory(given: str | os.PathLike[str]) -> str:
    """Return the name of the directory `output` with a slash at its end; raise if it is a file or a stream."""
    name = directory_name(given, "output")
    path = name.rstrip("/")
    if scheme_of(path) in ("-", "pipe"):
        raise UsageError("expected a directory, got a stream.", field="output", url=path)
    if is_local(path) and os.path.isfile(local_path(path)):
        raise UsageError("expected a directory, got a file.", field="output", url=path)
    return name


def make_directory(name: str) -> None:
    """Create the directory of a local file."""
    try:
        os.makedirs(os.path.dirname(local_path(name)) or ".", exist_ok=True)
    except OSError as error:
        raise CommitFailed(f"cannot create its directory: {error.strerror}.", url=name) from error


class JobWriter(TarWriter):
    """A writer that publishes nothing unless its job closes it."""

    _watched = False

    @property
    def readable(self) -> ReadableSink | None:
        """Return what can return the bytes of the shard before it is published, if that is possible."""
        plain = self._compressor is None and not self._closed
        return self._sink if plain and isinstance(self._sink, ReadableSink) else None


def _writer(output: Output, name: str) -> JobWriter:
    return JobWriter(
        name,
        encoder=False,
        compress=output.compress or None,
        storage=output.storage,
        # A file that another program writes meanwhile is not replaced; in stores, a check costs requests.
        write=_REPLACE if output.overwrite or not is_local(name) else DEFAULT_WRITE,
        index=output.index or bool(output.manifest),
        split_name=output.split_name,
    )


def _size(name: str, storage: StorageOptions) -> int:
    if not is_local(name):
        return UNKNOWN_SIZE  # a completed upload needs no request
    try:
        return stat(name, storage).size
    except NotFound:
        return UNKNOWN_SIZE
