"""`tarmac order`: what the exact order of an epoch is, and the proof that it leaves nothing out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tarmac.cli import flags
from tarmac.cli.output import say, say_json
from tarmac.display import visible
from tarmac.errors import IndexingError, TarmacError

if TYPE_CHECKING:
    from tarmac.tools.audit.audit import Coming, OrderAudit, Seen
    from tarmac.tools.audit.proof import Proof

__all__ = ["order_command"]


def _condition(text: str | None) -> str | None:
    from tarmac.indexing.where import parse_where

    try:
        return None if text is None else parse_where(text).text
    except IndexingError as error:
        raise typer.BadParameter(str(error)) from None


def order_command(
    source: Annotated[
        list[str], typer.Argument(metavar="MANIFEST_OR_SHARDS...", help="A manifest, or shards.")
    ],
    batch_size: Annotated[int, typer.Option(help="Samples in a batch of one rank.")],
    world_size: Annotated[int, typer.Option(help="Number of ranks.")] = 1,
    seed: Annotated[str, typer.Option(help="Seed of the loader.")] = "0",
    epoch: Annotated[int, typer.Option(help="Number of the epoch, from 0.")] = 0,
    position: Annotated[int, typer.Option(help="Where a saved state says the loader is.")] = 0,
    streams: Annotated[int, typer.Option(help="Streams that the epoch is dealt out from.")] = 64,
    window: Annotated[int, typer.Option(help="Samples of a stream shuffled together.")] = 16_384,
    tail: Annotated[str, typer.Option(help="The last batch: drop, pad or short.")] = "drop",
    shuffle: Annotated[bool, typer.Option(help="Shuffle, or take the order of the shards.")] = True,
    where: Annotated[str | None, typer.Option(callback=_condition, help="Only samples that are so.")] = None,
    step: Annotated[int | None, typer.Option(help="List what is seen at this step.")] = None,
    rank: Annotated[int | None, typer.Option(help="With --step: only by this rank.")] = None,
    key: Annotated[str | None, typer.Option(help="Say when the sample with this key comes.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="With --key: in so many epochs.")] = 1,
    proof: Annotated[bool, typer.Option("--prove", help="Prove that all come exactly once.")] = False,
    plot: Annotated[str | None, typer.Option(help="Draw the order into this file: .png .svg .pdf")] = None,
    label: Annotated[str, typer.Option(help="With --plot: the metadata column of the class.")] = "",
    buffer: Annotated[int, typer.Option(min=1, help="Shuffle buffer of the stream compared with.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show the exact order of an epoch: a summary, one step, one sample, a proof, or a plot.

    It is that of a Loader with the same options. Only the index is read.

    Exit status: 0 ok, 1 the proof failed. Example: tarmac order train.json --batch-size 64 --world 8 --prove
    """
    from tarmac.tools.audit.audit import OrderOptions, audit
    from tarmac.tools.audit.plot import plot_order
    from tarmac.tools.audit.proof import prove

    if sum([step is not None, key is not None, proof, plot is not None]) > 1:
        raise typer.BadParameter("choose one of --step, --key, --prove and --plot")
    if rank is not None and step is None:
        raise typer.BadParameter("--rank goes with --step")
    with _usage():
        last: Any = tail
        options = OrderOptions(
            batch_size=batch_size,
            world_size=world_size,
            seed=_seed(seed),
            epoch=epoch,
            position=position,
            streams=streams,
            window=window,
            tail=last,  # which the options check
            shuffle=shuffle,
        )
        found = audit(flags.manifest_or_sources(source, None), options, where=where)
        if step is not None:
            return _print_rows(found.what(step, rank), as_json)
        if key is not None:
            return _print_rows(found.when(key, epochs), as_json)
        if plot is not None:
            return plot_order(found, plot, buffer=buffer, label=label)
    return _print_proof(prove(found), as_json) if proof else _print_summary(found, buffer, as_json)


@contextmanager
def _usage() -> Iterator[None]:
    """Show what the library says of options that make no sense as a usage error."""
    try:
        yield
    except TarmacError:
        raise
    except (ValueError, IndexError, KeyError) as error:
        raise typer.BadParameter(visible(str(error.args[0]))) from None


def _seed(text: str) -> int | str:
    """A number is the number; any other text is a seed too."""
    try:
        return int(text)
    except ValueError:
        return text


def _print_rows(rows: Iterable[Seen | Coming], as_json: bool) -> None:
    for row in map(asdict, rows):
        if as_json:
            say_json(row)
        else:
            say("\t".join("-" if value is None else visible(str(value)) for value in row.values()))


def _print_summary(found: OrderAudit, buffer: int, as_json: bool) -> None:
    summary = asdict(found.summary())
    if as_json:
        say_json(summary | {"stream_quality": found.stream_quality(buffer)})
        return
    for name, value in summary.items():
        shown = f"{value:.3f}" if isinstance(value, float) else value
        say(f"{name.replace('_', ' '):<15} {shown}")


def _print_proof(proof: Proof, as_json: bool) -> None:
    if as_json:
        say_json(asdict(proof) | {"ok": proof.ok})
    else:
        for line in _proof_lines(proof):
            say(line)
    if not proof.ok:
        raise typer.Exit(1)


def _proof_lines(proof: Proof) -> Iterator[str]:
    if proof.too_often or proof.too_seldom:
        yield (
            f"WRONG: of {proof.samples} samples {proof.too_often} come too often and {proof.too_seldom} too "
            f"seldom, among them {', '.join(proof.examples)}"
        )
    elif proof.seen < proof.samples:
        yield f"{proof.seen} of {proof.samples} samples come exactly once"
    else:
        again = " before any comes again" if proof.padded else ""
        yield f"every one of {proof.samples} samples comes exactly once{again}"
    for count, what in (
        (proof.before, "came before the position"),
        (proof.left_out, "left out by the tail"),
        (proof.padded, "come again to fill the last batch"),
    ):
        if count:
            yield f"{count} {what}"
    least, most = min(proof.steps), max(proof.steps)
    steps = f"{least} steps" if least == most else f"{least} or {most} steps"
    yield f"{'' if proof.equal else 'WRONG: '}each of {len(proof.steps)} ranks has {steps}"
