"""Define every error and warning that tarmac raises, as one tree.

    TarmacError
    ├─ UsageError           BadSetting
    ├─ UrlError             UnsupportedScheme · UnsafeUrl · NotFound · AccessDenied · TooManyShards
    ├─ TransferError        ConnectFailed · Stalled · ShortRead · ObjectChanged · CommandFailed
    ├─ ArchiveError         NotATar · BadChecksum · BadHeader · Truncated · TrailingData · UnsupportedMember
    │                       LimitExceeded · CompressionDamaged
    ├─ SampleError          BadName · DuplicateField · SplitSample · RepeatedSample · MissingField · MismatchedBatch
    │                       NoSamples · TransformFailed (TimedOut)
    ├─ CodecError           EncodeFailed · NoCodec · DecodingError (DecodeFailed (DecompressionBomb) · UnsafeCodec)
    ├─ WriteError           CommitFailed · DiskFull
    ├─ IndexingError        BadCondition · IndexMissing · IndexStale · IndexDamaged · BadManifest
    │                       DigestMismatch
    ├─ LoaderError          WorkerDied · WorkerFailed · RanksDisagree
    ├─ JobError             JobBusy · JobMismatch · HookFailed · EngineError · UnitsFailed
    ├─ UnitTimedOut
    ├─ StateError           StateMismatch · NotResumable
    ├─ ErrorBudgetExceeded
    └─ NotPicklable

A message has a location (URL, byte offset, member or sample key), says what happened, and what to try.
Branches also inherit from the exception that callers would catch (`FileNotFoundError`, `KeyError`, `OSError`,
`ValueError`, `tarfile.ReadError`). Messages never contain secrets from URLs, and control characters are escaped.
Warnings derive from `TarmacWarning`: `SingleZeroBlock`, `TruncatedTail`, `PartialSamples`, `NoBatches`,
`CacheDisabled`, `CacheFull`, `CheckpointFailed`, `SecretsWritten`, `UnclosedWriter`.
"""

from __future__ import annotations

import tarfile
from typing import Any

from tarmac.display import display_url, redact, visible


