"""Make shards from the samples of a function: they come once, in order, so they are written in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from tarmac.codecs import Encoder, encode_field, find_encoder
from tarmac.display import identity
from tarmac.errors import MissingField, TarmacError, UrlError
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome
from tarmac.samples.grouping import Sample
from tarmac.tools.map.functions import load_function
from tarmac.tools.output import Output, fields_of
from tarmac.tools.pack.pack import Making, check_sample, with_default_size
from tarmac.tools.pack.sources.generator import generated
from tarmac.tools.rewrite import Run
from tarmac.tools.rewrite_stream import rewrite_stream

__all__ = ["pack_function"]


def pack_function(
    spec: str, arguments: Sequence[str], output: Output, run: Run, *, making: Making | None = None
) -> Report:
    """Pack what `module:function` gives when it is called with these arguments."""
    making = making or Making()
    output = with_default_size(output)
    if making.shuffle or making.part or making.total_shards > 1 or output.by_shard:
        raise UrlError("samples of a function come as they come: no --shuffle, --part, --shard-id, {name}.")
    function = load_function(spec)

    def samples(_: Any, outcome: Outcome) -> Iterator[Sample]:
        return _encoded(generated(function, arguments), making, outcome)

    options = {"py": spec, "arguments": [identity(each) for each in arguments]} | making.options()
    return rewrite_stream("pack", iter(()), output, samples, options=options, run=run)


@lru_cache(maxsize=1000)
def _encoder(name: str) -> Encoder:
    return find_encoder(name)


def _encoded(samples: Iterator[dict[str, Any]], making: Making, outcome: Outcome) -> Iterator[Sample]:
    """Samples as bytes; what cannot be written is an error, or counted."""
    for sample in samples:
        outcome.read += 1
        key = sample["__key__"]
        try:
            made: Sample = {"__key__": key}
            for name, value in fields_of(sample).items():
                made[name] = encode_field(name, value, _encoder(name), key)
            check_sample(made)
            lacking = making.require - {name.lower() for name in made}
            if lacking:
                raise MissingField(f"the sample has no {', '.join(sorted(lacking))}.", key=key)
        except TarmacError as error:
            if making.on_error == "abort":
                raise
            outcome.fail(str(error.at(key=key)))
        else:
            yield made
