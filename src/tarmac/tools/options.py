"""Declare the keyword arguments that verbs share.

Verbs take flat keyword arguments: `tarmac.copy("in-*.tar", "out-{i:06d}.tar", where="…", jobs=8)`. The typed
dictionaries declare each of them once, in groups; `bundle` collects a group into the object that acts on it
(`Select`, `Order`, `Output`, `Run`, `Access`), which has the defaults and checks the values.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar

from tarmac import environment
from tarmac.errors import TarmacError, UsageError
from tarmac.indexing.manifest import Inputs, Manifest, find_inputs
from tarmac.jobs.engines import Engine, make_engine
from tarmac.jobs.report import Report
from tarmac.jobs.share import SLURM, Share, parse_share, share_of_slurm
from tarmac.jobs.task import Outcome, Task
from tarmac.jobs.work import DEFAULT_POLICY, Policy
from tarmac.limits import Limits
from tarmac.runtime.budget import ErrorBudget
from tarmac.runtime.cores import usable_cores
from tarmac.samples.naming import Splitter, first_dot
from tarmac.samples.reader import SampleReader
from tarmac.storage import Cache, StorageOptions
from tarmac.storage.cache import as_cache
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards
from tarmac.tar import Repeated, TarOptions
from tarmac.tar.reader import DEFAULT_OPTIONS

if TYPE_CHECKING:
    from tarmac.exact.shardset import OpenOptions
    from tarmac.indexing.build import IndexOptions
    from tarmac.tools.output import Output

Slice = slice
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SelectArgs(TypedDict, total=False):
    """Choose samples and fields.

    They apply in this order: `slice_shard` to each shard; `keys`, `where` and `split` to each sample; `slice`
    to the remaining samples of all shards; `fields` and `drop_fields` to each sample.
    """

    fields: Sequence[str] | Mapping[str, str | Sequence[str]] | None
    """Fields to keep. A mapping renames: from the new name to the old one, or to alternatives."""
    drop_fields: Collection[str]
    """Fields to drop; all others are kept."""
    missing: Literal["error", "skip"]
    """What to do with a sample that lacks a field to keep."""
    where: str | None
    """A condition on index columns: `"jpg.width >= 512 and json.lang = 'en'"`."""
    keys: str | os.PathLike[str] | Collection[str] | None
    """The keys to keep, or the path or URL of a file that lists them, one per line."""
    slice: Slice | None
    """A slice of all samples, with a positive step."""
    slice_shard: Slice | None
    """A slice of the samples of each shard."""
    split: Mapping[str, float] | None
    """Shares by a hash of the key, which add up to 1: `{"train": 0.9, "val": 0.1}`."""
    only: str | None
    """The split to keep."""


class OrderArgs(TypedDict, total=False):
    """Reorder samples."""

    shuffle: bool
    seed: int
    buffer: int
    """Buffer size for shuffling inputs that cannot be indexed; others are shuffled completely."""
    interleave: int
    """Take one sample in turn from each of this many shards."""
    weights: Sequence[float]
    """Mix several sources: the relative frequency of each."""
    until: Literal["first", "all"]
    """Whether a mixture ends with its first or its last exhausted source."""


class WriteArgs(TypedDict, total=False):
    """Write shards."""

    max_samples: int | None
    """Maximum number of samples per shard."""
    max_bytes: int | None
    """Maximum payload bytes per shard."""
    rekey: str | None
    """Pattern for new keys, with `{i}` (sample number) and `{key}` (old key): `{i:09d}`."""
    compress: Literal["gz", "zst", "bz2", "xz"] | None
    """Compression; by default the extension of the output decides."""
    index: bool
    """Also write the index of each shard."""
    manifest: str | None
    """Also write a manifest of all shards to this path or URL, and their indexes."""
    post_cmd: str | None
    """Shell command to run after each finished shard, with `{path}`; it must succeed."""
    delete_after: bool
    """Delete each shard after `post_cmd`."""
    overwrite: bool
    """Start over and replace existing files."""


class RunArgs(TypedDict, total=False):
    """Run a job."""

    jobs: int | None
    """Number of worker processes; by default the number of cores."""
    engine: Engine | str | None
    """What runs the units of the job: `local` (the default, processes of this machine), `dask`, `ray`, `spark`, an
    address such as `dask://HOST:PORT`, `slurm` in a task of a Slurm job, or an engine of your own."""
    task: str | tuple[int, int] | None
    """Run as one of several tasks without a driver: "2/8" is the third of eight. Each takes a share, then the rest."""
    retries: int
    """How often a unit is run again after a lost connection, a timeout or a dead worker."""
    unit_timeout: float | None
    """Seconds after which a unit is interrupted."""
    max_failed_units: int
    """How many units may fail before no more are started."""
    device: str | None
    """Devices for the workers, in turn: `cuda:0,cuda:1`; by default, and with `auto`, the GPUs that are visible, or the
    CPU."""
    dry_run: bool
    """Only report what would be done."""
    progress: bool | None
    """Show a progress bar; by default on terminals and in notebooks."""


class ErrorArgs(TypedDict, total=False):
    """Handle bad samples."""

    on_error: Literal["abort", "skip"]
    """Stop at a bad sample, or skip and count it."""
    max_errors: int | None
    """Stop when more samples than this were bad."""
    retry: Literal["failed"] | None
    """Process the outputs of an earlier run again in which samples failed."""


class CheckpointArgs(TypedDict, total=False):
    """Save what a long unit has done, so that a killed one continues there."""

    checkpoint_interval: float | None
    """Seconds after which the samples of an unfinished shard are saved; None for never. The default is 60."""
    checkpoint_samples: int | None
    """Number of samples after which they are saved, too."""


class ReadArgs(TypedDict, total=False):
    """Read inputs."""

    storage: StorageOptions
    """Credentials, endpoints, timeouts and retries."""
    limits: Limits | None
    """Limits against hostile data; by default those of `tar`."""
    tar: TarOptions
    """Strictness of reading tar files."""
    split_name: Splitter
    """How a member name splits into key and field: `first_dot`, `last_dot`, or a function."""
    repeated: Repeated | None
    """Whether whole samples whose key occurs again in a shard are kept; by default an error, as `tar` says."""
    allow_exec: bool
    """Allow `pipe:` inputs, which run commands."""


class AccessArgs(ReadArgs, total=False):
    """Read inputs, through a cache if there is one."""

    cache: Cache | str | os.PathLike[str] | None
    """Cache for remote shards, or its directory."""


class RewriteArgs(SelectArgs, WriteArgs, RunArgs, ErrorArgs, AccessArgs, total=False):
    """The keyword arguments that `sort`, `map` and `join` share."""


class MapArgs(RewriteArgs, CheckpointArgs, total=False):
    """The shared keyword arguments of verbs with slow units."""


_SHARED = frozenset(MapArgs.__annotations__) | frozenset(OrderArgs.__annotations__)


@dataclass(frozen=True)
class Access:
    """How inputs are read."""

    storage: StorageOptions = DEFAULT_STORAGE
    limits: Limits | None = None
    tar: TarOptions = DEFAULT_OPTIONS
    split_name: Splitter = first_dot
    repeated: Repeated | None = None
    cache: Cache | None = None
    allow_exec: bool = True
    index_directory: str = ""
    """The directory for missing indexes, if the workers cannot read the cache directory of this user."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cache", as_cache(self.cache))
        object.__setattr__(self, "tar", self.tar.override(self.limits, self.repeated))

    def inputs(self, sources: Shards | Manifest | Inputs) -> Inputs:
        """Find the shards, with the entries of those that a manifest lists."""
        if isinstance(sources, Inputs):
            return sources
        if hasattr(sources, "fingerprint") and not isinstance(sources, Manifest):
            what = f"expected shards, a pattern or a manifest, got a {type(sources).__name__}."
            raise UsageError(
                what, field="sources", hint="pass its shards; `where`, `keys` and `slice` select samples."
            )
        return find_inputs(sources, self.storage, self.tar.limits, allow_exec=self.allow_exec)

    @property
    def indexing(self) -> IndexOptions:
        """Return how shards are read to index them."""
        from tarmac.indexing.build import IndexOptions

        return IndexOptions(
            split_name=self.split_name,
            tar=self.tar,
            storage=self.storage,
            cache=self.cache,
            directory=self.index_directory,
        )

    def shared(self, run: Run, output: Output) -> Access:
        """Return how a job reads that may run on other machines: missing indexes go beside the output."""
        home = run.shared_home(output)
        return self if home is None else replace(self, index_directory=f"{home}/index")

    def opening(self, **options: Any) -> OpenOptions:
        """Return how indexed shards are opened."""
        from tarmac.exact.shardset import OpenOptions

        # An index records its own naming rule; only a rule that the caller chose must agree with it.
        rule = None if self.split_name is first_dot else self.split_name
        return OpenOptions(cache=self.cache, storage=self.storage, tar=self.tar, split_name=rule, **options)

    def reader(self, urls: Sequence[str]) -> SampleReader:
        """Return a reader of raw samples."""
        return SampleReader(
            urls, tar=self.tar, split_name=self.split_name, storage=self.storage, cache=self.cache
        )


