"""Write shards: what the Write arguments mean, for every verb."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tarmac.display import display_url, identity
from tarmac.errors import CommitFailed, HookFailed, NotFound, UrlError, UsageError
from tarmac.indexing.manifest import Manifest, Shard, existing_shards, write_manifest
from tarmac.indexing.sidecar import open_sidecar, sidecar_url
from tarmac.jobs.claims import Names
from tarmac.jobs.outputs import UNKNOWN_SIZE, existing_sizes
from tarmac.jobs.task import Outcome
from tarmac.samples.grouping import Sample
from tarmac.samples.writer import TarWriter
from tarmac.storage import StorageOptions, WriteOptions, is_local, scheme_of, stat
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE, DEFAULT_WRITE
from tarmac.tar.compression import FORMATS, format_of_name

__all__ = ["fields_of", "make_directory", "Output", "same_name", "Sources", "write_shard"]

_REPLACE = WriteOptions(overwrite=True)
_PERCENT = re.compile(r"%(?:0\d+)?d(?![0-9a-fA-F])")
"""`%06d` is a number, too; `%20` and `%d0` are characters of a URL."""
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

    @property
    def stream(self) -> bool:
        """Whether all goes to standard output or one command, as one shard."""
        return scheme_of(self.pattern) in ("-", "pipe") and "{" not in self.pattern

    @property
    def by_shard(self) -> bool:
        """Whether each shard that comes in makes one of the same name."""
        return "{name" in self._whole_pattern

    @property
    def numbered(self) -> bool:
        """Whether there may be several shards, counted by `{i}`."""
        return "{i" in self.pattern or self._by_percent

    @property
    def _by_percent(self) -> bool:
        return "{" not in self.pattern and bool(_PERCENT.search(self.pattern))

    @property
    def _whole_pattern(self) -> str:
        return f"{self.pattern}{{name}}.tar" if self.pattern.endswith("/") else self.pattern

    def name(self, number: int, source: str = "", split: str = "") -> str:
        """Return the name of a shard."""
        pattern = self._whole_pattern
        try:
            if self._by_percent:
                return _PERCENT.sub(lambda found: found[0] % number, pattern)
            return pattern.format(number, i=number, name=source, split=split)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            hint = "{i:06d}, {name} and {split} are the placeholders."
            raise UsageError(f"invalid output pattern ({error!r}).", url=pattern, hint=hint) from None

    def key(self, key: str, number: int) -> str:
        """The key of a sample, by number among all that are written."""
        try:
            return self.rekey.format(number, i=number, key=key) if self.rekey else key
        except (KeyError, IndexError, ValueError) as error:
            raise UsageError(
                f"invalid pattern ({error!r}).", field="rekey", hint="{i:09d} or a-{key}."
            ) from None

    @property
    def renumbers(self) -> bool:
        """Whether new keys say nothing of the old ones, so that they must be counted through."""
        return bool(self.rekey) and self.key("a", 0) == self.key("b", 0)

    def is_full(self, samples: int, size: int, coming: int) -> bool:
        """Whether a shard with so much in it is full before the next sample; one sample always fits."""
        if samples == 0:
            return False
        too_large = self.max_bytes is not None and size + coming > self.max_bytes
        return samples == self.max_samples or too_large

    def options(self) -> dict[str, Any]:
        """What the result depends on, for a ledger."""
        names = ("max_samples", "max_bytes", "rekey", "compress", "index")
        found = {name: getattr(self, name) for name in names if getattr(self, name)}
        found |= {"then": identity(f"pipe:{self.post_cmd}").removeprefix("pipe:")} if self.post_cmd else {}
        found |= {"manifest": identity(self.manifest)} if self.manifest else {}
        return {"pattern": identity(self.pattern)} | found

    def check_new(self, names: Iterable[str]) -> None:
        """Refuse to replace what is there already and was not made by this job, unless told to."""
        if self.overwrite:
            return
        for name, size in existing_sizes(names, self.storage).items():
            if size != UNKNOWN_SIZE:
                raise _in_the_way(name)

    def names(self, shards: Iterable[str]) -> Iterator[str]:
        """What is written with these shards."""
        yield from shards
        if self.manifest:
            yield self.manifest

    def taken(self) -> list[str]:
        """The files there that have names which this may make, where those are counted."""
        if not is_local(self.pattern) or self.by_shard or "{split" in self.pattern:
            return []
        pieces = self.pieces(local_path(self.pattern))
        pattern = re.compile(r"(\d+)".join(map(re.escape, pieces)))
        found = []
        for path in glob.glob("*".join(map(glob.escape, pieces))):
            match = pattern.fullmatch(path)
            if match and path == local_path(self.name(int(match[1]) if pattern.groups else 0)):
                found.append(path)
        return found

    def pieces(self, pattern: str) -> Names:
        """What comes before, between and after the numbers in the names that a pattern makes."""
        return tuple((_PERCENT if self._by_percent else _NUMBER).split(pattern))

    def run_post_cmd(self, outcome: Outcome) -> None:
        """Run the command that follows each shard, and delete the shard if requested."""
        for path in list(outcome.outputs) if self.post_cmd else ():
            assert self.post_cmd
            plain = local_path(path) if is_local(path) else path
            command = self.post_cmd.replace("{path}", shlex.quote(plain))
            # Standard input may be what the samples come from.
            quiet = subprocess.DEVNULL
            done = subprocess.run(command, shell=True, stdin=quiet, stdout=quiet)  # noqa: S602 - the user's own
            if done.returncode:
                shown = display_url(f"pipe:{self.post_cmd}").removeprefix("pipe:").strip()
                raise HookFailed(f"`post_cmd` exited with status {done.returncode}: {shown}", url=path)
            if self.delete_after and is_local(path):
                for file in (plain, *map(local_path, outcome.companions)):
                    with contextlib.suppress(FileNotFoundError):  # the command may have moved it
                        os.unlink(file)
                outcome.removed = True

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        """Write the manifest of all shards that were made; one of other shards is not replaced unasked."""
        if not self.manifest:
            return
        shards = []
        for name in (name for outcome in outcomes for name in outcome.outputs):
            facts = open_sidecar(sidecar_url(name), self.storage).facts
            shards.append(Shard(name, facts.samples, facts.size, None, facts.fingerprint))
        try:
            there = None if self.overwrite else existing_shards(self.manifest, self.storage)
        except UrlError:
            raise _in_the_way(self.manifest) from None
        if there is not None:
            before, now = ([(_place(one.url), one.fingerprint) for one in each] for each in (there, shards))
            if before == now:
                return
            if [place for place, _ in before] != [place for place, _ in now]:
                raise _in_the_way(self.manifest)
        title = os.path.basename(self.manifest).partition(".")[0]
        write_manifest(Manifest(shards, title), self.manifest, self.storage)


def _in_the_way(name: str) -> UsageError:
    hint = "another name, or `overwrite` to replace it."
    return UsageError("the file exists and was not written by this job.", url=name, hint=hint)


class Sources:
    """The shards that are read, none of which may be written while others are still to be made from it."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._places = {_place(url) for url in urls if scheme_of(url) not in ("-", "pipe")}

    def refuse(self, name: str) -> None:
        """Refuse a shard that would replace one of them."""
        if _place(name) in self._places:
            hint = "another output; move the shards afterwards."
            raise UsageError("the output would overwrite an input shard.", url=name, hint=hint)


