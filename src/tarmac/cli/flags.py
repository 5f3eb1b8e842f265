"""Declare the flags that mean the same on every verb, in groups."""

from __future__ import annotations

from functools import partial

import click

from tarmac.cli.command import Group, argument, flag
from tarmac.cli.types import COUNT, FIELDS, NAMES, NUMBER, SECONDS, SIZE, SLICE, SPLIT, SPLITTER, settings

_select, _order, _write, _run, _access = (
    partial(flag, group=name) for name in ("Select", "Order", "Write", "Run", "Access")
)


SHARDS: Group = [
    argument(
        "sources", "SHARDS...", "Files, URLs, patterns, @list files, manifests, or - for standard input.",
        nargs=-1, required=True,
    )
]  # fmt: skip
SPLITS: Group = [
    _select("--split", type=SPLIT, help="Split by a hash of the key: train=0.9,val=0.1."),
    _select("--only", metavar="NAME", help="Write only this split."),
]
WHERE = _select(
    "--where", metavar="CONDITION", help="A condition: \"jpg.width >= 512 and json.lang = 'en'\"."
)
FIELD_RULE: Group = [
    _select("--fields", type=FIELDS, help="Fields to keep, with new names if given: img=jpg|png,cls."),
    _select("--drop-fields", type=NAMES, help="Fields to drop: json,txt."),
    _select(
        "--missing", type=click.Choice(["error", "skip"]), help="What to do with samples that lack a field."
    ),
]
SELECT: Group = [
    *FIELD_RULE,
    WHERE,
    _select("--keys", metavar="FILE", help="Keep only the keys that this file lists, one per line."),
    _select("--slice", type=SLICE, help="START:STOP[:STEP] of all samples."),
    _select("--slice-shard", type=SLICE, help="START:STOP[:STEP] of the samples of each shard."),
    *SPLITS,
]
SHUFFLE: Group = [
    _order("--shuffle", is_flag=True, help="Shuffle the samples."),
    _order("--seed", type=int, metavar="N", help="Seed of the shuffle or mixture. [default: 0]"),
]
ORDER: Group = [
    *SHUFFLE,
    _order("--buffer", type=COUNT, help="Shuffle buffer for inputs that cannot be indexed. [default: 10000]"),
    _order("--interleave", type=COUNT, help="Take one sample in turn from each of this many shards."),
]
MAX_BYTES = _write("--max-bytes", type=SIZE, help="Maximum payload per shard or file: 100MB, 2GiB.")
SIZES: Group = [
    _write("--max-samples", type=COUNT, help="Maximum number of samples per shard or file."),
    MAX_BYTES,
]
OVERWRITE: Group = [_write("--overwrite", is_flag=True, help="Start over and replace existing files.")]
OUTPUT: Group = [
    _write(
        "-o", "--output", metavar="PATTERN", required=True,
        help="x-{i:06d}.tar, {split}-{i}.tar, DIR/ to keep names, a URL, or -.",
    )
]  # fmt: skip
POST_CMD = _write(
    "--post-cmd",
    metavar="COMMAND",
    help="Command to run after each shard; a failure stops the job: 'cp {path} /mnt'.",
)
WRITE: Group = [
    *OUTPUT,
    *SIZES,
    _write("--rekey", metavar="PATTERN", help="New keys, from {i} and {key}: {i:09d}."),
    _write(
        "--compress",
        type=click.Choice(["gz", "zst", "bz2", "xz"]),
        help="Compression format. [default: inferred from the extension]",
    ),
    _write("--index", is_flag=True, help="Also write the index of each shard."),
    _write("--manifest", metavar="FILE", help="Also write a manifest of all shards, and their indexes."),
    POST_CMD,
    _write("--delete-after", is_flag=True, help="Delete each shard after --post-cmd."),
    *OVERWRITE,
]
TMP = flag("--tmp", metavar="DIR", help="Directory for temporary files.")
JSON: Group = [_run("--json", "as_json", is_flag=True, help="Print the report as JSON.")]
RUN: Group = [
    _run("-j", "--jobs", type=COUNT, help="Number of processes. [default: the number of cores]"),
    _run(
        "--engine", metavar="NAME",
        help="What runs the job: local, dask, ray, spark, slurm, or an address: dask://HOST:PORT. [default: local]",
    ),
    _run("--task", metavar="I/N", help="Run as task I of N, which share the job without a driver: 0/8."),
    _run("--retries", type=NUMBER, help="Runs of a unit after a lost connection or dead worker. [default: 2]"),
    _run("--unit-timeout", type=SECONDS, help="Interrupt a unit after this time."),
    _run("--max-failed-units", type=NUMBER, help="Stop after more than this many failed units. [default: 0]"),
    _run(
        "--device", metavar="LIST",
        help="Devices for the workers, in turn: cuda:0,cuda:1. [default: visible GPUs]",
    ),
    _run("--dry-run", is_flag=True, help="Only report what would be done."),
    *JSON,
]  # fmt: skip
CHECKPOINTS: Group = [
    _run(
        "--checkpoint-interval",
        type=SECONDS,
        help="Save the samples of an unfinished shard after this many seconds. [default: 60]",
    ),
    _run("--checkpoint-samples", type=COUNT, help="Also save them after this many samples."),
]
ERRORS: Group = [
    _run(
        "--on-error", type=click.Choice(["abort", "skip"]), help="Stop at a bad sample, or skip and count it."
    ),
    _run("--max-errors", type=NUMBER, help="Stop after more than this many bad samples."),
    _run(
        "--retry", type=click.Choice(["failed"]), help="Process shards again in which samples failed before."
    ),
]
STORAGE: Group = [
    _access("--allow-exec", is_flag=True, default=False, help="Allow pipe: inputs, which run commands."),
    _access(
        "--storage",
        type=settings("StorageOptions"),
        help="Storage settings, such as idle_timeout=60,retries=20.",
    ),
]
SPLIT_NAME = _access(
    "--split-name",
    type=SPLITTER,
    help="Where a member name splits into key and field. [default: first-dot]",
)
REPEATED = _access(
    "--repeated",
    type=click.Choice(["error", "keep"]),
    help="What to do with whole samples whose key occurs again in a shard. [default: error]",
)
LIMITS = _access(
    "--limits", type=settings("Limits"), help="Limits against hostile data, such as member_bytes=4GiB."
)
READ: Group = [
    *STORAGE,
    LIMITS,
    _access("--tar", type=settings("TarOptions"), help="Strictness, such as end=lenient or concatenated=true."),
    SPLIT_NAME,
    REPEATED,
]  # fmt: skip
ACCESS: Group = [_access("--cache", metavar="DIR", help="Cache directory for remote shards."), *READ]