@dataclass(frozen=True)
class Run:
    """How a job runs, and what it does with bad samples."""

    jobs: int | None = None
    engine: Engine | str | None = None
    task: str | tuple[int, int] | None = None
    retries: int = DEFAULT_POLICY.retries
    unit_timeout: float | None = None
    max_failed_units: int = 0
    device: str | None = None
    dry_run: bool = False
    on_error: Literal["abort", "skip"] = "abort"
    max_errors: int | None = None
    retry: Literal["failed"] | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"expected a positive number, got {self.jobs}.", field="jobs")
        if self.max_errors is not None and self.max_errors < 0:
            raise UsageError(f"expected 0 or more, got {self.max_errors}.", field="max_errors")
        if self.on_error not in ("abort", "skip"):
            raise UsageError(f"expected 'abort' or 'skip', got {self.on_error!r}.", field="on_error")
        if self.retry not in (None, "failed"):
            raise UsageError(f"expected 'failed' or None, got {self.retry!r}.", field="retry")
        if self.task is not None and self.engine not in (None, "local"):
            raise UsageError(
                "tasks run units themselves, without an engine.", field="task", hint="`task` or `engine`."
            )
        _ = self.policy, self.share

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"engine": None}  # workers need no engine, which may not pickle

    @property
    def workers(self) -> int:
        """Return the number of worker processes."""
        return self.jobs or usable_cores()

    @property
    def policy(self) -> Policy:
        """What happens to units that fail."""
        return Policy(self.retries, self.unit_timeout, self.max_failed_units)

    @property
    def share(self) -> Share | None:
        """The share of this task, if there are several."""
        if self.engine == SLURM:
            return share_of_slurm(environment.environ_copy())
        if self.task is None or isinstance(self.task, str):
            return None if self.task is None else parse_share(self.task)
        return Share(*self.task)

    @property
    def distributed(self) -> bool:
        """Whether units may run on other machines, which do not have the files of this user."""
        return self.task is not None or not getattr(self.engine, "local", self.engine in (None, "local"))

    def shared_home(self, output: Output) -> str | None:
        """Return the directory beside the output for files that all workers read; None if they run here."""
        return output.home if self.distributed and not (self.dry_run or output.stream) else None

    def make_engine(self) -> Engine:
        """Return the engine that runs the units of the job, or of the share of this task."""
        return make_engine(None if self.share else self.engine, self.workers, self.device)

    def run_job(self, task: Task, ledger: str | None, *, overwrite: bool, storage: StorageOptions) -> Report:
        """Run a job."""
        from tarmac.jobs.run import run_job  # processes and threads, which only jobs need

        return run_job(
            task,
            self.make_engine(),
            ledger=ledger,
            share=self.share,
            policy=self.policy,
            overwrite=overwrite,
            max_errors=self.max_errors,
            retry_failed=self.retry == "failed",
            dry_run=self.dry_run,
            storage=storage,
            progress=self.progress,
        )

    def handle(self, error: TarmacError, outcome: Outcome) -> None:
        """Raise the error of a sample, or count it; too many of them are an error."""
        if self.on_error == "abort":
            raise error
        outcome.fail(str(error))
        ErrorBudget(self.max_errors).check(outcome.failed, error)


