"""Tokenize the samples of shards: texts, images through a model, or both in one sequence."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import xxhash

from tarmac.arguments import check_count
from tarmac.errors import UsageError
from tarmac.indexing.manifest import Manifest
from tarmac.jobs.report import Report
from tarmac.jobs.task import MAX_REASONS
from tarmac.storage import scheme_of
from tarmac.storage.urls import Shards
from tarmac.tokens.given import GivenMapper
from tarmac.tokens.mapper import TokenMapper, is_image
from tarmac.tokens.text import is_of_library
from tarmac.tools.map.functions import Function
from tarmac.tools.mappers.batches import MapBatches
from tarmac.tools.mappers.job import MapperJob, RecordOutput, add_counts, one_per_gpu, preparing_threads
from tarmac.tools.mappers.loading import fingerprint
from tarmac.tools.options import (
    Access,
    AccessArgs,
    CheckpointArgs,
    Checkpoints,
    ErrorArgs,
    Run,
    RunArgs,
    SelectArgs,
    bundle,
    verb,
)
from tarmac.tools.output import output_directory
from tarmac.tools.plan import can_index, plan
from tarmac.tools.rewrite import run_writing
from tarmac.tools.select import Select

RECORDS = "{i:09d}"
"""The keys of records in a part: numbers, since several of them may begin with the same sample."""
TEXTS, IMAGES = 1024, 64
"""Samples in a batch by default: without and with images."""
REASONS = 100_000
"""Failed samples of a shard that the ledger has, with their reasons; a report has the first of them."""
_OF_MODELS = {
    "vocab_size": "tokenizer",
    "add_tokens": "tokenizer",
    "image_vocab_size": "image_tokenizer",
    "image_token_shift": "image_tokenizer",
}
"""Arguments that apply to one of the tokenizers."""


class TokenizeArgs(SelectArgs, RunArgs, ErrorArgs, CheckpointArgs, AccessArgs, total=False):
    """The shared keyword arguments of `tokenize`."""


@verb(TokenizeArgs, Select, Run, Checkpoints, Access)
def tokenize(
    sources: Shards | Manifest,
    output: str | os.PathLike[str],
    *,
    text: str | None = None,
    tokenizer: Any = None,
    image: str | None = None,
    image_tokenizer: Any = None,
    resolution: int = 256,
    interleave: str | Sequence[str] = (),
    mapper: Any = None,
    block_size: int | None = None,
    vocab_size: int | None = None,
    image_vocab_size: int | None = None,
    image_token_shift: int = 0,
    pad_token: int | None = None,
    add_tokens: Sequence[str] = (),
    limit: int | None = None,
    batch_size: int | None = None,
    overwrite: bool = False,
    **options: Unpack[TokenizeArgs],
) -> Report:
    """Tokenize samples into the directory `output`: a part for each input shard, which `combine` puts together.

    `text` is the field of the text (`"txt;caption"` takes the first that a sample has), and `tokenizer` a file of the
    tokenizers library, `module:Class` or an object with `encode(text)`. `image` is the field of the image, and
    `image_tokenizer` `module:Class` or an object with `encode(pixels)` for a batch of uint8 arrays, of `resolution` x
    `resolution` pixels. With both, each has its own column. `interleave` names fields that become one sequence
    instead, in this order; a field of JSON lists texts and `{"image": FIELD}`. `mapper` takes the place of all these: a
    `Mapper`, or a function from a list of samples to their lists of tokens.

    At most `block_size` tokens of a sample are kept; how many were cut off is recorded. `vocab_size` and
    `image_vocab_size` are needed if the tokenizers do not tell them. They choose uint16 or uint32, and a larger token
    is an error. `image_token_shift` and `pad_token` are recorded, and applied when tokens are loaded.
    `add_tokens` adds special tokens to the tokenizer. `limit` takes the first samples. `batch_size` samples are
    tokenized together (default: 1,024, or 64 with images) and saved as one record.
    """
    if limit is not None:
        if options.get("slice") is not None:
            raise UsageError("`limit` and `slice` exclude each other.", field="limit")
        options["slice"] = slice(0, check_count("limit", limit, 1))
    work = TokenMapper(
        text=_field(text, "text"),
        tokenizer=_named(tokenizer),
        image=_field(image, "image"),
        image_tokenizer=_named(image_tokenizer),
        resolution=check_count("resolution", resolution, 1),
        interleave=tuple(name.strip() for name in _names(interleave, "interleave")),
        block_size=None if block_size is None else check_count("block_size", block_size, 1),
        vocab_size=None if vocab_size is None else check_count("vocab_size", vocab_size, 1),
        image_vocab_size=None
        if image_vocab_size is None
        else check_count("image_vocab_size", image_vocab_size, 1),
        image_token_shift=check_count("image_token_shift", image_token_shift, 0),
        pad_token=None if pad_token is None else check_count("pad_token", pad_token, 0),
        add_tokens=_names(add_tokens, "add_tokens"),
    )
    chosen = work if mapper is None else _given(mapper, work)
    if mapper is None:
        _check(work)
    _ = chosen.outputs  # raises now what every worker would raise
    chosen.sources = _fingerprints(work) if mapper is None else {"mapper": fingerprint(mapper)}
    access, run, select = bundle(Access, options), bundle(Run, options), bundle(Select, options)
    run = one_per_gpu(run) if chosen.uses_device else run
    target = RecordOutput(
        _directory(output, select), overwrite=overwrite, rekey=RECORDS, storage=access.storage
    )
    access = access.shared(run, target)
    size = IMAGES if work.image_tokenizer is not None else TEXTS
    size = size if batch_size is None else check_count("batch_size", batch_size, 1)
    inputs = access.inputs(sources)
    _check_streams(inputs.urls, None if select.slice is None else "slice" if limit is None else "limit")
    planned = plan(
        [inputs],
        select,
        target,
        access,
        reads=_fields(work) or None,
        stream_remote=False,
        progress=run.progress,
        processes=run.workers,
    )
    parts = [shard.name for name, each in planned.sources.items() for shard in each.shards(target, name)]
    _check_names(parts)
    threads = preparing_threads(run, len(parts), gpu=chosen.uses_device)
    ahead = size if chosen.uses_device else 0  # the next batch, while the model runs
    change = MapBatches(Function(chosen), run, size, threads, ahead, reasons=REASONS)
    facts = _recorded(chosen.info) | {"batch_size": size, "select": select.options()} | _settings(work)
    task = MapperJob(
        "tokenize",
        planned.sources,
        target,
        change,
        facts,
        (),
        bundle(Checkpoints, options),
        run.retry == "failed",
    )
    report = run_writing(task, run, "tokenize")
    if not run.dry_run:
        planned.add_to(report)
        add_counts(report, report.outcomes)
        report.errors = [reason for outcome in report.outcomes for reason in outcome.errors[:MAX_REASONS]]
    return report


def _directory(output: str | os.PathLike[str], select: Select) -> str:
    """Return the directory of the parts; raise if it is not one directory, which `combine` could not read."""
    if select.shares and not select.only:
        what = "the parts of each split need a directory of their own."
        raise UsageError(what, field="split", hint="`only`: one split after the other, each with its output.")
    name = output_directory(output)
    if "{" in name:
        fixed = os.path.dirname(name.partition("{")[0]) or "tokens"
        what = "expected a directory, got a pattern."
        raise UsageError(
            what, field="output", url=name, hint=f"{fixed}/, where each part has the name of its shard."
        )
    return name


def _check_streams(urls: Sequence[str], counting: str | None) -> None:
    """Raise if a part has no name, or if the argument `counting` counts samples of shards that cannot be indexed."""
    if any(scheme_of(url) == "-" for url in urls):
        raise UsageError("standard input has no name, which its part would have.", hint="the file itself.")
    if counting and not can_index(urls):
        what = "the samples of commands and compressed shards cannot be counted in advance."
        raise UsageError(what, field=counting, hint="plain shards.")


def _check_names(parts: Sequence[str]) -> None:
    """Raise if two shards have the same name."""
    repeated = [name for name, count in Counter(parts).items() if count > 1]
    if repeated:
        what = "two shards would have a part of this name."
        hint = "an output for the shards of each directory; tarmac.Mix reads several together."
        raise UsageError(what, url=repeated[0], hint=hint)


def _given(mapper: Any, work: TokenMapper) -> GivenMapper:
    """Return the mapper of the user; raise if it is combined with what it replaces."""
    names = ("text", "tokenizer", "image", "image_tokenizer", "interleave", "block_size", "image_vocab_size")
    for name in (*names, "add_tokens"):
        if getattr(work, name):
            raise UsageError(f"`mapper` and `{name}` exclude each other.", field="mapper")
    return GivenMapper(_named(mapper), work.vocab_size, work.image_token_shift, work.pad_token)


def _named(tokenizer: Any) -> Any:
    """Return the absolute path of a file: workers may run in another directory. A directory has a tokenizer.json."""
    if not isinstance(tokenizer, str | os.PathLike):
        return tokenizer
    name = os.fspath(tokenizer)
    within = os.path.join(name, "tokenizer.json")
    if os.path.isfile(within):  # the directory of a model
        name = within
    if ".py:" in name or os.path.isfile(name):
        return os.path.abspath(name)
    return name


def _check(mapper: TokenMapper) -> None:
    fields = [name for name in (mapper.text, mapper.image) if name]
    if mapper.interleave and fields:
        raise UsageError("`interleave` names all fields itself.", field="interleave")
    if not mapper.interleave and not fields:
        raise UsageError("expected `text`, `image` or `interleave`.")
    for name, model in (("text", "tokenizer"), ("image", "image_tokenizer")):
        given = getattr(mapper, model) is not None
        if getattr(mapper, name) and not given:
            raise UsageError(f"`{name}` needs `{model}`.", field=model)
        if given and not getattr(mapper, name) and not mapper.interleave:
            raise UsageError(f"`{model}` needs `{name}`.", field=name)
    for name, model in _OF_MODELS.items():
        if getattr(mapper, name) and getattr(mapper, model) is None:
            raise UsageError(f"`{name}` needs `{model}`.", field=name)
    if mapper.interleave:
        _check_sequence(mapper)


def _check_sequence(mapper: TokenMapper) -> None:
    if mapper.tokenizer is None and mapper.image_tokenizer is None:
        raise UsageError("`interleave` needs `tokenizer`, `image_tokenizer` or both.", field="tokenizer")
    for name in mapper.interleave:
        if not name:
            raise UsageError(
                f"expected names of fields, got {','.join(mapper.interleave)!r}.", field="interleave"
            )
        needed = "image_tokenizer" if is_image(name) else "tokenizer"
        if not name.endswith("json") and getattr(mapper, needed) is None:
            raise UsageError(f"the field {name!r} needs `{needed}`.", field=needed)


def _fields(mapper: TokenMapper) -> list[str]:
    return [name for names in (mapper.text, mapper.image) if names for name in names.split(";")]


def _fingerprints(mapper: TokenMapper) -> dict[str, str]:
    """Return the fields, and for each tokenizer a hash of its file, or its name, its source and `version`."""
    facts = {name: value for name in ("text", "image") if (value := getattr(mapper, name))}
    for name in ("tokenizer", "image_tokenizer"):
        source = getattr(mapper, name)
        if isinstance(source, str) and ":" not in os.path.basename(source) and os.path.isfile(source):
            with open(source, "rb") as file:
                facts[name] = xxhash.xxh3_128_hexdigest(file.read())
        elif is_of_library(source):
            facts[name] = xxhash.xxh3_128_hexdigest(source.to_str().encode())
        elif source is not None:
            facts[name] = fingerprint(source)
    return facts


def _recorded(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata as facts of a job, so that a message names the one that differs."""
    facts = {name: value for name, value in info.items() if value and name not in ("kind", "sources")}
    return facts | dict(info.get("sources", {}))


def _settings(mapper: TokenMapper) -> dict[str, Any]:
    """Return what else the tokens depend on."""
    settings: dict[str, Any] = {
        "resolution": mapper.resolution if mapper.image_tokenizer is not None else None
    }
    settings |= {"interleave": list(mapper.interleave), "add_tokens": list(mapper.add_tokens)}
    return {name: value for name, value in settings.items() if value}


def _field(name: Any, field: str) -> str | None:
    if name is not None and not isinstance(name, str):
        raise UsageError(f"expected the name of a field, got {name!r}.", field=field)
    return name


def _names(given: Any, field: str) -> tuple[str, ...]:
    """Return the names in a list, or in a text that divides them by commas."""
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"expected a list of names, got {given!r}.", field=field)
    return () if given == "" else tuple(names)
