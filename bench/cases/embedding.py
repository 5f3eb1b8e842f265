"""Embedding on two cores: captions beside SentenceTransformer.encode, captions and pictures beside the model alone, and
pictures beside the way of clip-retrieval.

What a job takes for a few samples is its start-up, which loads torch and the model in each process. That is subtracted
and printed. The other sides load before the clock starts. tarmac reads shards and writes vectors; SentenceTransformer
has its texts in memory, and the model alone has tokens or pixels. Beside the way of clip-retrieval both sides load the
model while the clock runs, and memory is that of all their processes.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import data, texts
from bench.cases.jobs import temporary
from bench.cases.tokens import timed
from bench.embedders import BATCH, EfficientNet, sentence_model
from bench.processes import watching_memory
from bench.registry import Done, Site, Work, case

FEW = 8
"""Pictures of the job whose duration counts as start-up."""
PICTURES = f"{Path(__file__).parents[1] / 'embedders.py'}:EfficientNet"


def captions(site: Site) -> texts.Kind:
    return texts.Kind("captions", 60, min(10_000, site.small // 5))


def read(site: Site, part: str = "all-*") -> list[str]:
    import tarmac

    pattern = str(captions(site).path(site, part, "tar"))
    return [sample["txt"].decode() for sample in tarmac.read(pattern)]


def with_tarmac(site: Site) -> Work:
    kind = captions(site)
    options = {"model": f"sentence:{sentence_model()}", "text": "txt"}
    few, many = (str(kind.path(site, part, "json")) for part in ("start", "all"))
    return job(site, few if kind.count > texts.STARTING else "", many, options)


def job(site: Site, few: Any, many: Any, options: dict[str, Any]) -> Work:
    """Embed many samples; the time for a few, if there are any, is that of the start."""
    import tarmac

    def embed(source: Any, target: Path) -> Any:
        return tarmac.embed(source, target, jobs=2, progress=False, **options)

    def work() -> Done:
        with temporary(site) as target:
            start = timed(lambda: embed(few, target / "few"))[0] if few else 0.0
            seconds, report = timed(lambda: embed(many, target / "many"))
        spent = ", ".join(
            f"{name[8:]} {n} s" for name, n in report.notes.items() if name.startswith("seconds_")
        )
        return Done(report.written, max(seconds - start, 1e-9), f"start-up {start:.1f} s; {spent}")

    return work


def with_sentence_transformers(site: Site) -> Work:
    from sentence_transformers import SentenceTransformer

    model, listed = SentenceTransformer(sentence_model(), device="cpu"), read(site)
    model.encode(listed[:BATCH])

    def work() -> Done:
        return Done(len(model.encode(listed, normalize_embeddings=True, show_progress_bar=False)))

    return work


def alone(encode: Callable[..., None], parts: list[Any]) -> Work:
    """The model on what is prepared and in memory, in a process for each part."""

    def work() -> Done:
        context = multiprocessing.get_context("spawn")
        ready, results = context.Barrier(len(parts)), context.SimpleQueue()
        processes = [context.Process(target=encode, args=(part, ready, results)) for part in parts]
        for each in processes:
            each.start()
        counts, starts, ends = zip(*(results.get() for _ in processes), strict=True)
        for each in processes:
            each.join()
        return Done(sum(counts), max(ends) - min(starts))

    return work


def encode_captions(listed: list[str], ready: Any, results: Any) -> None:
    """Encode captions by the model of tarmac, sorted by length."""
    model = _loaded(f"sentence:{sentence_model()}")
    _encode(model.encode_texts, sorted(model.prepare_texts(listed), key=len), ready, results)


def encode_pictures(shard: str, ready: Any, results: Any) -> None:
    """Encode pictures by the model."""
    import tarmac

    model = _loaded(PICTURES)
    pixels = [model.prepare_image(sample["jpg"]) for sample in tarmac.read(shard)]
    _encode(model.encode_images, pixels, ready, results)


def _loaded(name: str) -> Any:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from tarmac.embedding.models.load import load_model, set_up

    torch.set_num_threads(1)
    return set_up(load_model(name), "cpu")


def _encode(encode: Callable[[Any], Any], prepared: list[Any], ready: Any, results: Any) -> None:
    encode(prepared[:BATCH])
    ready.wait()
    begin = time.perf_counter()
    for start in range(0, len(prepared), BATCH):
        encode(prepared[start : start + BATCH])
    results.put((len(prepared), begin, time.perf_counter()))


@case("embed captions", sides=("tarmac", "SentenceTransformer"), ratio=1.2)
def beside_sentence_transformers(site: Site, side: str) -> Work:
    texts.prepare(site, captions(site))
    return with_tarmac(site) if side == "tarmac" else with_sentence_transformers(site)


@case("embed captions, the model", sides=("tarmac", "model"), ratio=0.95)
def captions_beside_the_model(site: Site, side: str) -> Work:
    texts.prepare(site, captions(site))
    if side == "tarmac":
        return with_tarmac(site)
    return alone(encode_captions, [read(site, f"all-{number}") for number in range(texts.SHARDS)])


@case("embed pictures, the model", sides=("tarmac", "model"), ratio=0.95)
def pictures_beside_the_model(site: Site, side: str) -> Work:
    shards = list(map(str, data.photo_shards(site, 2)))
    if side == "model":
        return alone(encode_pictures, shards)
    few = data.photo_shards(replace(site, big=min(site.big, FEW)), 2)
    return job(site, list(map(str, few)), shards, {"model": PICTURES, "image": "jpg"})


@case("embed pictures", sides=("tarmac", "clip-retrieval's way"))
def pictures(site: Site, side: str) -> Work:
    """Of clip-retrieval's way: webdataset and a DataLoader with one worker, and all vectors written at the end."""
    shards = list(map(str, data.photo_shards(site, 2)))
    work = pictures_with_tarmac if side == "tarmac" else pictures_with_webdataset

    def measured() -> Done:
        with temporary(site) as target, watching_memory() as peak:
            count, bytes_ = work(site, shards, target)
        return Done(count, note=f"{bytes_ / 1e6:.0f} MB written, peak {peak.bytes / 1e6:.0f} MB")

    return measured


