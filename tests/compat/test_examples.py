"""Well-known examples run unchanged through compat, and with one import changed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from harness.shards import plain

EXAMPLES = Path(__file__).parent / "examples"

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def jpeg(seed, size=(40, 30)):
    stream = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


def shard(number, count=6):
    files = []
    for i in range(count):
        seed = number * count + i
        files += [
            (f"{seed:06d}.jpg", jpeg(seed)),
            (f"{seed:06d}.json", json.dumps({"number": seed}).encode()),
            (f"{seed:06d}.txt", f"caption {seed}".encode()),
        ]
    return plain(files)


class Transforms(types.ModuleType):
    """The part of torchvision that the notebook uses, without randomness."""

    class Compose:
        def __init__(self, steps):
            self.steps = steps

        def __call__(self, image):
            for step in self.steps:
                image = step(image)
            return image

    class RandomResizedCrop:
        def __init__(self, size):
            self.size = (size, size)

        def __call__(self, image):
            return image.resize(self.size)

    class RandomHorizontalFlip:
        def __call__(self, image):
            return image

    class ToTensor:
        def __call__(self, image):
            return torch.from_numpy(np.array(image, np.float32).transpose(2, 0, 1) / 255)

    class Normalize:
        def __init__(self, mean, std):
            self.mean, self.std = (torch.tensor(value)[:, None, None] for value in (mean, std))

        def __call__(self, image):
            return (image - self.mean) / self.std


def module(name, **values):
    created = types.ModuleType(name)
    created.__dict__.update(values)
    return created


@pytest.fixture(params=["through compat", "import tarmac.webdataset as wds"])
def run(request, monkeypatch, tmp_path):
    """A function that runs an example with the given globals and returns all of them."""
    monkeypatch.chdir(tmp_path)
    if request.param == "through compat":
        request.getfixturevalue("installed")

    def run(name, **names):
        code = (EXAMPLES / name).read_text()
        if request.param != "through compat":
            code = code.replace("import webdataset as wds", "import tarmac.webdataset as wds")
        names["__name__"] = "example"
        exec(compile(code, name, "exec"), names)
        return names

    return run


def test_every_cell_of_the_notebook(run, monkeypatch, tmp_path):
    transforms = Transforms("torchvision.transforms")
    monkeypatch.setitem(sys.modules, "torchvision", module("torchvision", transforms=transforms))
    monkeypatch.setitem(sys.modules, "torchvision.transforms", transforms)
    monkeypatch.setitem(sys.modules, "pylab", module("pylab", amin=np.amin, amax=np.amax))
    for number in range(8):
        (tmp_path / f"openimages-train-{number:06d}.tar").write_bytes(shard(number))
    pattern = str(tmp_path / "openimages-train-{000000..000007}.tar")
    result = run("notebook.py", SHARDS=pattern, FIRST=pattern.replace("{000000..000007}", "000000"))
    assert [list(entry) for entry in result["cell_7"]] == [["url"]] * 3
    assert result["cell_9"]["__key__"] == "000002"
    assert result["cell_11"].shape == (30, 40, 3)
    assert result["cell_11"].dtype == np.float32
    assert result["cell_13"][0].shape == (3, 224, 224)
    assert result["cell_13"][1] == {"number": 2}
    assert result["cell_17"] == result["cell_19"] == result["cell_21"] == (3, 30, 40)
    assert result["cell_23"] == (12, 3, 224, 224)  # the part of one worker of four
    assert result["cell_25"] == (20, 3, 224, 224)
    assert result["cell_29"] == (20, (8, 3, 224, 224))
    assert result["cell_31"] == (8, 3, 224, 224)
    assert "000000" in result["cell_37"]
    assert result["cell_47"] == [f"00000{i}.{field}" for i in range(5) for field in ("cls", "png")]
    del result


def as_tensor(image):
    return torch.from_numpy(np.array(image.resize((16, 16)), np.float32))


def test_the_laion_reader(run, monkeypatch, tmp_path):
    def tokenize(texts, truncate=False):
        return torch.tensor([[len(text)] * 77 for text in texts])

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setitem(sys.modules, "clip", module("clip", tokenize=tokenize))
    for number in (1, 2):
        (tmp_path / f"image{number}.tar").write_bytes(shard(number))
    result = run("laion.py", TAR_FOLDER=str(tmp_path), PREPROCESS=as_tensor)
    batch = result["batch"]
    assert batch["image_tensor"].shape == (2, 16, 16, 3)
    assert batch["text_tokens"].shape == (2, 77)
    assert batch["text"] == [f"caption {i}" for i in (6, 7)]
    assert json.loads(batch["metadata"][0]) == {"number": 6}
    every = [name for batch in result["every"] for name in batch["image_filename"]]
    assert sorted(every) == [f"{i:06d}" for i in range(6, 18)]
    del result


def test_the_cc3m_loop(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tqdm", module("tqdm", tqdm=iter))
    for number in range(4):
        (tmp_path / f"cc3m-train-{number:04d}.tar").write_bytes(shard(number))
    result = run("cc3m.py", SHARDS=str(tmp_path / "cc3m-train-{0000..0003}.tar"))
    assert sorted(result["keys"]) == [f"{i:06d}" for i in range(24)]
    assert result["keys"] != sorted(result["keys"])


def test_the_parallel_example(tmp_path):
    source = tmp_path / "source_data"
    source.mkdir()
    for i in range(10):
        (source / f"sample-{i}.jpg").touch()
        (source / f"sample-{i}.txt").write_text(f"This is the description for sample {i}.\n")
    compat = [sys.executable, "-m", "tarmac.compat"]
    command = [*compat, str(EXAMPLES / "create_webdataset.py"), "--total-shards", "4", "--shard-id"]
    environ = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    packers = [subprocess.Popen([*command, str(i)], cwd=tmp_path, env=environ) for i in range(4)]
    assert [packer.wait() for packer in packers] == [0] * 4
    reader = [*compat, str(EXAMPLES / "read_webdataset.py"), "--path", "webdataset_output"]
    done = subprocess.run(reader, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    rows = sorted(line.split("\t") for line in done.stdout.splitlines())
    assert rows == [[f"sample-{i}", "0", f"This is the description for sample {i}."] for i in range(10)]
