"""Texts and pictures are encoded by the model that made the embeddings."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import tarmac
from cli.running import run
from harness.vectors import unit, write_embeddings
from tarmac.errors import DecodeFailed, TarmacWarning, UsageError
from tarmac.searching import queries

MODEL = '''
import numpy as np

class Colours:
    """Pictures and texts are their colours."""
    version = "1"
    dimension = 3
    resolution = 8

    def setup(self, device):
        self.device = device

    def encode_images(self, images):
        return np.stack(images).reshape(len(images), -1, 3).mean(1) - 128.5

    def encode_texts(self, texts):
        return np.array([[255 * (name in text) - 128.5 for name in ("red", "green", "blue")] for text in texts])

class Texts(Colours):
    encode_images = None
'''


@pytest.fixture
def index(tmp_path, monkeypatch):
    (tmp_path / "colours.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    colours = np.random.default_rng(0).integers(0, 256, (200, 3))
    path = write_embeddings(tmp_path / "embeddings", unit(colours - 128.5), model="colours.py:Colours")
    tarmac.Knn.build(path, tmp_path / "index")
    return tmp_path / "index"


def test_texts_and_pictures(index, tmp_path, capsys):
    knn = tarmac.Knn(index)
    for text, colour in (("a red car", (255, 0, 0)), ("green and blue", (0, 255, 255))):
        Image.new("RGB", (20, 30), colour).save(tmp_path / "x.png")
        by_text = knn.query(text=text, k=5)
        by_image = knn.query(image=tmp_path / "x.png", k=5, device="cpu")
        truth, _ = knn.search(unit(np.array([colour]) - 128.5), 5)
        assert [hit.score for hit in by_text] == pytest.approx(truth[0].tolist(), abs=1e-3)
        assert [hit.score for hit in by_image] == pytest.approx(truth[0].tolist(), abs=0.05)
        assert knn.query(image=(tmp_path / "x.png").read_bytes(), k=5) == by_image
        status, stdout, stderr = run(capsys, "knn", "query", index, "--text", text, "-k", "5")
        assert status == 0, stderr
        assert [line.split("\t")[1] for line in stdout.splitlines()] == [hit.key for hit in by_text]


def test_a_model_that_has_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "colours.py").write_text(MODEL)
    with tarmac.TarWriter("in.tar") as writer:
        for name in ("red", "green", "blue"):
            writer.write({"__key__": name, "txt": name})
    tarmac.embed("in.tar", "embeddings", model="colours.py:Colours", text="txt", jobs=1)
    tarmac.Knn.build("embeddings", "index")
    assert tarmac.Knn("index").query(text="blue", k=1)[0].key == "blue"
    queries._loaded.clear()
    (tmp_path / "colours.py").write_text(MODEL.replace("255 *", "-255 *"))
    with pytest.warns(TarmacWarning, match=r"colours\.py:Colours has changed"):
        tarmac.Knn("index").query(text="blue", k=1)


def test_files_that_are_no_pictures(index, tmp_path):
    for image, location in ((tmp_path / "colours.py", str(tmp_path / "colours.py")), (b"x", "")):
        with pytest.raises(DecodeFailed) as caught:
            tarmac.Knn(index).query(image=image)
        assert caught.value.location == location


def test_a_model_that_cannot(tmp_path, index):
    path = write_embeddings(tmp_path / "texts", unit(np.eye(3)), kind="text", model="colours.py:Texts")
    tarmac.Knn.build(path, tmp_path / "other")
    knn = tarmac.Knn(tmp_path / "other")
    assert knn.query(text="blue", k=1)[0].number == 2
    with pytest.raises(UsageError, match="does not encode images"):
        knn.query(image=b"")
    gone = write_embeddings(tmp_path / "gone", unit(np.eye(3)), model="gone.py:Colours")
    tarmac.Knn.build(gone, tmp_path / "third")
    with pytest.raises(UsageError):
        tarmac.Knn(tmp_path / "third").query(text="blue")
