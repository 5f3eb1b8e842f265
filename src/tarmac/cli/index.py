"""`tarmac index`: say where each sample is."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tarmac.cli import flags
from tarmac.cli.output import say, say_json
from tarmac.display import display_url
from tarmac.errors import UrlError

__all__ = ["index_command"]


def index_command(
    shards: flags.Shards,
    output: Annotated[str | None, typer.Option("-o", "--output", help="The manifest to write.")] = None,
    digest: Annotated[bool, typer.Option("--digest", help="Also a digest of every field.")] = False,
    meta: Annotated[str, typer.Option(help="Columns to choose by: jpg.width,json.caption,cls.")] = "",
    bad_meta: Annotated[
        bool, typer.Option("--bad-meta", help="Leave a column empty where a field is damaged.")
    ] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Drop digests and columns that are there but not asked for.")
    ] = False,
    add: Annotated[bool, typer.Option("--add", help="Keep the shards that the manifest has.")] = False,
    sidecars: Annotated[
        str | None, typer.Option(help="Directory for the indexes, instead of beside the shards.")
    ] = None,
    dali: Annotated[bool, typer.Option("--dali", help="Take over DALI's .idx files.")] = False,
    name: Annotated[str | None, typer.Option(help="What the dataset is called.")] = None,
    info: Annotated[str | None, typer.Option(help="A text or JSON file about the dataset.")] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Only check the index of a manifest; write nothing.")
    ] = False,
    jobs: flags.Jobs = flags.CORES,
    dry_run: flags.DryRun = False,
    as_json: flags.AsJson = False,
) -> None:
    """Index shards, so that samples can be read by number, by key and by condition.

    Only what is new or has changed is read; digests and columns that are there stay.
    Example: tarmac index 'train-*.tar' -o train.json
    """
    from tarmac.indexing.build import IndexOptions
    from tarmac.indexing.meta import parse_meta
    from tarmac.jobs.report import Report
    from tarmac.tools.index import index

    if stale:
        _check(shards, as_json)
        return
    if dali and (digest or meta):
        raise typer.BadParameter("--dali has neither digests nor metadata to take over")
    if output is None and add:
        raise typer.BadParameter("--add needs the manifest to add to: -o FILE.json")
    plan = parse_meta(meta, on_bad="null" if bad_meta else "raise") if meta else None
    report = index(
        flags.sources(shards, None),
        output,
        options=IndexOptions(digests=digest, meta=plan, keep=not drop),
        directory=sidecars,
        add=add,
        dali=dali,
        name=name,
        info=None if info is None else _info(info),
        jobs=jobs,
        dry=dry_run,
    )
    if dry_run:
        units, kept = len(report.made) + len(report.kept), len(report.kept)
        flags.report_job(Report("index", units, kept=kept), as_json, dry_run)
        return
    found = report.manifest
    size = sum(shard.size or 0 for shard in found.shards)
    if as_json:
        shown = None if output is None else display_url(output)
        facts: dict[str, Any] = {
            "manifest": shown,
            "shards": len(found.shards),
            "samples": found.samples,
        }
        facts |= {"bytes": size, "made": len(report.made), "kept": len(report.kept)}
        say_json(facts | {"fingerprint": found.fingerprint})
    else:
        where = "" if output is None else f" -> {display_url(output)}"
        say(
            f"{len(found.shards)} shards, {found.samples} samples, {size} bytes; "
            f"{len(report.made)} indexed, {len(report.kept)} as they were{where}",
            err=True,
        )


def _check(manifests: list[str], as_json: bool) -> None:
    from tarmac.tools.index import check_index

    bad = 0
    for manifest in flags.manifests(manifests):
        for found in check_index(manifest):
            bad += 1
            if as_json:
                kind = type(found.error).__name__
                say_json({"url": display_url(found.url), "kind": kind, "text": str(found.error)})
            else:
                say(f"STALE {found.error}")
    say(f"{bad} shards need indexing" if bad else "every index is of its shard", err=True)
    if bad:
        raise typer.Exit(1)


def _info(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise UrlError(f"the file about the dataset cannot be read: {error.strerror}.", url=path) from None
    try:
        return json.loads(text)
    except ValueError:
        return text
