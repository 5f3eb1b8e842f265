"""Jobs: what a unit costs besides its work, what a second process gains, augmentation on a Dask cluster, and
how long it takes to say how far a job is.

The empty units run beside datatrove, which `make bench` installs in an environment of its own, .tools/datatrove.
Clusters of two workers are up before the clock starts. Empty units count all that the first job on them sets up; the
workers that augment have imported what both sides need, because torch would take longer than many shards.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import data
from bench.registry import Done, Site, Work, case
from tarmac.jobs.task import Outcome, Task, Unit

UNITS = 1000
LISTED, WRITERS = 10_000, 100
"""Units of the job whose status is asked, and the processes that did them."""
WORKERS = 2
SHARDS = 8
AUGMENTED_SHARDS = 55
"""A tenth of the shards of OpenImages."""
CROP = 224
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DATATROVE = Path(__file__).parents[2] / ".tools" / "datatrove" / "bin" / "python"
_DATATROVE = """
import sys, tempfile, time
from datatrove.executor import LocalPipelineExecutor

def nothing(data, rank=0, world_size=1):
    pass

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[3]) as logs:
        tasks, workers = int(sys.argv[1]), int(sys.argv[2])
        executor = LocalPipelineExecutor([nothing], tasks=tasks, workers=workers, logging_dir=logs)
        begin = time.perf_counter()
        executor.run()
        print(time.perf_counter() - begin)
