"""The steps of the demo: draw, pack, check, read, train, split; then what was made and how fast."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

import tarmac
from demo.pictures import KINDS, draw

__all__ = ["Step", "run"]

BATCH = 64

Sample = dict[str, Any]
Bar = Callable[[str, Iterable[Any], int], Iterable[Any]]
"""Shows progress through a number of items."""


@dataclass(frozen=True)
class Step:
    """The samples, bytes and seconds of one step."""

    name: str
    samples: int
    size: int
    seconds: float


@dataclass
class Clock:
    """Notes each step with the time since the one before."""

    steps: list[Step] = field(default_factory=list)
    since: float = field(default_factory=time.perf_counter)

    def note(self, name: str, samples: int, size: int) -> None:
        """End a step."""
        now = time.perf_counter()
        self.steps.append(Step(name, samples, size, now - self.since))
        self.since = now


def run(out: Path, samples: int, shards: int, console: Console) -> list[Step]:
    """Make the dataset under `out`, read it back, and print what happened."""

    def bar(name: str, items: Iterable[Any], total: int) -> Iterable[Any]:
        return track(items, name.ljust(9), total, console=console)

    urls = f"{out}/demo-*.tar"
    clock = Clock()
    drawn = draw_pictures(samples, bar)
    clock.note("draw and encode", len(drawn), sum(len(sample["jpg"]) for sample in drawn))
    clock.note("pack into shards", len(drawn), pack(drawn, out, shards, bar))
    clock.note("check every byte", *check_all(urls))
    classes, size = read_batches(urls, samples, bar)
    clock.note(f"read, decode, batch by {BATCH}", classes.total(), size)
    clock.note("exact epoch, stopped, resumed on two ranks", *train(f"{out}/demo.json", samples, bar))
    clock.note("shuffle, split into train and val", *split(urls, out))
    summarise(out, clock.steps, classes, console)
    return clock.steps


def draw_pictures(count: int, bar: Bar) -> list[Sample]:
    """Draw the samples; most of it is work that leaves Python's lock alone, so threads share it."""
    with ThreadPoolExecutor() as pool:
        return list(bar("drawing", pool.map(draw, range(count)), count))


def pack(samples: list[Sample], out: Path, shards: int, bar: Bar) -> int:
    """Write the samples to `count` shards, replacing those of an earlier run; return their size."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("demo-*.tar*"):
        old.unlink()
    per_shard = -(-len(samples) // shards)
    manifest = f"{out}/demo.json"
    with tarmac.ShardWriter(f"{out}/demo-%06d.tar", max_samples=per_shard, index=manifest) as writer:
        return sum(writer.write(sample) for sample in bar("packing", samples, len(samples)))


def check_all(urls: str) -> tuple[int, int]:
    """Read every byte of the shards; return the number of intact samples and bytes."""
    report = tarmac.check(urls, require=["jpg", "cls"])
    for shard in report.bad:
        assert shard.error is not None
        raise shard.error
    return sum(shard.samples for shard in report.shards), sum(shard.payload for shard in report.shards)


def read_batches(urls: str, count: int, bar: Bar) -> tuple[Counter[str], int]:
    """Read batches of images and labels, as for training; returns pictures per class, and pixel bytes."""
    kinds = list(KINDS)
    classes = Counter[str]()
    size = 0
    with ThreadPoolExecutor() as pool:
        for batch in bar("reading", _batches(tarmac.read(urls, fields=["jpg", "cls"])), -(-count // BATCH)):
            images = list(pool.map(_pixels, batch))  # height x width x 3 each; sizes differ
            labels = [int(sample["cls"]) for sample in batch]
            classes.update(kinds[label] for label in labels)
            size += sum(image.nbytes for image in images)
    return classes, size


def train(manifest: str, count: int, bar: Bar) -> tuple[int, int]:
    """Half of an exact epoch alone, the rest of it on two ranks; returns samples and pixel bytes."""
    pictures = tarmac.Dataset(manifest).decode("rgb8").to_tuple("__key__", "jpg")
    seen = Counter[str]()
    size = 0

    def loader(**options: Any) -> tarmac.Loader:
        return tarmac.Loader(pictures, BATCH // 2, seed=1, tail="short", collate=list, **options)

    def take(batches: Iterable[Any]) -> None:
        nonlocal size
        for batch in batches:
            seen.update(key for key, _ in batch)
            size += sum(image.nbytes for _, image in batch)

    alone = loader()
    steps = len(alone) // 2
    with closing(iter(alone)) as batches:  # type: ignore[type-var]
        take(bar("training", islice(batches, steps), steps))
    state = alone.state_dict()
    for rank in range(2):
        half = loader(rank=rank, world_size=2)
        half.load_state_dict(state)
        take(half)
    if seen != Counter(pictures.keys()) or seen.total() != count:
        raise RuntimeError("a sample was lost or came twice")
    return count, size


def split(urls: str, out: Path) -> tuple[int, int]:
    """Shuffle all samples and split them nine to one, as `tarmac copy` does; returns samples and bytes."""
    for old in out.glob("split/*.tar"):
        old.unlink()
    done = tarmac.copy(
        urls,
        f"{out}/split/{{split}}-{{i:03d}}.tar",
        max_samples=1000,
        split={"train": 0.9, "val": 0.1},
        shuffle=True,
        overwrite=True,
    )
    return done.written, done.bytes


def _batches(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    rest = iter(samples)
    while batch := list(islice(rest, BATCH)):
        yield batch


def _pixels(sample: Sample) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(sample["jpg"])
    return pixels


def _beside_python(name: str) -> str:
    """How to call a program of this environment, which a newcomer has not put on the path."""
    program = Path(sys.executable).with_name(name)
    here = Path.cwd()
    return str(program.relative_to(here) if program.is_relative_to(here) else program)


def summarise(out: Path, steps: list[Step], classes: Counter[str], console: Console) -> None:
    """Print what was made, how fast, what is in it, and what to try next."""
    shards = sorted(out.glob("demo-*.tar"))
    size = sum(shard.stat().st_size for shard in shards) / 1e6
    console.print(f"\n{classes.total():,} samples in {len(shards)} shards, {size:.1f} MB, in {out}/\n")

    rates = Table("step", box=None, pad_edge=False)
    for heading in ("seconds", "samples/s", "MB/s"):
        rates.add_column(heading, justify="right")
    for step in steps:
        samples, megabytes = step.samples / step.seconds, step.size / 1e6 / step.seconds
        rates.add_row(step.name, f"{step.seconds:.2f}", f"{samples:,.0f}", f"{megabytes:,.0f}")
    console.print(rates)

    histogram = Table("class", "", box=None, pad_edge=False)
    histogram.add_column("pictures", justify="right")
    for kind in KINDS:
        bar = "█" * round(30 * classes[kind] / max(classes.values()))
        histogram.add_row(kind, f"[cyan]{bar}[/]", str(classes[kind]))
    console.print("", histogram)

    tarmac_command = _beside_python("tarmac")
    console.print("\nTry next:")
    for command in (
        f"{tarmac_command} show '{out}/demo-*.tar' -n 5",
        f"{tarmac_command} show '{out}/demo-*.tar' --sheet {out}/sheet.png -n 48",
        f"{tarmac_command} check '{out}/demo-*.tar' --require jpg,cls --decode",
        f"{tarmac_command} export '{out}/split/val-*.tar' --to parquet -o {out}/val.parquet",
        f"{tarmac_command} audit {out}/demo.json --batch-size 64 --world-size 4 --verify",
        f"tar tvf {shards[0]} | head",
    ):
        console.print(f"  {command}", highlight=False, soft_wrap=True)
