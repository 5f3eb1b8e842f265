"""Everything tarmac raises, as one tree.

    TarmacError
    ├─ UrlError        UnsupportedScheme · UnsafeUrl · NotFound · AccessDenied · TooManyShards · BadSetting
    ├─ TransferError   ConnectFailed · Stalled · ShortRead · ObjectChanged · CommandFailed
    ├─ ArchiveError    NotATar · BadChecksum · BadHeader · Truncated · TrailingData · UnsupportedMember
    │                  LimitExceeded · CompressionDamaged
    ├─ SampleError     BadName · DuplicateField · SplitSample · MissingField · MismatchedBatch
    │                  NoSamples · MapFailed (TimedOut)
    ├─ CodecError      EncodeFailed · DecodeFailed (Bomb) · NoCodec · UnsafeCodec
    ├─ WriteError      CommitFailed · DiskFull
    ├─ IndexProblem    BadCondition · IndexMissing · IndexStale · IndexDamaged · BadManifest · DigestMismatch
    ├─ LoaderError     WorkerDied · WorkerFailed · TooManyBadSamples · RanksDisagree
    ├─ JobError        JobBusy · JobMismatch
    └─ StateError      StateMismatch · NotPicklable · NotResumable

A message says where (URL, byte offset, member or sample key), what was expected and found, and what to try.
Branches also inherit from the built-in exception that callers would reach for (`FileNotFoundError`,
`OSError`, `ValueError`). Secrets inside URLs never reach a message; control characters are shown as
numbers. Warnings, under `TarmacWarning` (warned.py): `LoneZeroBlock`, `TornTail`, `CacheDisabled`,
`SecretsWritten`, `UnclosedWriter`.
"""

from __future__ import annotations

from typing import Any

from tarmac.showing import redact, shown_url, visible
from tarmac.warned import (
    CacheDisabled,
    LoneZeroBlock,
    SecretsWritten,
    TarmacWarning,
    TornTail,
    UnclosedWriter,
)

# fmt: off
__all__ = [  # in few lines, so that the tree below fits into one file
    "AccessDenied", "ArchiveError", "BadChecksum", "BadCondition", "BadHeader", "BadManifest", "BadName",
    "BadSetting", "Bomb", "CacheDisabled", "CodecError", "CommandFailed", "CommitFailed",
    "CompressionDamaged",
    "ConnectFailed", "DecodeFailed", "DigestMismatch", "DiskFull", "DuplicateField", "EncodeFailed",
    "IndexDamaged", "IndexMissing", "IndexProblem", "IndexStale", "JobBusy", "JobError", "JobMismatch",
    "LimitExceeded", "LoaderError", "LoneZeroBlock", "MapFailed", "MismatchedBatch", "MissingField",
    "NoCodec", "NoSamples", "NotATar", "NotFound", "NotPicklable", "NotResumable", "ObjectChanged",
    "RanksDisagree", "redact", "SampleError", "SecretsWritten", "ShortRead", "SplitSample", "Stalled",
    "StateError", "StateMismatch", "TarmacError", "TarmacWarning", "TimedOut", "TooManyBadSamples",
    "TooManyShards", "TornTail", "TrailingData", "TransferError", "Truncated", "UnclosedWriter",
    "UnsafeCodec", "UnsafeUrl", "UnsupportedMember", "UnsupportedScheme", "UrlError", "WorkerDied",
    "WorkerFailed", "WriteError",
]
# fmt: on