"""


@dataclass
class Empty(Task):
    """Units that do nothing."""

    units: int
    verb = "bench"

    def plan(self) -> list[Unit]:
        return [Unit(f"{number:06d}") for number in range(self.units)]

    def run(self, unit: Unit) -> Outcome:
        return Outcome()


def empty_units(site: Site, engine: str, workers: int) -> Work:
    """Run a job with a ledger in a directory, by an engine that has all it needs."""
    from tarmac.jobs.engines import make_engine
    from tarmac.jobs.run import run_job

    count = min(UNITS, site.small)

    def work() -> Done:
        with temporary(site) as target, cluster(engine) as note:
            begin = time.perf_counter()
            report = run_job(
                Empty(count), make_engine(engine, workers), ledger=f"{target}/x.job", progress=False
            )
            seconds = time.perf_counter() - begin
        lost = "" if report.done == count else f"{report.done} of {count} units were run"
        return Done(count, seconds, note, lost)

    return work


def in_datatrove(site: Site, workers: int) -> Work:
    """The same number of tasks that do nothing, with its records of what is complete, and its logs."""
    count = min(UNITS, site.small)

    def work() -> Done:
        with temporary(site) as target:
            script = target / "empty_tasks.py"  # a file: its processes import the main program
            script.write_text(_DATATROVE)
            command = [DATATROVE, script, str(count), str(workers), target]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            return Done(count, float(done.stdout.split()[-1]))

    return work


@contextlib.contextmanager
def temporary(site: Site) -> Iterator[Path]:
    site.data.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="job-", dir=site.data))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def cluster(engine: str) -> Iterator[str]:
    """Have a cluster up that the engine uses; yield how long that took."""
    begin = time.perf_counter()
    with {"dask": dask_cluster, "ray": ray_cluster}.get(engine, contextlib.nullcontext)():
        started = time.perf_counter() - begin
        yield "" if engine == "local" else f"cluster started in {started:.1f} s"


@contextlib.contextmanager
def dask_cluster() -> Iterator[Any]:
    import distributed

    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
        distributed.LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, processes=True, host="127.0.0.1",
            dashboard_address="127.0.0.1:0", memory_limit=0, local_directory=scratch,
        ) as running,
        distributed.Client(running) as client,
    ):  # fmt: skip
        yield client


@contextlib.contextmanager
def ray_cluster() -> Iterator[None]:
    import logging

    from tarmac.environment import keep_ray_on_loopback

    keep_ray_on_loopback()
    import ray

    settings = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    ray.init("local", num_cpus=WORKERS, object_store_memory=128 << 20, **settings)
    try:
        yield
    finally:
        ray.shutdown()


@case("1,000 empty units", sides=("tarmac", "datatrove"), ratio=10, limit=0.001)
def empty_in_one(site: Site, side: str) -> Work:
    return in_datatrove(site, 1) if side == "datatrove" else empty_units(site, "local", 1)


@case("1,000 empty units, two processes", sides=("tarmac", "datatrove"), ratio=10, limit=0.001)
def empty_in_two(site: Site, side: str) -> Work:
    return in_datatrove(site, 2) if side == "datatrove" else empty_units(site, "local", 2)


@case("1,000 empty units, Dask", sides=("tarmac",), limit=0.010)
def empty_in_dask(site: Site, _: str) -> Work:
    return empty_units(site, "dask", WORKERS)


@case("1,000 empty units, Ray", sides=("tarmac",), limit=0.010)
def empty_in_ray(site: Site, _: str) -> Work:
    return empty_units(site, "ray", WORKERS)


def smaller(sample: dict[str, Any]) -> dict[str, Any]:
    """Decode a picture, resize it, encode it: work for the processor."""
    import PIL.Image

    picture = PIL.Image.open(io.BytesIO(sample["jpg"])).convert("RGB").resize((256, 192), PIL.Image.LANCZOS)
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return {"__key__": sample["__key__"], "png": stream.getvalue(), "cls": sample["cls"]}


@case("map with a slow function, two processes", sides=("tarmac", "one process"), ratio=1.8)
def mapping(site: Site, side: str) -> Work:
    """On two cores that nothing else uses, 2 would be perfect."""
    import tarmac

    shards = [site.data / name for name in data.linked_photos(quarter(site), SHARDS, index=True)]

    def work() -> Done:
        with temporary(site) as target:
            jobs = 2 if side == "tarmac" else 1
            begin = time.perf_counter()
            report = tarmac.map(shards, f"{target}/", smaller, jobs=jobs, progress=False)
            return Done(report.written, time.perf_counter() - begin)

    return work


def quarter(site: Site) -> Site:
    return replace(site, big=max(site.big // 4, 1))


def normalized(pixels: Any) -> Any:
    """ToTensor and Normalize of torchvision, then the stretch from 0 to 1: the same code for both sides."""
    import numpy as np

    image = (np.asarray(pixels, np.float32) / 255 - np.float32(MEAN)) / np.float32(DEVIATION)
    image -= np.amin(image)
    image /= np.amax(image)
    return image


def augment(sample: dict[str, Any]) -> dict[str, Any]:
    """The augmentation of the notebook, for `tarmac map`."""
    import tarmac

    crop = tarmac.RandomResizedCrop(CROP)  # mirrors, too
    pixels = crop.transform(sample["jpg"], random.Random(sample["__key__"]))
    return {"__key__": sample["__key__"], "png": normalized(pixels), "cls": 0}


def preproc(picture: Any) -> Any:
    """RandomResizedCrop and RandomHorizontalFlip as torchvision does them with pictures of Pillow."""
    import PIL.Image

    from tarmac.steps.pictures import random_box

    box = random_box(*picture.size, (0.08, 1.0), (3 / 4, 4 / 3), random)
    picture = picture.crop(box).resize((CROP, CROP), PIL.Image.BILINEAR)
    if random.random() < 0.5:
        picture = picture.transpose(PIL.Image.FLIP_LEFT_RIGHT)
    return normalized(picture)


def augment_wds(source: str, output: str) -> None:
    """The function of webdataset's notebook, without its `print`."""
    import webdataset as wds

    samples = wds.DataPipeline(
        wds.SimpleShardList(source),
        wds.tarfile_to_samples(),
        wds.decode("pil"),
        wds.to_tuple("__key__", "jpg;png", "cls"),
        wds.map_tuple(None, preproc, None),
    )
    with wds.TarWriter(output) as target:
        for key, image, _ in samples:
            target.write({"__key__": key, "png": image, "cls": 0})


