"""Reading raw samples: local files, HTTP, compressed shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

from bench import data
from bench.cases.indexed import litdata_reading
from bench.registry import Done, Site, Work, case

PYTHON_ALONE = "tarmac without tarmac-native"


def reader(side: str) -> Callable[[str], Iterable[dict[str, Any]]]:
    """Import a library, and return how its users read a shard."""
    if side in ("tarmac", PYTHON_ALONE):
        from tarmac import read

        return read
    from webdataset import WebDataset

    return lambda url: WebDataset(url, shardshuffle=False)


def reading(side: str, url: object, samples: int) -> Work:
    read = reader(side)

    def work() -> Done:
        count = sum(1 for _ in read(str(url)))
        return Done(count, fault="" if count == samples else f"{count} samples instead of {samples}")

    return work


@case("read 800 B text + class", ratio=12)
def small(site: Site, side: str) -> Work:
    return reading(side, data.small_shard(site), site.small)


@case("the same, in C beside Python alone", sides=("tarmac", PYTHON_ALONE), ratio=2)
def small_in_c(site: Site, side: str) -> Work:
    from tarmac.samples import native

    work = reading(side, data.small_shard(site), site.small)

    def without() -> Done:
        with mock.patch.object(native, "_native", return_value=None):  # as if it were not installed
            return work()

    return work if side == "tarmac" else without


@case("the same without an index, beside litdata's own format", sides=("tarmac", "litdata"), ratio=1.5)
def small_beside_litdata(site: Site, side: str) -> Work:
    if side == "litdata":
        return litdata_reading(site)
    return reading(side, data.small_shard(site), site.small)


@case("read the same, written by webdataset")
def small_of_webdataset(site: Site, side: str) -> Work:
    return reading(side, data.small_shard_of_webdataset(site), site.small)


@case("read 80 KB JPEG + JSON", ratio=5)
def big(site: Site, side: str) -> Work:
    return reading(side, data.big_shard(site), site.big)


@case("read 80 KB JPEG + JSON over HTTP", ratio=2, needs=("nginx", "curl"))
def big_over_http(site: Site, side: str) -> Work:
    return reading(side, f"{site.http}/{data.big_shard(site).name}", site.big)


@case("read 800 B text + class, gz")
def small_gz(site: Site, side: str) -> Work:
    return reading(side, data.small_shard(site, "tar.gz"), site.small)


@case("read 800 B text + class, zst", sides=("tarmac",))
def small_zst(site: Site, side: str) -> Work:
    return reading(side, data.small_shard(site, "tar.zst"), site.small)
