"""Embedding on two cores: captions beside SentenceTransformer.encode and beside the model alone, and pictures beside
the way of clip-retrieval.

What a job takes for a few captions is its start-up, which loads torch and the model in each process. That is subtracted
and printed. The other sides load before the clock starts. tarmac reads shards and writes vectors; SentenceTransformer
has its texts in memory, and the model alone has tokens.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from pathlib import Path
from typing import Any

from bench import data, texts
from bench.cases.jobs import temporary
from bench.cases.tokens import timed
from bench.embedders import BATCH, EfficientNet, sentence_model
from bench.measure import peak_memory
from bench.registry import Done, Site, Work, case

PICTURES = f"{Path(__file__).parents[1] / 'embedders.py'}:EfficientNet"


def captions(site: Site) -> texts.Kind:
    return texts.Kind("captions", 60, min(10_000, site.small // 5))


def read(site: Site, part: str = "all-*") -> list[str]:
    import tarmac

    pattern = str(captions(site).path(site, part, "tar"))
    return [sample["txt"].decode() for sample in tarmac.read(pattern)]


def with_tarmac(site: Site) -> Work:
    import tarmac

    kind, model = captions(site), f"sentence:{sentence_model()}"

    def embed(target: Path, part: str) -> Any:
        source = str(kind.path(site, part, "json"))
        return tarmac.embed(source, target / part, model=model, text="txt", jobs=2, progress=False)

    def work() -> Done:
        with temporary(site) as target:
            few = kind.count <= texts.STARTING
            start, _ = (0.0, None) if few else timed(lambda: embed(target, "start"))
            seconds, report = timed(lambda: embed(target, "all"))
        spent = ", ".join(
            f"{name[8:]} {n} s" for name, n in report.notes.items() if name.startswith("seconds_")
        )
        return Done(kind.count, max(seconds - start, 1e-9), f"start-up {start:.1f} s; {spent}")

    return work


def with_sentence_transformers(site: Site) -> Work:
    from sentence_transformers import SentenceTransformer

    model, listed = SentenceTransformer(sentence_model(), device="cpu"), read(site)
    model.encode(listed[:BATCH])

    def work() -> Done:
        return Done(len(model.encode(listed, normalize_embeddings=True, show_progress_bar=False)))

    return work


def alone(site: Site) -> Work:
    """The model of tarmac on tokens that are in memory, sorted by length, in two processes."""

    def work() -> Done:
        context = multiprocessing.get_context("spawn")
        ready, results = context.Barrier(texts.SHARDS), context.SimpleQueue()
        parts = [read(site, f"all-{number}") for number in range(texts.SHARDS)]
        processes = [context.Process(target=_encode, args=(part, ready, results)) for part in parts]
        for each in processes:
            each.start()
        starts, ends = zip(*(results.get() for _ in processes), strict=True)
        for each in processes:
            each.join()
        return Done(sum(map(len, parts)), max(ends) - min(starts))

    return work


def _encode(listed: list[str], ready: Any, results: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    from tarmac.embedding.models.load import load_model, set_up

    model = set_up(load_model(f"sentence:{sentence_model()}"), "cpu")
    tokens = sorted(model.prepare_texts(listed), key=len)
    ready.wait()
    begin = time.perf_counter()
    for start in range(0, len(tokens), BATCH):
        model.encode_texts(tokens[start : start + BATCH])
    results.put((begin, time.perf_counter()))


SIDES = {"tarmac": with_tarmac, "SentenceTransformer": with_sentence_transformers, "model": alone}


def embedding(site: Site, side: str) -> Work:
    texts.prepare(site, captions(site))
    return SIDES[side](site)


@case("embed captions", sides=("tarmac", "SentenceTransformer"), ratio=1.2)
def beside_sentence_transformers(site: Site, side: str) -> Work:
    return embedding(site, side)


@case("embed captions, the model", sides=("tarmac", "model"), ratio=0.95)
def beside_the_model(site: Site, side: str) -> Work:
    return embedding(site, side)


@case("embed pictures", sides=("tarmac", "clip-retrieval's way"))
def pictures(site: Site, side: str) -> Work:
    """Of clip-retrieval's way: webdataset and a DataLoader with one worker, and all vectors written at the end."""
    shards = list(map(str, data.photo_shards(site, 2)))
    work = pictures_with_tarmac if side == "tarmac" else pictures_with_webdataset

    def measured() -> Done:
        with temporary(site) as target:
            count, bytes_ = work(site, shards, target)
        workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        peak = max(peak_memory(), workers)
        return Done(count, note=f"{bytes_ / 1e6:.0f} MB written, largest process {peak / 1e6:.0f} MB")

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