class TarmacError(Exception):
    """Base class of every error that tarmac raises on purpose."""

    hint: str | None = None
    in_lines = False
    """Whether the message contains line breaks of its own; those in data are escaped."""

    def __init__(
        self,
        what: str,
        *,
        url: str | None = None,
        offset: int | None = None,
        member: str | bytes | None = None,
        key: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.what: str = redact(what, commands=False)
        self.url = None if url is None else display_url(url)
        self.offset = offset
        self.member: str | None = member.decode("utf-8", "replace") if isinstance(member, bytes) else member
        self.key = key
        if hint is not None:
            self.hint = hint
        super().__init__(self.what)

    @property
    def location(self) -> str:
        """Return where it happened: `s3://b/x.tar @ 0x00a1c000, member "000457.jpg"`."""
        where = self.url or ""
        if self.offset is not None:
            where = f"{where} @ {self.offset:#010x}".lstrip()
        parts = [where] if where else []
        if self.member is not None:
            parts.append(f'member "{self.member}"')
        if self.key is not None:
            parts.append(f'sample "{self.key}"')
        return ", ".join(parts)

    def at(self, *, url: str | None = None, key: str | None = None) -> TarmacError:
        """Fill in the URL and key unless they are set, and return the error."""
        if url is not None and self.url is None:
            self.url = display_url(url)
        if key is not None and self.key is None:
            self.key = key
        return self

    def __str__(self) -> str:
        # Keys, names and URLs come from data: they must not control a terminal or forge a log line.
        text = f"{self.location}: {self.what}" if self.location else self.what
        return visible(f"{text} Try: {self.hint}" if self.hint else text, keep="\n" if self.in_lines else "")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors are sent from worker processes, so they must survive pickling with their location.
        return _rebuild, (type(self), self.what, dict(self.__dict__))


def _rebuild(kind: type[TarmacError], what: str, state: dict[str, Any]) -> TarmacError:
    error = kind(what)
    error.__dict__.update(state)
    return error


class UsageError(TarmacError, ValueError):
    """An argument is invalid, or arguments contradict each other.

    `field` is the name of the argument. Messages and hints write the names of arguments in backticks: the
    command line shows them as its flags.
    """

    field: str | None = None

    def __init__(self, what: str, *, field: str | None = None, **location: Any) -> None:
        super().__init__(what, **location)
        self.field = field

    @property
    def location(self) -> str:
        return ", ".join(filter(None, (self.field and f"`{self.field}`", super().location)))


class BadSetting(UsageError):
    """An environment variable has an invalid value."""


class UrlError(TarmacError, ValueError):
    """A URL, path or pattern does not name shards that can be opened."""


class UnsupportedScheme(UrlError):
    """No reader or writer is registered for the scheme of the URL."""


class UnsafeUrl(UrlError):
    """The URL would run a command or escape its store, and secure mode or its origin forbids that."""


class NotFound(UrlError, FileNotFoundError):
    """The file, object or glob does not exist."""


class AccessDenied(UrlError, PermissionError):
    """The store rejected the credentials, or file permissions deny access."""


class TooManyShards(UrlError):
    """A pattern expands to more shards than `Limits.shards` allows."""


class TransferError(TarmacError, OSError):
    """Data could not be transferred; retrying later may help."""


class ConnectFailed(TransferError):
    """The server was unreachable or failed, on every retry."""


class Stalled(TransferError):
    """The server sent nothing for longer than the idle timeout."""


class ShortRead(TransferError):
    """Fewer bytes arrived than the server announced, and retries did not help."""


class ObjectChanged(TransferError):
    """The object was replaced while it was being read."""


class CommandFailed(TransferError):
    """The command of a `pipe:` URL ended with a non-zero status."""


class ArchiveError(TarmacError, ValueError, tarfile.ReadError):
    """The data is not a well-formed tar archive. No sample of the damaged part was returned."""


class NotATar(ArchiveError):
    """The data does not begin with a tar header."""


class BadChecksum(ArchiveError):
    """The checksum of a member header is wrong."""

    hint: str | None = "tarmac check SHARD; download or write the shard again."


class BadHeader(ArchiveError):
    """A header has a valid checksum and invalid contents."""

    hint: str | None = "tarmac check SHARD; download or write the shard again."


class Truncated(ArchiveError):
    """The archive ends before its end-of-archive marker: bytes are missing.

    `torn` is false when the archive ends between two members, so every member that was read is complete.
    """

    torn = True

    hint: str | None = (
        "download or write the shard again. To keep its complete samples: tarmac check SHARD --repair -o DIR/, "
        'or read it with tar=tarmac.TarOptions(end="lenient").'
    )


class TrailingData(ArchiveError):
    """Data other than zeros follows the end-of-archive marker."""

    hint: str | None = (
        "for archives joined with cat: tarmac copy SHARD -o NEW.tar --tar concatenated=true merges them, "
        "or read them with tar=tarmac.TarOptions(concatenated=True)."
    )


class UnsupportedMember(ArchiveError):
    """The archive has a member of an unsupported type (sparse, multi-volume)."""

    hint: str | None = "extract and pack the files again as plain members."


class LimitExceeded(ArchiveError):
    """A size or ratio exceeds `Limits`. Raise the limit if you trust the data."""


class CompressionDamaged(ArchiveError):
    """The compressed stream around the archive is corrupt or truncated."""

    hint: str | None = "download or write the shard again."


class SampleError(TarmacError, ValueError):
    """Members do not form samples, or samples cannot be written as members."""


class BadName(SampleError):
    """A key or field name would not read back as it was written."""


class DuplicateField(SampleError):
    """One sample holds the same field twice."""


class SplitSample(SampleError):
    """The members of one sample are not contiguous in the shard."""

    hint: str | None = "tarmac sort --by key makes the samples contiguous."


class RepeatedSample(SplitSample):
    """The key of a sample occurs again in the shard."""

    hint: str | None = (
        "`repeated` keep reads both; tarmac copy --repeated keep --rekey '{i:09d}' makes the keys unique."
    )


class MissingField(SampleError, KeyError):
    """A sample lacks a required field."""


class NoSamples(SampleError):
    """An epoch had no samples."""

    hint: str | None = "check the shards, use fewer workers, or pass empty_check=False to WebDataset."


class TransformFailed(SampleError):
    """A command or function failed on a sample."""


class TimedOut(TransformFailed):
    """The command for a sample exceeded its timeout and was terminated."""


class MismatchedBatch(SampleError):
    """Samples with different fields or shapes cannot form a batch."""


class CodecError(TarmacError, ValueError):
    """A field could not be encoded or decoded; `field` is its name, if known."""

    field: str | None = None


class EncodeFailed(CodecError):
    """A value cannot be encoded in the format that its field name selects."""


class DecodingError(CodecError):
    """A field was not decoded: its bytes are invalid, or its codec is unsafe.

    `k`, its name, and `sample` are the attributes of the webdataset library, which alone sets the sample.
    """

    def __init__(
        self,
        what: str = "the field was not decoded.",
        *,
        k: str | None = None,
        sample: Any = None,
        **location: Any,
    ) -> None:
        super().__init__(what, **location)
        self.sample: Any = sample
        self.field: str | None = k

    @property
    def k(self) -> str | None:
        """The name of the field."""
        return self.field


class DecodeFailed(DecodingError):
    """The bytes of a field are not valid data of the format that its name selects."""


class DecompressionBomb(DecodeFailed):
    """A field would decode to more than `Limits` allows; detected before memory is allocated."""


class NoCodec(CodecError):
    """No encoder or decoder is registered for the field name."""


class UnsafeCodec(DecodingError):
    """The codec can execute code from data and was not enabled explicitly."""


class WriteError(TarmacError, OSError):
    """A write failed. The target is unchanged."""


class CommitFailed(WriteError):
    """The finished shard could not be moved into place."""


class DiskFull(WriteError):
    """No space is left for the shard."""

    hint: str | None = "free space and run again; no part of this file was published."


class IndexingError(TarmacError, ValueError):
    """An index is missing, invalid or does not match its shards."""


class BadCondition(IndexingError):
    """A `where` condition or metadata specification is invalid, or names a missing column."""

    in_lines = True


class IndexMissing(IndexingError):
    """A shard has no index, and building one was not allowed."""

    hint: str | None = "tarmac index SHARDS -o manifest.json"


class IndexStale(IndexingError):
    """The shard has changed since it was indexed."""

    hint: str | None = "tarmac index SHARDS -o manifest.json rebuilds stale indexes."


class IndexDamaged(IndexingError):
    """The index of a shard is truncated, corrupt, of an unknown version, or belongs to another shard."""

    hint: str | None = "remove the index, SHARD.arrow, and run tarmac index SHARDS -o manifest.json."


class BadManifest(IndexingError):
    """The manifest is invalid or of an unknown version."""


class DigestMismatch(IndexingError):
    """The bytes of a field differ from those that were indexed."""

    hint: str | None = (
        "download or write the shard again; tarmac check SHARDS --digests --all-errors lists all such fields."
    )


class LoaderError(TarmacError, RuntimeError):
    """A batch could not be built."""


class WorkerDied(LoaderError):
    """A worker process died without an exception: killed, out of memory, or crashed."""

    hint: str | None = "check the system log for the out-of-memory killer; use fewer processes, or threads."


class WorkerFailed(LoaderError):
    """A worker process failed, and its exception could not be sent or it sent none."""


class RanksDisagree(LoaderError):
    """Ranks that share a dataset have different shards, seeds or epochs."""


class JobError(TarmacError, RuntimeError):
    """A job cannot run as requested."""


class JobBusy(JobError):
    """Another process is running the same job, or may write the same files."""


class JobMismatch(JobError):
    """The existing output belongs to a job with other inputs or options."""

    hint: str | None = "choose another output, or `overwrite` to start over and replace the existing files."


class HookFailed(JobError):
    """The command that runs after each shard failed."""


class EngineError(JobError):
    """A cluster cannot run the job: it is unreachable or lost, or its workers lack what the job needs."""


class UnitTimedOut(TarmacError, TimeoutError):
    """A unit of a job took longer than its `unit_timeout`."""


class UnitsFailed(JobError):
    """Units of a job failed, and others were completed."""

    hint: str | None = "run the same command again: it runs only the units that failed."


class StateError(TarmacError, ValueError):
    """A saved state cannot be restored."""


class StateMismatch(StateError):
    """The state belongs to another pipeline, split or version."""


class NotResumable(StateError):
    """A pipeline has a stage that cannot resume."""


class ErrorBudgetExceeded(TarmacError, RuntimeError):
    """More samples failed than the error budget allows."""


class NotPicklable(TarmacError, TypeError):
    """An object cannot be sent to a worker process."""

    hint: str | None = "use a function defined at module level, with functools.partial for its parameters."


class TarmacWarning(UserWarning):
    """Base class of tarmac's warnings."""


class SingleZeroBlock(TarmacWarning):
    """The archive ends with one zero block instead of two; all members were read."""


class TruncatedTail(TarmacWarning):
    """A lenient read stopped at damaged data; the warning says where, and what was skipped."""


class PartialSamples(TarmacWarning):
    """A handler ignored a non-contiguous sample of a stream, whose first part was already returned."""


class NoBatches(TarmacWarning):
    """An epoch has samples, but not enough for a batch, and partial batches are dropped."""


class CacheDisabled(TarmacWarning):
    """The cache directory is unusable, so shards are streamed."""


class CacheFull(TarmacWarning):
    """The shards in use fill the cache, so others are read from their store."""


class CheckpointFailed(TarmacWarning):
    """The samples of an unfinished shard could not be saved; the job continues without."""


class SecretsWritten(TarmacWarning):
    """A written file contains credentials: URLs with user info or a signature."""


class UnclosedWriter(TarmacWarning):
    """A writer was never closed; the warning says what happened to its data."""
