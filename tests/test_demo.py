"""The demo makes what it says, and makes it again."""

import io
import json
import subprocess
import sys
from pathlib import Path

import tarmac

ROOT = Path(__file__).parents[1]


def run_demo(out, *options):
    command = [sys.executable, "-W", "error", "-m", "demo", "--out", str(out), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def test_makes_shards_of_labelled_pictures_and_reads_them_back(tmp_path):
    from PIL import Image

    done = run_demo(tmp_path / "out", "--samples", "40", "--shards", "3")

    assert done.returncode == 0, done.stderr
    assert "40 samples in 3 shards" in done.stdout
    assert "exact epoch, stopped, resumed on two ranks" in done.stdout
    parts = [list(tarmac.read(f"{tmp_path}/out/split/{part}-*.tar")) for part in ("train", "val")]
    assert sum(map(len, parts)) == 40
    assert len(parts[0]) > len(parts[1])
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.tar"))
    assert shards == ["demo-000000.tar", "demo-000001.tar", "demo-000002.tar"]
    samples = list(tarmac.read(f"{tmp_path}/out/demo-*.tar"))
    assert [sample["__key__"] for sample in samples] == [f"{number:06d}" for number in range(40)]
    for sample in samples:
        assert sample.keys() == {"__key__", "__url__", "jpg", "txt", "cls", "json"}
        image = Image.open(io.BytesIO(sample["jpg"]))
        assert 320 <= image.width <= 500
        assert 240 <= image.height <= 375
        facts = json.loads(sample["json"])
        assert (facts["width"], facts["height"]) == image.size
        assert int(sample["cls"]) in range(6)
    assert len({sample["cls"] for sample in samples}) > 1


def test_running_again_replaces_what_was_there(tmp_path):
    assert run_demo(tmp_path, "--samples", "20", "--shards", "4").returncode == 0
    first = {path.name: path.read_bytes() for path in tmp_path.glob("*.tar")}
    assert run_demo(tmp_path, "--samples", "30", "--shards", "6").returncode == 0
    assert len(list(tmp_path.iterdir())) == 14  # shards, their indexes, the manifest, the split
    assert run_demo(tmp_path, "--samples", "20", "--shards", "4").returncode == 0

    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.tar")} == first


def test_refuses_nonsense(tmp_path):
    done = run_demo(tmp_path / "out", "--samples", "0")

    assert done.returncode == 2
    assert not (tmp_path / "out").exists()
