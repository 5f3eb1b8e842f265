"""`tarmac knn`: build an index of the nearest neighbours of vectors, add to it, and search it."""

from __future__ import annotations

from typing import Any

import click

from tarmac.cli.command import Group, argument, build, flag
from tarmac.cli.flags import JSON, OVERWRITE, RUN
from tarmac.cli.output import say, say_json
from tarmac.cli.types import COUNT
from tarmac.display import display_url, visible

_VECTORS: Group = [argument("source", "DIR", "Embeddings, as embed or clip-retrieval wrote them.")]
_BUILD: Group = [
    flag("-o", "--output", metavar="INDEX", required=True, help="Directory for the index."),
    flag(
        "--target-recall", type=float,
        help="Share of the ten nearest neighbours to find, measured. [default: 0.95]",
    ),
    flag("--max-memory", metavar="SIZE", help="Memory that the index may take: 120MB, 4GiB. [default: 4GB]"),
    flag("--metric", type=click.Choice(["ip", "l2"]), help="Inner product, or squared distances. [default: ip]"),
    flag("--kind", type=click.Choice(["img", "text"]), help="Which vectors, if there are both. [default: img]"),
]  # fmt: skip
_RUN: Group = [
    flag("-j", "--jobs", group="Run", type=COUNT, help="Number of processes. [default: one, with all cores]"),
    *RUN[1:],
]
_INDEX: Group = [argument("index", "INDEX", "Directory of the index.")]
_MOVED: Group = [
    flag(
        "--embeddings", multiple=True, metavar="DIR",
        help="Where embeddings are now that were moved; repeat it for each directory.",
    )
]  # fmt: skip
_MORE: Group = [
    argument(
        "source",
        "[DIR]",
        "Embeddings to add. By default, what the indexed directory has more.",
        required=False,
    )
]
_QUERY: Group = [
    flag("--text", metavar="TEXT", help="Find samples like this text."),
    flag("--image", metavar="FILE", help="Find samples like this picture."),
    flag("--key", metavar="KEY", help="Find samples like the one of this key."),
    flag("--vectors", metavar="FILE", help="Find samples like these vectors, a .npy file."),
    flag("-k", "k", type=COUNT, help="Number of hits for each query. [default: 10]"),
    flag(
        "--where", group="Select", metavar="CONDITION", help='A condition on the metadata: "width >= 512".'
    ),
    flag("--samples", metavar="SHARDS", help="Manifest or shards: print where the hits are in them."),
    flag("--sheet", metavar="FILE", help="Draw the pictures of the hits on one page (.png, .jpg, .webp)."),
    flag("--device", metavar="NAME", help="Device of the model: cuda:0. [default: a visible GPU, or the CPU]"),
    *JSON,
]  # fmt: skip

command = click.Group(
    "knn", help="Build an index of nearest neighbours, add to it, and search it.", no_args_is_help=True
)


@build(
    _VECTORS, _BUILD, OVERWRITE, _RUN,
    example="tarmac knn build embeddings/ -o index/ --target-recall 0.95 --max-memory 120MB",
)  # fmt: skip
def build_index(**options: Any) -> Any:
    """Build an index that finds a given share of the nearest neighbours, in a given memory."""
    import tarmac

    return tarmac.Knn.build(**options)


@build(_INDEX, _MORE, _MOVED, JSON, example="tarmac knn add index/ more-embeddings/")
def add(
    index: str, source: str | None = None, as_json: bool = False, embeddings: tuple[str, ...] | None = None
) -> None:
    """Add vectors to an index, and report how well they fit."""
    import tarmac

    report = tarmac.Knn(index, embeddings=embeddings).add(source)
    if as_json:
        say_json(report.to_dict())
        return
    say(str(report))
    for remark in report.remarks:
        say(f"warning: {remark}", err=True)


@build(_INDEX, _QUERY, _MOVED, example='tarmac knn query index/ --text "a red car" -k 20 --sheet hits.png')
def query(
    index: str,
    as_json: bool = False,
    embeddings: tuple[str, ...] | None = None,
    sheet: str | None = None,
    **options: Any,
) -> None:
    """Print the samples nearest to a text, a picture, a sample or vectors: score, key, caption, shard, offset."""
    import tarmac

    hits = tarmac.Knn(index, embeddings=embeddings).query(**options).located()
    for hit in hits:
        if as_json:
            say_json(hit.to_dict())
            continue
        offset = "" if hit.offset is None else f"\t{hit.offset}"
        query = f"{hit.query}\t" if "vectors" in options else ""
        caption = visible(hit.caption or "")
        say(f"{query}{hit.score:.4f}\t{visible(hit.key)}\t{caption}\t{display_url(hit.shard)}{offset}")
    if sheet is not None:
        say(f"{hits.write_sheet(sheet)} images -> {sheet}", err=True)


for _name, _command in (("build", build_index), ("add", add), ("query", query)):
    command.add_command(_command, _name)
