"""`tarmac show`: list samples and their fields, look into them, and say what they are like."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tarmac.cli import flags
from tarmac.cli.output import say, say_json
from tarmac.display import display_url, visible

if TYPE_CHECKING:
    from tarmac.samples.grouping import Sample
    from tarmac.tools.select import Select

__all__ = ["show_command"]


def show_command(
    shards: flags.Shards,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=0, help="Stop after this many samples.")
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at", help="Only this sample, by number (-1 is the last) or by key; =17 is the key 17."
        ),
    ] = None,
    content: Annotated[
        bool, typer.Option("--content", "-c", help="What is in the fields: text, JSON, sizes of images.")
    ] = False,
    raw: Annotated[str, typer.Option("--raw", metavar="FIELD", help="Only the bytes of this field.")] = "",
    total: Annotated[bool, typer.Option("--total", help="Only how much there is in all.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Sizes, fields and images in numbers.")] = False,
    fields_only: Annotated[
        bool, typer.Option("--fields-only", help="Only the fields, and how many samples have them.")
    ] = False,
    sheet: Annotated[
        str, typer.Option("--sheet", metavar="FILE", help="Draw the first images on one page (.png, .jpg).")
    ] = "",
    extract: Annotated[
        str, typer.Option("--extract", metavar="DIR", help="Put the fields into files of this directory.")
    ] = "",
    overwrite: flags.Overwrite = False,
    info: Annotated[bool, typer.Option("--info", help="Only what a manifest says of the whole.")] = False,
    fields: flags.Fields = "",
    missing: flags.Missing = "error",
    where: flags.Where = "",
    keys: flags.Keys = "",
    slice_: flags.Slice = "",
    slice_shard: flags.SliceShard = "",
    part: flags.Part = "",
    only: flags.Only = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    cache: flags.CacheDir = "",
    allow_exec: flags.AllowExec = False,
) -> None:
    """List samples with the fields they have and their sizes in bytes.

    Example: tarmac show 'train-{000000..000009}.tar' -n 3
    """
    ways = {"--raw": raw, "--total": total, "--stats": stats, "--fields-only": fields_only}
    ways |= {"--sheet": sheet, "--extract": extract, "--info": info, "--content": content}
    wanted = [name for name, given in ways.items() if given]
    if len(wanted) > 1:
        raise typer.BadParameter(f"{' and '.join(wanted)} show different things; choose one")
    if info:
        for manifest in flags.manifests(shards):
            _describe(manifest, as_json)
        return
    from tarmac.storage import Cache
    from tarmac.tools.select import Select
    from tarmac.tools.show.show import chosen

    select = Select(fields, missing, where, keys, slice_, slice_shard, part, only)
    source = flags.manifest_or_sources(shards, allow_exec)
    urls = flags.sources(shards) if isinstance(source, str) else source
    if (total or fields_only) and count is None and not at and _indexed(urls, source, select, total, as_json):
        return
    if raw or sheet:
        count = count if count is not None else 1 if raw else 64
    samples = chosen(source, select=select, at=at or (), count=count, cache=Cache(cache) if cache else None)
    if raw:
        _raw(samples, raw)
    elif sheet:
        _sheet(samples, sheet, count or 0)
    elif extract:
        _extract(samples, extract, overwrite=overwrite, as_json=as_json)
    elif total or stats or fields_only:
        _numbers(samples, stats=stats, total=total, as_json=as_json)
    else:
        _listing(samples, as_json=as_json, content=content)


def _listing(samples: Iterator[Sample], *, as_json: bool, content: bool) -> None:
    from tarmac.tools.show.show import content as content_of
    from tarmac.tools.show.show import line_of

    for sample in samples:
        line = line_of(sample)
        if as_json:
            told: dict[str, Any] = asdict(line) | {"url": display_url(line.url)}
            if content:
                told["content"] = {name: content_of(name, sample[name]) for name in line.sizes}
            say_json(told)
            continue
        listed = "  ".join(f"{visible(name)} {size}" for name, size in line.sizes.items())
        say(f"{visible(line.key)}\t{listed}")
        for name in line.sizes if content else ():
            first, *more = content_of(name, sample[name]).split("\n")
            say(f"  {visible(name)}: {first}")
            for text in more:
                say(f"    {text}")


def _raw(samples: Iterator[Sample], field: str) -> None:
    from tarmac.tools.show.show import raw_field

    for sample in samples:
        sys.stdout.buffer.write(raw_field(sample, field))
    sys.stdout.buffer.flush()


def _sheet(samples: Iterator[Sample], path: str, images: int) -> None:
    from tarmac.tools.show.sheet import write_sheet

    say(f"{write_sheet(samples, path, images=images)} images -> {path}", err=True)


def _extract(samples: Iterator[Sample], directory: str, *, overwrite: bool, as_json: bool) -> None:
    from tarmac.tools.show.extract import Extractor

    count = 0
    with Extractor(directory, overwrite=overwrite) as extractor:
        for count, sample in enumerate(samples, 1):  # noqa: B007 - the last number is how many
            extractor.add(sample)
        files = extractor.files
    if as_json:
        say_json({"samples": count, "files": files, "directory": directory})
    else:
        say(f"{count} samples, {files} files -> {directory}", err=True)


def _indexed(urls: Sequence[str], source: Any, select: Select, total: bool, as_json: bool) -> bool:
    """Answer from the index, if there can be one: no sample has to be read."""
    from tarmac.tools.plan import can_index, open_indexed
    from tarmac.tools.show.statistics import from_index

    if not can_index(urls) or select.rule is not None:
        return False
    listed = [source] if isinstance(source, str) else urls
    _print_numbers(from_index(open_indexed(listed, select).dataset), total=total, as_json=as_json)
    return True


def _numbers(samples: Iterator[Sample], *, stats: bool, total: bool, as_json: bool) -> None:
    from tarmac.tools.show.statistics import collect, report_lines

    found = collect(samples)
    if not stats:
        _print_numbers(found, total=total, as_json=as_json)
    elif as_json:
        say_json(found.facts())
    else:
        for line in report_lines(found):
            say(line)


def _print_numbers(found: Any, *, total: bool, as_json: bool) -> None:
    facts = found.facts(images=False)
    counts = {name: numbers["samples"] for name, numbers in facts["fields"].items()}
    told = {name: facts[name] for name in ("shards", "samples", "bytes")} if total else {}
    if as_json:
        say_json(told | {"fields": counts})
        return
    for name, value in told.items():
        say(f"{name}\t{value}")
    if total:
        say(f"fields\t{' '.join(map(visible, counts))}")
    for name, value in counts.items() if not total else ():
        say(f"{visible(name)}\t{value}")


def _describe(manifest: str, as_json: bool) -> None:
    from tarmac.tools.show.show import describe

    found = asdict(describe(manifest))
    if as_json:
        say_json(found)
    else:
        for name, value in found.items():
            say(f"{name}\t{value}")
