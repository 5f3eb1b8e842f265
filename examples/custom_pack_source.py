"""Pack samples from a source of your own: a class and one registration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tarmac
from tarmac.samples.grouping import Sample
from tarmac.tools.pack import Skipped, Source, SourceFormat, register_source


@dataclass
class Fasta(Source):
    """Sequences in a FASTA file: each is a sample, named in the line that begins with `>`."""

    url: str
    format = "fasta"

    def items(self, skipped: Skipped) -> Iterator[tuple[str, int, tuple[Any, ...]]]:
        """Plan all samples: yield the key, the size and the location of each."""
        for record in Path(self.url).read_text().split(">")[1:]:
            name, _, sequence = record.partition("\n")
            data = "".join(sequence.split()).encode()
            yield name.split()[0], len(data), (data,)

    @contextmanager
    def opened(self, locations: Sequence[tuple[Any, ...]], stats: Any) -> Iterator[Callable[..., Sample]]:
        """Yield a function that reads one of these samples, in a worker."""
        yield lambda key, location: {"__key__": key, "txt": location[0]}


# At the top level of the module, so that spawned worker processes register it, too.
register_source(SourceFormat("fasta", lambda url, options: Fasta(url), (".fasta", ".fa")))


def main() -> None:
    """Pack a file."""
    with TemporaryDirectory() as folder:
        Path(folder, "genes.fasta").write_text(">g1 first\nACGT\nAC\n>g2\nTTT\n")
        report = tarmac.pack(f"{folder}/genes.fasta", f"{folder}/x-{{i}}.tar", max_samples=1, jobs=2)
        print(report)
        for sample in tarmac.read(report.outputs):
            print(sample["__key__"], sample["txt"].decode())


if __name__ == "__main__":
    main()