def pictures_with_tarmac(site: Site, shards: list[str], target: Path) -> tuple[int, int]:
    import tarmac

    report = tarmac.embed(shards, target, model=PICTURES, image="jpg", jobs=2, progress=False)
    return report.written, report.bytes


def pictures_with_webdataset(site: Site, shards: list[str], target: Path) -> tuple[int, int]:
    import numpy as np
    import torch
    import webdataset as wds

    model = EfficientNet()
    model.setup("cpu")
    dataset = wds.WebDataset(shards, shardshuffle=False).decode("pil").to_tuple("jpg", "__key__")
    dataset = dataset.map_tuple(_squared, str)
    vectors, keys = [], []
    with torch.inference_mode():
        for pixels, own in torch.utils.data.DataLoader(dataset, batch_size=BATCH, num_workers=1):
            result = model.encode_tensor(pixels)
            vectors.append(torch.nn.functional.normalize(result).half().numpy())
            keys += own
    np.save(target / "img_emb_0.npy", np.concatenate(vectors))
    return len(keys), os.path.getsize(target / "img_emb_0.npy")


def _squared(picture: Any) -> Any:
    """Do what the transforms of CLIP do: bicubic, with the shorter side at the size, and the middle of it."""
    import numpy as np
    from PIL import Image

    scale = 224 / min(picture.size)
    width, height = (round(side * scale) for side in picture.size)
    resized = picture.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - 224) // 2, (height - 224) // 2
    return np.array(resized.crop((left, top, left + 224, top + 224)))  # which torch may write to