class TarmacError(Exception):
    """Root of the tree; catch it to catch everything tarmac raises on purpose."""

    hint: str | None = None
    in_lines = False
    """Whether the message has line breaks of our own; those of data are shown as `\\n`."""

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
        self.what = what = redact(what, commands=False)
        self.url = None if url is None else shown_url(url)
        self.offset = offset
        self.member = member.decode("utf-8", "replace") if isinstance(member, bytes) else member
        self.key = key
        if hint is not None:
            self.hint = hint
        super().__init__(what)

    @property
    def place(self) -> str:
        """Where it happened: `s3://b/x.tar @ 0x00a1c000, member "000457.jpg"`."""
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
        """Add what only the caller knows, keep what is known already, and return the error."""
        if url is not None and self.url is None:
            self.url = shown_url(url)
        if key is not None and self.key is None:
            self.key = key
        return self

    def __str__(self) -> str:
        # Keys, names and URLs come from data: they must not act on the terminal or the log they end up in.
        text = f"{self.place}: {self.what}" if self.place else self.what
        return visible(f"{text} Try: {self.hint}" if self.hint else text, keep="\n" if self.in_lines else "")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel out of worker processes, so they must survive pickling with their place.
        return _rebuild, (type(self), self.what, dict(self.__dict__))


def _rebuild(kind: type[TarmacError], what: str, state: dict[str, Any]) -> TarmacError:
    error = kind(what)
    error.__dict__.update(state)
    return error


class UrlError(TarmacError, ValueError):
    """What the user wrote does not name shards that can be opened."""


class UnsupportedScheme(UrlError):
    """No reader or writer is registered for the scheme of the URL."""


class UnsafeUrl(UrlError):
    """The URL would run a command or leave its store, and nobody with the right to ask did."""


class NotFound(UrlError, FileNotFoundError):
    """The file, object or glob does not exist."""


class AccessDenied(UrlError, PermissionError):
    """The store refused the credentials, or the file permissions forbid it."""


class TooManyShards(UrlError):
    """A pattern stands for more shards than `Limits.shards` allows."""


class BadSetting(UrlError):
    """An environment variable holds what cannot be understood."""


class TransferError(TarmacError, OSError):
    """Bytes did not arrive as they are stored; trying again later may help."""


class ConnectFailed(TransferError):
    """The server could not be reached, or kept failing, for all retries."""


class Stalled(TransferError):
    """The server stopped sending for longer than the idle timeout."""


class ShortRead(TransferError):
    """Fewer bytes arrived than the server announced, and they could not be fetched again."""


class ObjectChanged(TransferError):
    """The object was replaced while it was being read."""


class CommandFailed(TransferError):
    """The command of a `pipe:` URL ended with a non-zero status."""


class ArchiveError(TarmacError, ValueError):
    """The bytes are not a well-formed tar archive; no sample of the damaged part was handed out."""


class NotATar(ArchiveError):
    """The data does not begin with a tar header."""


class BadChecksum(ArchiveError):
    """A member header does not add up to its checksum."""

    hint = "tarmac check SHARD; fetch or write the shard again."


class BadHeader(ArchiveError):
    """A header's checksum is right but its contents make no sense."""

    hint = "tarmac check SHARD; fetch or write the shard again."


class Truncated(ArchiveError):
    """The archive ends before its end mark: bytes are missing.

    `torn` is false when the end falls between two members, so that all members read are whole.
    """

    torn = True

    hint = (
        "fetch or write the shard again. What is whole in it: tarmac check SHARD --repair -o DIR/, "
        'or read it with tar=tarmac.TarOptions(end="lenient").'
    )


class TrailingData(ArchiveError):
    """Something other than zeros follows the end mark."""

    hint = (
        "for archives joined with cat, tarmac check SHARD --repair -o DIR/ makes one of them, "
        "or read them with tar=tarmac.TarOptions(concatenated=True)."
    )


class UnsupportedMember(ArchiveError):
    """A kind of member that cannot be read without guessing (sparse, multi-volume)."""

    hint = "extract and pack the files again as plain members."


class LimitExceeded(ArchiveError):
    """A size or ratio is beyond `Limits`; raise the limit if the data is trusted."""


class CompressionDamaged(ArchiveError):
    """The compressed stream around the archive is corrupt or cut."""

    hint = "fetch or write the shard again."


class SampleError(TarmacError, ValueError):
    """Members that do not form samples, or samples that cannot be written as members."""


class BadName(SampleError):
    """A key or field that would not read back as it was written."""


class DuplicateField(SampleError):
    """One sample holds the same field twice."""


