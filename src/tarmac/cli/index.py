"""`tarmac index`: index shards and write a manifest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tarmac.cli.command import Group, build, flag
from tarmac.cli.flags import ACCESS, RUN, SHARDS
from tarmac.cli.output import say, say_json
from tarmac.cli.types import NAMES, manifest_url
from tarmac.display import display_url, plural

if TYPE_CHECKING:
    from tarmac import Report

_INDEX: Group = [
    flag(
        "-o", "--output", metavar="FILE",
        help="The manifest to write. [default: beside the shards, train.json for train-*.tar]",
    ),
    flag("--meta", type=NAMES, help="Metadata columns: jpg.width,json.caption,cls."),
    flag(
        "--on-bad-meta", type=click.Choice(["error", "null"]),
        help="What to store for a damaged field. [default: error]",
    ),
    flag("--digests", is_flag=True, help="Also store a digest of every field."),
    flag("--drop", is_flag=True, help="Drop existing digests and columns that are not requested."),
    flag("--add", is_flag=True, help="Keep the shards of the existing manifest."),
    flag("--sidecars", metavar="DIR", help="Directory for the indexes, instead of beside the shards."),
    flag("--dali", is_flag=True, help="Import the .idx files of DALI."),
    flag("--name", help="Name of the dataset."),
    flag("--info", metavar="FILE", help="A text or JSON file that describes the dataset."),
    flag("--stale", is_flag=True, help="Only check the indexes of a manifest; write nothing."),
]  # fmt: skip


@build(SHARDS, _INDEX, RUN, ACCESS, example="tarmac index 'train-*.tar'")
def command(
    sources: tuple[str, ...],
    stale: bool = False,
    info: str | None = None,
    as_json: bool = False,
    **options: Any,
) -> Report | None:
    """Index shards, for access to samples by number, key and condition.

    Only new and changed shards are read.
    """
    from tarmac import index

    if stale:
        _print_stale(sources, as_json)
        return None
    return index(list(sources), info=None if info is None else _read_info(info), **options)


def _print_stale(manifests: tuple[str, ...], as_json: bool) -> None:
    from tarmac.tools.index import stale_shards

    stale = 0
    for manifest in manifests:
        for shard in stale_shards(manifest_url(manifest)):
            stale += 1
            if as_json:
                kind = type(shard.error).__name__
                say_json({"url": display_url(shard.url), "kind": kind, "text": str(shard.error)})
            else:
                say(f"STALE {shard.error}")
    say(
        f"{plural(stale, 'shard')} {'needs' if stale == 1 else 'need'} indexing"
        if stale
        else "all indexes are up to date",
        err=True,
    )
    if stale:
        raise click.exceptions.Exit(1)


def _read_info(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise click.BadParameter(f"cannot read {path}: {error.strerror}.", param_hint="--info") from None
    try:
        return json.loads(text)
    except ValueError:
        return text
