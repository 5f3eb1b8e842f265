"""`tarmac show`: list samples, look into them, summarise them."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from tarmac.cli.command import Group, build, flag
from tarmac.cli.flags import ACCESS, JSON, SELECT, SHARDS
from tarmac.cli.output import say, say_json
from tarmac.cli.types import NUMBER, manifest_url
from tarmac.display import display_url, plural, visible

if TYPE_CHECKING:
    from tarmac.tools.show.statistics import Statistics
    from tarmac.tools.show.verb import SampleView

_SHOW: Group = [
    flag("-n", "--count", "n", type=NUMBER, help="Stop after this many samples."),
    flag(
        "--at", multiple=True, metavar="NUMBER|KEY",
        help="Only this sample; -1 is the last, =17 is the key 17.",
    ),
    flag("--content", is_flag=True, help="Describe the content of fields: text, JSON, sizes of images."),
    flag("--raw", metavar="FIELD", help="Write only the bytes of this field."),
    flag("--total", is_flag=True, help="Print only the number of shards, samples and bytes."),
    flag("--stats", is_flag=True, help="Print statistics of sizes, fields and images."),
    flag("--fields-only", is_flag=True, help="Print only the fields, and how many samples have them."),
    flag("--sheet", metavar="FILE", help="Draw the first images on one page (.png, .jpg, .webp)."),
    flag("--extract", metavar="DIR", help="Write the fields as files to this directory."),
    flag("--overwrite", is_flag=True, help="With --extract: replace existing files."),
    flag("--info", is_flag=True, help="Print only what a manifest says about the dataset."),
]  # fmt: skip
_MODES = ("content", "raw", "total", "stats", "fields_only", "sheet", "extract", "info")


@build(SHARDS, _SHOW, JSON, SELECT, ACCESS, example="tarmac show 'train-{000000..000009}.tar' -n 3")
def command(
    sources: tuple[str, ...],
    n: int | None = None,
    at: tuple[str, ...] = (),
    as_json: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> None:
    """List samples with their fields and sizes in bytes; or show their content, statistics, images, files."""
    import tarmac

    modes = {name: options.pop(name) for name in _MODES if name in options}
    if len(modes) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in modes)
        raise click.UsageError(f"{names} are mutually exclusive.")
    (mode, value), *_ = [*modes.items(), ("", None)]
    if mode == "info":
        for manifest in sources:
            _print_info(manifest, as_json)
        return
    if mode in ("total", "stats", "fields_only") and not at:
        _print_stats(tarmac.stats(list(sources), n, images=mode == "stats", **options), mode, as_json)
        return
    if mode in ("raw", "sheet") and n is None and not at:
        n = 1 if mode == "raw" else 64
    samples = tarmac.show(list(sources), n, at=[_number_or_key(each) for each in at], **options)
    if mode == "raw":
        for sample in samples:
            sys.stdout.buffer.write(sample.field(value))
        sys.stdout.buffer.flush()
    elif mode == "sheet":
        say(f"{samples.write_sheet(value, n or 64)} images -> {value}", err=True)
    elif mode == "extract":
        count, files = samples.extract(value, overwrite=overwrite)
        if as_json:
            say_json({"samples": count, "files": files, "directory": value})
        else:
            say(f"{plural(count, 'sample')}, {plural(files, 'file')} -> {value}", err=True)
    else:
        for sample in samples:
            _print_sample(sample, as_json, content=mode == "content")


def _number_or_key(text: str) -> int | str:
    """Take an integer without leading zeros as a number, everything else as a key."""
    return int(text) if re.fullmatch(r"-?(?:0|[1-9][0-9]*)", text) else text.removeprefix("=")


def _print_sample(sample: SampleView, as_json: bool, *, content: bool) -> None:
    if as_json:
        described = {"content": sample.describe()} if content else {}
        say_json({"key": sample.key, "url": display_url(sample.url), "sizes": sample.sizes} | described)
        return
    say(
        f"{visible(sample.key)}\t{'  '.join(f'{visible(name)} {size}' for name, size in sample.sizes.items())}"
    )
    for name, text in sample.describe().items() if content else ():
        first, *more = text.split("\n")
        say(f"  {visible(name)}: {first}")
        for line in more:
            say(f"    {line}")


def _print_stats(result: Statistics, mode: str, as_json: bool) -> None:
    if mode == "stats":
        if as_json:
            say_json(result.to_dict())
        for line in () if as_json else str(result).split("\n"):
            say(line)
        return
    facts = result.to_dict(images=False)
    counts = {name: numbers["samples"] for name, numbers in facts["fields"].items()}
    totals = {name: facts[name] for name in ("shards", "samples", "bytes")} if mode == "total" else {}
    if as_json:
        say_json(totals | {"fields": counts})
        return
    for name, value in totals.items():
        say(f"{name}\t{value}")
    if totals:
        say(f"fields\t{' '.join(map(visible, counts))}")
    for name, value in counts.items() if not totals else ():
        say(f"{visible(name)}\t{value}")


def _print_info(url: str, as_json: bool) -> None:
    from tarmac import read_manifest

    manifest = read_manifest(manifest_url(url))
    facts = {
        "name": manifest.name,
        "shards": len(manifest.shards),
        "samples": manifest.samples,
        "size": sum(shard.size or 0 for shard in manifest.shards),
        "fingerprint": manifest.fingerprint,
        "info": manifest.info,
    }
    if as_json:
        say_json(facts)
    for name, value in () if as_json else facts.items():
        say(f"{name}\t{value}")