def import_all() -> None:
    """Import what either side imports, so that neither waits for it."""
    for name in (
        "webdataset",
        "torch",
        "numpy",
        "PIL.Image",
        "pyarrow.ipc",
        "simplejpeg",
        "tarmac.tools.map.verb",
    ):
        importlib.import_module(name)


@case("augment 55 shards on Dask", sides=("tarmac", "dask.delayed"), ratio=2)
def augmenting(site: Site, side: str) -> Work:
    """`tarmac map` beside a task of Dask for each shard that runs the webdataset library."""
    import tarmac

    names = data.linked_photos(site, AUGMENTED_SHARDS, index=True)
    shards = [str(site.data / name) for name in names]
    count = len(shards) * (site.big // len(shards))

    def with_tarmac(target: Path) -> None:
        tarmac.map(shards, f"{target}/", augment, engine="dask", progress=False)

    def with_delayed(target: Path) -> None:
        import dask

        outputs = [f"{target}/{os.path.basename(shard)}" for shard in shards]
        results = [dask.delayed(augment_wds)(*each) for each in zip(shards, outputs, strict=True)]
        dask.compute(*results)

    def work() -> Done:
        with temporary(site) as target, dask_cluster() as client:
            client.run(import_all)
            begin = time.perf_counter()
            (with_tarmac if side == "tarmac" else with_delayed)(target)
            seconds = time.perf_counter() - begin
            written = len(list(tarmac.read(f"{target}/*.tar")))
            size = sum(path.stat().st_size for path in target.glob("*.tar"))
        lost = "" if written == count else f"{written} of {count} samples came out"
        return Done(count, seconds, f"{side}: {size / 1e6:.0f} MB", lost)

    return work


@case("augment without a job", sides=("tarmac", "dask.delayed"))
def augmenting_alone(site: Site, side: str) -> Work:
    """The functions of both sides and their encoding, in one process: what a job with no costs would gain."""
    import PIL.Image

    from tarmac.codecs.encode import find_encoder

    encode = find_encoder("png")
    pictures = [
        sample["jpg"] for sample in data.photo_samples(replace(site, big=min(quarter(site).big, 400)))
    ]

    def with_tarmac(picture: bytes) -> bytes:
        return encode(augment({"__key__": "0", "jpg": picture})["png"])

    def with_webdataset(picture: bytes) -> bytes:
        from webdataset.writer import imageencoder

        return bytes(imageencoder(preproc(PIL.Image.open(io.BytesIO(picture)).convert("RGB")), "png"))

    def work() -> Done:
        function = with_tarmac if side == "tarmac" else with_webdataset
        begin = time.perf_counter()
        size = sum(len(function(picture)) for picture in pictures)
        seconds = time.perf_counter() - begin
        return Done(len(pictures), seconds, f"{side}: {size / len(pictures) / 1e3:.0f} KB each")

    return work


@case("jobs status, 10,000 units", sides=("tarmac",), limit=1.0, repeat=3)
def job_status(site: Site, side: str) -> Work:
    """Read the ledger of 10,000 units, written by a hundred processes."""
    from tarmac.jobs.journal import Journal
    from tarmac.jobs.ledger import open_ledger
    from tarmac.tools.jobs import status

    output = site.data / "jobs"
    if not output.exists():
        names = [f"{output}/x-{number:06d}.tar" for number in range(LISTED)]
        ledger = open_ledger(str(output / ".tarmac" / "map.job"), "map", {})
        ledger.begin(names)
        assert ledger.journal is not None
        for writer in range(WRITERS):
            for name in names[writer::WRITERS]:
                ledger.journal.record(Unit(name), Outcome(1000, 1000, outputs={name: 1}, seconds=1.0))
            Journal(ledger.journal.url).close()  # the next one begins a file
        ledger.close()

    def work() -> Done:
        (job,) = status(output)
        return Done(fault="" if job.done == LISTED else f"{job.done} units are done")

    return work
