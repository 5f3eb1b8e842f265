"""Copy samples: cat, split, reshard, subset, rename, mix and shuffle in one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal

from tarmac.errors import UrlError
from tarmac.exact.dataset import Dataset
from tarmac.jobs.run import JobReport
from tarmac.runtime.seeds import make_seed
from tarmac.samples.grouping import Sample
from tarmac.storage import Cache
from tarmac.storage.urls import Shards, ShardUrl, expand
from tarmac.stream.shuffling import buffer_shuffle
from tarmac.tools.output import Output
from tarmac.tools.permutations import Interleaved, Mixed, Order, Shuffled
from tarmac.tools.plan import (
    IndexedSamples,
    OutputShard,
    StreamedShards,
    any_remote,
    balance,
    can_index,
    check_one_to_one,
    one_to_one,
    open_indexed,
    selects_by_split,
)
from tarmac.tools.rewrite import RewriteJob, Run, rewrite
from tarmac.tools.rewrite_stream import rewrite_stream
from tarmac.tools.select import Select
from tarmac.tools.tally import Tally

__all__ = ["copy", "Order_"]


@dataclass(frozen=True)
class Order_:
    """The Order flags."""

    shuffle: bool = False
    seed: int = 0
    buffer: int = 10_000
    """Samples among which a stream is shuffled; what can be indexed is shuffled as a whole."""
    interleave: int = 0
    weights: tuple[float, ...] = ()
    """How often each of several sources comes, relative to the others."""
    until: Literal["first", "all"] = "all"
    """Whether a mixture ends with the first source that ends, or with the last."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.shuffle, self.interleave, self.weights))) > 1:
            raise UrlError("--shuffle, --interleave and --mix are different orders; choose one.")
        if self.buffer < 1 or self.interleave < 0 or min(self.weights, default=1) <= 0:
            raise UrlError("the buffer, the number of shards and all weights are positive.")

    @property
    def as_it_is(self) -> bool:
        """Whether the order stays as it is."""
        return not (self.shuffle or self.interleave or self.weights)

    def of(self, datasets: Sequence[Dataset]) -> Order | None:
        """The order of all samples of these, one dataset after the other; None for as they are."""
        if self.weights:
            return Mixed(tuple(map(len, datasets)), self.weights, self.seed, self.until)
        if self.shuffle:
            return Shuffled(sum(map(len, datasets)), self.seed)
        if self.interleave > 1:
            return Interleaved(tuple(n for each in datasets for n in each.lengths.tolist()), self.interleave)
        return None

    def options(self) -> dict[str, Any]:
        """What the result depends on, for a ledger."""
        names = ("shuffle", "seed") if self.shuffle else ("interleave",) if self.interleave else ()
        mixed = ("weights", "seed", "until") if self.weights else ()
        return {name: getattr(self, name) for name in (*names, *mixed)}


AS_IT_IS = Order_()
EVERYTHING = Select()


def copy(
    sources: Shards | Sequence[Shards],
    output: Output,
    run: Run,
    *,
    select: Select = EVERYTHING,
    ordering: Order_ = AS_IT_IS,
    cache: Cache | None = None,
) -> JobReport:
    """Copy the samples that are chosen, in the order that is asked for, to new shards.

    With weights, `sources` are as many sources as there are weights. Shards that can be indexed are copied in
    parallel and shuffled as a whole; streams from front to back, and shuffled in a buffer.
    """
    groups = _groups(sources, ordering, select)
    urls = [url for group in groups for url in group]
    facts = {"select": select.options(), "order": ordering.options()}
    once = one_to_one(output, select) and ordering.as_it_is and not output.renumbers
    if not can_index(urls) or (any_remote(urls) and once):
        return _copy_streams(
            StreamedShards(urls, select, select.storage, cache), output, run, ordering, facts
        )

    def one(chosen: Select) -> IndexedSamples:
        rows = [
            open_indexed(group, chosen, storage=select.storage, cache=cache, views=True, show=run.show)
            for group in groups
        ]
        datasets = [each.dataset for each in rows]
        together = Dataset.of_parts([part for dataset in datasets for part in dataset.parts])
        wholes = [each.whole for each in rows if each.whole is not None]
        everything = Dataset.of_parts([part for whole in wholes for part in whole.parts])
        return IndexedSamples(together, chosen, ordering.of(datasets), whole=everything)

    if output.stream:
        rows, tally = one(select), Tally()
        left, samples = balance(select, [rows]), rows.samples(OutputShard("-", 0, rows.size), tally)
        report = rewrite_stream("copy", samples, output, run=run, tally=tally)
        left.book(report)
        return report
    parts = {part: one(chosen) for part, chosen in selects_by_split(select, output).items()}
    left = balance(select, list(parts.values()))
    return rewrite(RewriteJob("copy", output, dict(parts), facts=facts, balance=left), run)


def _groups(sources: Shards | Sequence[Shards], ordering: Order_, select: Select) -> list[list[ShardUrl]]:
    if not ordering.weights:
        return [expand(sources, options=select.storage)]  # type: ignore[arg-type]
    if select.slice:
        what = "--slice with --mix would slice each of the sources"
        raise UrlError(f"{what}.", hint="--slice-shard; or --slice of a copy of the mixture.")
    listed = list(sources)  # type: ignore[arg-type]
    if len(listed) != len(ordering.weights):
        raise UrlError(f"{len(listed)} sources cannot be mixed by {len(ordering.weights)} weights.")
    return [expand(source, options=select.storage) for source in listed]


def _copy_streams(
    streams: StreamedShards, output: Output, run: Run, ordering: Order_, facts: dict[str, Any]
) -> JobReport:
    select = streams.select
    if one_to_one(output, select) and ordering.as_it_is:
        check_one_to_one(streams.urls, output)
        return rewrite(RewriteJob("copy", output, {"": streams}, facts=facts, select=select), run)
    in_another_order = ordering.weights or (ordering.interleave and select.slice)
    if output.by_shard or (select.part and not select.only) or in_another_order:
        raise UrlError(
            "standard input, commands and compressed shards are read once, from front to back.",
            hint="x-{i:06d}.tar; --only PART; plain shards for --mix, and for --slice with --interleave.",
        )
    tally = Tally()
    shards = select.of_each(streams.shards(), tally)
    ways = ordering.interleave
    if ways > 1:  # chosen first, as with an index; --slice, which counts all samples, is refused above
        samples = _in_turn((select.of_all(shard, tally) for shard in shards), ways)
    else:
        samples = select.of_all(chain.from_iterable(shards), tally)
    if ordering.shuffle:
        rng = random.Random(make_seed("copy", ordering.seed))
        samples = buffer_shuffle(samples, ordering.buffer, ordering.buffer, rng)
    facts = facts | {"buffer": ordering.buffer} if ordering.shuffle else facts
    more: dict[str, Any] = {"options": facts, "read": streams.urls, "tally": tally, "select": select}
    return rewrite_stream("copy", select.cut(samples, tally), output, run=run, **more)


def _in_turn(shards: Iterator[Iterator[Sample]], ways: int) -> Iterator[Sample]:
    """One sample of each of so many shards in turn; a shard that ends is followed by the next one."""
    now: list[tuple[Sample, Iterator[Sample]]] = []  # each with the sample it is about to give
    while True:
        while len(now) < ways and (shard := next(shards, None)) is not None:
            now += [(first, shard) for first in islice(shard, 1)]
        if not now:
            return
        yield from (sample for sample, _ in now)
        now = [(following, shard) for _, shard in now for following in islice(shard, 1)]