def _place(url: str) -> str:
    return os.path.realpath(local_path(url)) if is_local(url) else url


def fields_of(sample: Sample) -> Sample:
    """The fields of a sample, without what its reader says about it."""
    return {name: value for name, value in sample.items() if name[:2] != "__"}


def same_name(pattern: str) -> UsageError:
    """Return the error for a pattern without a number that several shards would share."""
    return UsageError(
        "several shards would have the same name.", url=pattern, hint="x-{i:06d}.tar as the output."
    )


def write_shard(
    output: Output,
    name: str,
    samples: Iterable[Sample],
    *,
    first: int = 0,
    last: int | None = None,
    outcome: Outcome | None = None,
) -> Outcome:
    """Write samples to one shard; `first` is the number of the first sample among all that are written.

    `last` is that of the first one of the next shard, if others make that. Samples hold bytes, as they are
    read. No samples make no shard, or an empty one of a stream.
    """
    outcome = Outcome() if outcome is None else outcome
    if output.rekey:
        samples = _rekeyed(output, samples, first, last)
    coming = iter(samples)
    some = next(coming, None)
    if some is None:
        if output.stream:
            _writer(output, name).close()
        elif output.overwrite and is_local(name):
            for old in (name, sidecar_url(name)):  # of an earlier job, and no part of this one
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(local_path(old))
        return outcome
    if is_local(name) and not output.stream:
        make_directory(name)
    size, count = 0, 0
    with _writer(output, name) as writer:
        write = writer.write
        for sample in itertools.chain((some,), coming):
            size += write(sample)
            count += 1
    outcome.bytes += size
    outcome.written += count
    if not output.stream:
        outcome.outputs[name] = _size(name, output.storage)
    if writer.sidecar is not None:
        outcome.companions = {writer.sidecar: _size(writer.sidecar, output.storage)}
    return outcome


def _rekeyed(output: Output, samples: Iterable[Sample], first: int, last: int | None) -> Iterator[Sample]:
    for number, sample in enumerate(samples, first):
        key = output.key(sample["__key__"], number)
        if last is not None and number >= last and output.renumbers:
            what = "there are more output samples than input samples, so numbers would repeat."
            raise UsageError(
                what, field="rekey", hint="{key} in the pattern, or renumber with tarmac copy afterwards."
            )
        yield sample | {"__key__": key}


def make_directory(name: str) -> None:
    """Make the directory that a local file goes to."""
    try:
        os.makedirs(os.path.dirname(local_path(name)) or ".", exist_ok=True)
    except OSError as error:
        raise CommitFailed(f"its directory could not be made: {error.strerror}.", url=name) from error


def _writer(output: Output, name: str) -> TarWriter:
    return TarWriter(
        name,
        encoder=False,
        compress=output.compress or None,
        storage=output.storage,
        # Whatever some other program puts there meanwhile stays; to ask a store costs requests.
        write=_REPLACE if output.overwrite or not is_local(name) else DEFAULT_WRITE,
        index=output.index or bool(output.manifest),
        _watched=False,
    )


def _size(name: str, storage: StorageOptions) -> int:
    if not is_local(name):
        return -1  # what was uploaded whole need not be asked for again
    try:
        return stat(name, storage).size
    except NotFound:
        return -1
