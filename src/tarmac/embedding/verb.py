"""Embed the samples of shards: a model turns images and texts into vectors."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, Unpack

from tarmac.arguments import check_count, check_text
from tarmac.embedding.embeddings import Embeddings
from tarmac.embedding.job import LOADING, WRITING, EmbedJob
from tarmac.embedding.layout import IMAGE, TEXT
from tarmac.embedding.mapper import EmbedMapper, TextMapper
from tarmac.embedding.models.contract import encodes
from tarmac.embedding.models.load import absolute, fingerprint, load_model, model_name
from tarmac.embedding.score import add_scores, load_score
from tarmac.errors import UsageError
from tarmac.indexing.manifest import Inputs, Manifest
from tarmac.jobs.report import Report
from tarmac.runtime.device import devices
from tarmac.storage import is_local
from tarmac.storage.schemes import scheme_of
from tarmac.storage.urls import Shards
from tarmac.tools.map.functions import Function
from tarmac.tools.mappers.batches import SECONDS, MapBatches
from tarmac.tools.mappers.clock import COMPUTING, PREPARING, READING
from tarmac.tools.mappers.job import RecordOutput, one_per_gpu, preparing_threads
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
from tarmac.tools.plan import plan
from tarmac.tools.rewrite import run_writing
from tarmac.tools.select import Select

RECORDS = "{i:09d}"
TEXTS, IMAGES = 64, 64
"""Samples in a batch by default: of texts alone, and with images."""
SORTED = 32
"""Batches of texts that are sorted by length together: of fewer, a twentieth of the time would go into padding."""
AHEAD = 2
"""Threads that prepare samples for a GPU, at least: with one, samples are prepared between calls of the model."""
_LIMITS = {
    LOADING: "loading the model",
    READING: "reading",
    PREPARING: "preparing",
    COMPUTING: "the model",
    WRITING: "writing",
}


class EmbedArgs(SelectArgs, RunArgs, ErrorArgs, CheckpointArgs, AccessArgs, total=False):
    """The shared keyword arguments of `embed`."""


@verb(EmbedArgs, Select, Run, Checkpoints, Access)
def embed(
    sources: Shards | Manifest,
    output: str | os.PathLike[str],
    *,
    model: Any,
    image: str | None = None,
    text: str | None = None,
    meta: Sequence[str] = (),
    batch_size: int | None = None,
    score: Any = None,
    overwrite: bool = False,
    **options: Unpack[EmbedArgs],
) -> Report:
    """Embed samples into the directory `output`: vectors of each shard, and a table with their keys and metadata.

    `model` is `open_clip:NAME/PRETRAINED`, `sentence:NAME_OR_DIR`, `module:Class`, `file.py:Class` or an object; see
    `EmbeddingModel`. `image` and `text` are the fields to embed (`"jpg;png"` takes the first that a sample has), one of
    them or both. `meta` names fields whose values become columns of the table: each number and text at the top of a
    JSON field, and others as text. Vectors have length 1 and are stored as float16, in the files that clip-retrieval
    names: `img_emb/img_emb_N.npy`, `text_emb/text_emb_N.npy` and `metadata/metadata_N.parquet`. `tarmac.Embeddings`
    reads them.

    `score` is `module:Class`, a function or an object that maps vectors to columns of the index of the samples, for
    conditions such as `"aesthetic > 5"`. `batch_size` samples go through the model together (default: 64).
    """
    for name, field in (("image", image), ("text", text)):
        check_text(name, field, "the name of a field, or several divided by ;")
    if batch_size is not None:
        check_count("batch_size", batch_size, 1)
    if not (image or text):
        raise UsageError("expected `image`, `text` or both.", field="image")
    source = absolute(model)
    fields = (meta,) if isinstance(meta, str) else tuple(meta)
    mapper = (EmbedMapper if image else TextMapper)(source, image, text, fields)
    loaded = load_model(source)  # raises now what every worker would raise
    for name, field in (("images", image), ("texts", text)):
        if field and not encodes(loaded, name):
            raise UsageError(f"the model does not encode {name}.", field="model")
    scores = None if score is None else load_score(score)
    directory = output_directory(output)
    access, run, select = bundle(Access, options), bundle(Run, options), bundle(Select, options)
    run = one_per_gpu(run)
    target = RecordOutput(directory, overwrite=overwrite, rekey=RECORDS, storage=access.storage)
    if scores is not None and not is_local(target.pattern):
        raise UsageError("scores are computed from local vectors.", field="score", url=target.pattern)
    inputs, access = access.inputs(sources), access.shared(run, target)
    _check_names(inputs)
    named = [name for names in (image, text) if names for name in names.split(";")]
    planned = plan(
        [inputs],
        select,
        target,
        access,
        reads=[*named, *fields],
        stream_remote=False,
        progress=run.progress,
        processes=run.workers,
    )
    shards = sum(1 for name, each in planned.sources.items() for _ in each.shards(target, name))
    size = (IMAGES if image else TEXTS) if batch_size is None else batch_size
    threads = preparing_threads(run, shards, gpu=True)
    if devices(run.device) != ["cpu"]:
        threads = max(threads, AHEAD)
    ahead = size * (2 if image else SORTED)  # what the next call of the model needs
    change = MapBatches(Function(mapper), run, size, threads, ahead, SORTED, timed=True)
    identity = fingerprint(source)
    kinds = [kind for kind, field in ((IMAGE, image), (TEXT, text)) if field]
    given = {"image": image, "text": text, "meta": list(fields)}
    facts: dict[str, Any] = {name: value for name, value in given.items() if value}
    facts |= {"model": identity, "batch_size": size, "select": select.options()}
    task = EmbedJob(
        "embed",
        planned.sources,
        target,
        change,
        facts,
        (),
        bundle(Checkpoints, options),
        run.retry == "failed",
        kinds=kinds,
        manifest={"model": model_name(source), "info": {"fingerprint": identity}},
    )
    report = run_writing(task, run, "embed")
    if not run.dry_run:
        planned.add_to(report)
        _add_seconds(report)
        if scores is not None and report.units and len(report.outcomes) == report.units:
            add_scores(scores, Embeddings(target.pattern), inputs, access, devices(run.device)[0], report)
    return report


def _check_names(inputs: Inputs) -> None:
    """Raise UsageError if the vectors of an input could not be distinguished from those of others."""
    if any(scheme_of(url) == "-" for url in inputs.urls):
        what = "vectors are kept for each shard, and standard input has no name."
        raise UsageError(what, field="sources", hint="tarmac copy - -o x.tar, and x.tar.")


def _add_seconds(report: Report) -> None:
    """Add to a report what the time of the units was spent on, and what limits the speed."""
    total = Counter[str]()
    for outcome in report.outcomes:
        total.update(outcome.details.get(SECONDS, {}))
    whole = sum(total.values())
    if not (report.done and whole):
        return
    report.notes |= {
        f"seconds_{'inferring' if name == COMPUTING else name}": round(total[name]) for name in _LIMITS
    }
    (longest, _), *others = total.most_common()
    shares = [f"{_LIMITS[name]} {seconds / whole:.0%}" for name, seconds in others]
    rate = sum(outcome.read for outcome in report.outcomes) / whole
    report.remarks.append(
        f"limited by {_LIMITS[longest]}: {total[longest] / whole:.0%} of the time, {', '.join(shares)}; "
        f"{rate:,.0f} samples per second and process"
    )