class SplitSample(SampleError):
    """The files of one sample are not next to each other in the shard."""

    hint = "tarmac sort --by key puts them together again."


class MissingField(SampleError):
    """A sample lacks something it must have."""


class NoSamples(SampleError):
    """A pass over the data had no samples at all."""

    hint = "check the shards, use fewer workers, or WebDataset(…, empty_check=False)."


class MapFailed(SampleError):
    """The command or the function that was to change a sample did not do so."""


class TimedOut(MapFailed):
    """The command for a sample took too long, and was ended."""


class MismatchedBatch(SampleError):
    """Samples that differ in fields or shapes cannot form one batch."""


class CodecError(TarmacError, ValueError):
    """A field could not be turned into bytes, or bytes into a field; `field` names it where it is known."""

    field: str | None = None


class EncodeFailed(CodecError):
    """The value does not fit the encoding that its field name asks for."""


class DecodeFailed(CodecError):
    """The bytes of a field are not what its extension promises."""


class Bomb(DecodeFailed):
    """A field claims or grows to more than `Limits` allows; refused before the memory is taken."""


class NoCodec(CodecError):
    """No encoder or decoder belongs to the field name."""


class UnsafeCodec(CodecError):
    """The codec can execute code from data and was not asked for in code."""


class WriteError(TarmacError, OSError):
    """Nothing was published: the target is as it was before."""


class CommitFailed(WriteError):
    """The finished shard could not be put in place."""


class DiskFull(WriteError):
    """No space left for the shard."""

    hint = "free space and run again; nothing was published."


class IndexProblem(TarmacError, ValueError):
    """The index cannot answer, or does not belong to the shards; no sample was read by it."""


class BadCondition(IndexProblem):
    """A condition or a list of metadata that cannot be understood, or asks for what is not there."""

    in_lines = True


class IndexMissing(IndexProblem):
    """There is no index for a shard, and none was to be made."""

    hint = "tarmac index SHARDS -o manifest.json"


class IndexStale(IndexProblem):
    """The shard has changed since it was indexed."""

    hint = "tarmac index SHARDS -o manifest.json indexes again what has changed."


class IndexDamaged(IndexProblem):
    """The index of a shard is cut, corrupt, of another version, or of another shard."""

    hint = "remove it and run tarmac index again."


class BadManifest(IndexProblem):
    """The manifest is not one, or its version is not known here."""


class DigestMismatch(IndexProblem):
    """The bytes of a field are not those that were indexed."""

    hint = "fetch or write the shard again; tarmac check MANIFEST finds all such fields."


class LoaderError(TarmacError, RuntimeError):
    """A batch could not be made."""


class WorkerDied(LoaderError):
    """A worker process ended without saying why: killed, out of memory, or crashed."""

    hint = "look for the out-of-memory killer in the system log; use fewer processes, or threads."


class WorkerFailed(LoaderError):
    """A worker process did not do its work; what it raised could not be sent, or nothing was."""


class TooManyBadSamples(LoaderError):
    """More samples were damaged than the budget allows."""

    hint = "tarmac check MANIFEST --decode lists them; Loader(bad=n) allows n of them."


class RanksDisagree(LoaderError):
    """Ranks that split one dataset have other shards, seeds or epochs."""


class JobError(TarmacError, RuntimeError):
    """A job cannot be done as asked."""


class JobBusy(JobError):
    """Another process is doing the same job, or may write the same files."""


class JobMismatch(JobError):
    """What was begun is not what is asked for now."""

    hint = "other options need another output; --overwrite begins anew and replaces what is there."


class StateError(TarmacError, ValueError):
    """A saved state cannot be continued from."""


class StateMismatch(StateError):
    """The state belongs to another pipeline, another split, or another version."""


class NotPicklable(StateError, TypeError):
    """A stage cannot be sent to a worker process."""

    hint = "a function defined at the top of a module, with functools.partial for its parameters."


class NotResumable(StateError):
    """A pipeline has a stage that cannot return to a place."""