@dataclass(frozen=True)
class Checkpoints:
    """When the samples of an unfinished shard are saved."""

    checkpoint_interval: float | None = 60.0
    checkpoint_samples: int | None = None

    def __post_init__(self) -> None:
        for name in ("checkpoint_interval", "checkpoint_samples"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"expected a positive number, got {value}.", field=name)

    def __bool__(self) -> bool:
        return self.checkpoint_interval is not None or self.checkpoint_samples is not None

    def due(self, seconds: float, samples: int) -> bool:
        """Return whether to save, so long after the last time, and with this number of new samples."""
        interval, most = self.checkpoint_interval, self.checkpoint_samples
        return (interval is not None and seconds >= interval) or (most is not None and samples >= most)


def bundle(group: Callable[..., T], options: Mapping[str, Any]) -> T:
    """Create an object from the options that its class accepts."""
    return group(**{name: options[name] for name in inspect.signature(group).parameters if name in options})


def verb(arguments: type, *groups: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Show the keyword arguments of a verb in its signature, and reject unknown ones."""
    defaults = {
        each.name: each.default for group in groups for each in inspect.signature(group).parameters.values()
    }

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        shared = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name),
                annotation=hint.__forward_arg__,
            )
            for name, hint in arguments.__annotations__.items()
        ]
        known = {each.name for each in (*own, *shared)}

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs.keys() - known:
                import difflib

                # An argument of other verbs is not a misspelling.
                close = () if name in _SHARED else difflib.get_close_matches(name, known, 1)
                guess = f". Did you mean {close[0]!r}?" if close else ""
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{guess}")
            return function(*args, **kwargs)

        call.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
        return call

    return decorate
