"""Pack samples that Python code generates: they can be read only once, and are written in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from tarmac.codecs import Encoder, encode_field, find_encoder
from tarmac.display import identity
from tarmac.errors import JobError, TarmacError, UsageError
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome
from tarmac.samples.grouping import Sample
from tarmac.tools.map.functions import load_function
from tarmac.tools.options import Run
from tarmac.tools.output import Output, fields_of
from tarmac.tools.pack.job import PackOptions, check_sample, lacks_fields
from tarmac.tools.rewrite import rewrite_samples
from tarmac.tools.select import missing_fields

Samples = Iterable[Mapping[str, Any]]


def pack_samples(
    function: str | Callable[..., Samples] | Samples,
    arguments: Sequence[str],
    output: Output,
    run: Run,
    options: PackOptions,
) -> Report:
    """Pack the samples of an iterable, or those that a function returns for these arguments."""
    if options.shuffle or options.select.shares or output.by_shard:
        raise UsageError(
            "generated samples are written in order: `shuffle`, `split` and {name} do not apply."
        )
    generate: Callable[..., Samples]
    if isinstance(function, str):
        name, generate = function, load_function(function)
    elif callable(function):
        name, generate = f"{function.__module__}:{getattr(function, '__qualname__', function)}", function
    else:
        name, generate = "samples", partial(iter, function)

    def encoded(_: Any, outcome: Outcome) -> Iterator[list[Sample]]:
        return ([sample] for sample in _encoded(_generated(generate, arguments), options, outcome))

    facts = {"py": name, "arguments": [identity(each) for each in arguments]} | options.options()
    return rewrite_samples("pack", iter(()), output, run, encoded, options=facts)


def _generated(
    function: Callable[..., Iterable[Any]], arguments: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    try:
        for number, sample in enumerate(function(*arguments)):
            key = sample.get("__key__") if isinstance(sample, Mapping) else None
            if not isinstance(key, str):
                raise JobError(f"sample {number}: expected a dictionary with a string as __key__.")
            yield sample
    except TarmacError:
        raise
    except (Exception, SystemExit) as error:  # the function ends itself, not the command
        raise JobError(f"the function failed: {type(error).__name__}: {error}.") from error


@lru_cache(maxsize=1000)
def _encoder(name: str) -> Encoder:
    return find_encoder(name)


def _encoded(
    samples: Iterator[Mapping[str, Any]], options: PackOptions, outcome: Outcome
) -> Iterator[Sample]:
    """Encode samples; count those that fail, or raise."""
    for sample in samples:
        outcome.read += 1
        key = sample["__key__"]
        try:
            result: Sample = {"__key__": key}
            for name, value in fields_of(dict(sample)).items():
                result[name] = encode_field(name, value, _encoder(name), key)
            if missing := missing_fields(options.required, {name.lower() for name in result}):
                raise lacks_fields(missing, key=key)
            if (chosen := options.choose(result)) is None:
                outcome.dropped += 1
                continue
            check_sample(chosen, options.split_name)
        except TarmacError as error:
            if options.on_error == "abort":
                raise
            outcome.fail(str(error.at(key=key)))
        else:
            yield chosen
