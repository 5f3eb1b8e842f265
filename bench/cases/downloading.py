"""Downloading pictures of a local nginx, beside img2dataset, which `make bench` installs in .tools/img2dataset.

Both write shards in the WebDataset convention, resize the shorter side, encode at quality 95, hash with SHA-256 and
read EXIF. Each side downloads a short list and a long one, and the difference counts, so that start-up is left out. CPU
time is that of the whole process tree, without nginx. img2dataset runs with its best number of threads.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench import data
from bench.registry import Done, Site, Work, case

SHORT, LONG = 200, 1200
PICTURES = 24
THREADS = (32, 64, 128)
IMG2DATASET = Path(__file__).parents[2] / ".tools" / "img2dataset" / "bin" / "img2dataset"
PSNR = 38.0
SIZES = {(1600, 1200): 384, (500, 375): 256}
RATIOS = {(1600, 1200): (1.7, 1 / 0.65), (500, 375): (1.25, 1 / 0.85)}
"""Pictures per second, and per second of CPU time."""


def photo(width: int, height: int, seed: int) -> bytes:
    """Return a picture with the spectrum of natural ones, whose amplitude falls with the frequency."""
    from PIL import Image

    random = np.random.default_rng(seed)
    down, across = np.meshgrid(np.fft.fftfreq(height), np.fft.rfftfreq(width), indexing="ij")
    falls = 1 / np.maximum(np.hypot(down, across), 1 / max(width, height)) ** 1.5

    def plane(power: float) -> np.ndarray:
        waves = falls**power * np.exp(2j * np.pi * random.random(falls.shape))
        values = np.fft.irfft2(waves, (height, width))
        return values / values.std()

    grey = plane(1.0)
    image = np.stack([grey + 0.3 * plane(1.3) for _ in range(3)], 2)
    stream = io.BytesIO()
    Image.fromarray(np.clip(128 + 45 * image, 0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def pictures(site: Site, size: tuple[int, int]) -> Path:
    """Make the pictures once."""
    count = min(PICTURES, site.big)
    folder = site.data / f"web-{size[0]}x{size[1]}-{count}-v{data.VERSION}"
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for number in range(count):
            (part / f"{number}.jpg").write_bytes(photo(*size, number))
        part.rename(folder)
    return folder


def table(site: Site, folder: Path, count: int, target: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kept = len(list(folder.iterdir()))
    urls = [f"{site.http}/{folder.name}/{number % kept}.jpg?{number}" for number in range(count)]
    captions = [f"picture {number}" for number in range(count)]
    path = target / f"links-{count}.parquet"
    pq.write_table(pa.table({"url": urls, "caption": captions}), path)
    return path


def with_tarmac(links: Path, output: Path, size: int) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "tarmac",
        "download",
        str(links),
        "-o",
        f"{output}/",
        "--caption",
        "caption",
    ]
    command += ["--size", str(size), "--digest", "sha256", "--quality", "95", "--rows-per-shard", "10000"]
    return [*command, "--allow-networks", "127.0.0.0/8", "--host-concurrency", "64"]


def with_img2dataset(links: Path, output: Path, size: int, threads: int) -> list[str]:
    command = [str(IMG2DATASET), f"--url_list={links}", f"--output_folder={output}", f"--image_size={size}"]
    command += ["--input_format=parquet", "--caption_col=caption", "--resize_mode=keep_ratio"]
    command += ["--output_format=webdataset", "--number_sample_per_shard=10000", "--encode_quality=95"]
    return [*command, f"--thread_count={threads}", "--processes_count=1", "--enable_wandb=False"]


def run(command: list[str]) -> tuple[float, float]:
    """Run a command; return its duration and the CPU time of it and its children."""
    with open(os.devnull, "r+b") as null:
        begin = time.perf_counter()
        actions = [(os.POSIX_SPAWN_DUP2, null.fileno(), number) for number in (0, 1, 2)]
        pid = os.posix_spawn(
            command[0], command, os.environ | {"WANDB_MODE": "disabled"}, file_actions=actions
        )
        _, status, usage = os.wait4(pid, 0)
        seconds = time.perf_counter() - begin
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")
    return seconds, usage.ru_utime + usage.ru_stime


def difference(site: Site, folder: Path, command) -> tuple[float, float, int]:
    """Return the seconds, the CPU seconds and the number of pictures that a long list has more than a short one."""
    import tarmac

    counts = min(SHORT, site.small), min(LONG, 2 * site.small)
    with tempfile.TemporaryDirectory(dir=site.data) as home:
        results = []
        for count in counts:
            links, output = table(site, folder, count, Path(home)), Path(home, f"out-{count}")
            results.append(run(command(links, output)))
            written = sum(1 for path in output.glob("*.tar") for _ in tarmac.read(str(path)))
            if written != count:
                raise RuntimeError(f"{written} of {count} pictures were written")
    (short, short_cpu), (long, long_cpu) = results
    return long - short, long_cpu - short_cpu, counts[1] - counts[0]


def psnr(folder: Path, size: int) -> float:
    """Return how near scaled decoding is to a full decode and averages of areas, in the worst of some pictures."""
    from PIL import Image

    from tarmac.downloading.images import Pictures, prepare

    worst = 100.0
    for path in list(folder.glob("*.jpg"))[:8]:
        both = [
            prepare(path.read_bytes(), Pictures(size=size, format="png", exact=exact))
            for exact in (False, True)
        ]
        fast, full = (np.asarray(Image.open(io.BytesIO(each.data))).astype(float) for each in both)
        worst = min(worst, 10 * np.log10(255**2 / max(((fast - full) ** 2).mean(), 1e-9)))
    return worst


def downloading(site: Site, side: str, size: tuple[int, int], *, cpu: bool) -> Work:
    folder, shorter = pictures(site, size), SIZES[size]

    def ours() -> Done:
        quality = psnr(folder, shorter)
        seconds, used, count = difference(site, folder, lambda *each: with_tarmac(*each, shorter))
        fault = f"{quality:.1f} dB, {PSNR:g} dB are required" if quality < PSNR else ""
        return Done(count, used if cpu else seconds, f"PSNR {quality:.1f} dB", fault)

    def theirs() -> Done:
        results = {}
        for threads in THREADS:
            results[threads] = difference(
                site, folder, lambda *each, number=threads: with_img2dataset(*each, shorter, number)
            )
        best = min(results, key=lambda threads: results[threads][int(cpu)])
        seconds, used, count = results[best]
        return Done(count, used if cpu else seconds, f"{best} threads")

    return ours if side == "tarmac" else theirs


def define(size: tuple[int, int], cpu: bool) -> None:
    what = "per CPU second" if cpu else "per second"
    name = f"download {size[0]}x{size[1]} to {SIZES[size]}, {what}"

    @case(name, sides=("tarmac", "img2dataset"), ratio=RATIOS[size][cpu], needs=("nginx", str(IMG2DATASET)))
    def setup(site: Site, side: str) -> Work:
        return downloading(site, side, size, cpu=cpu)


for _size in SIZES:
    for _cpu in (False, True):
        define(_size, _cpu)
