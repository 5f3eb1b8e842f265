"""Summarise datasets through `tarmac.stats`."""

from __future__ import annotations

import io

import tarmac
from harness.shards import plain
from tarmac.tools.show import statistics
from tarmac.tools.show.statistics import bars, summary


def image(width, height):
    from PIL import Image

    stream = io.BytesIO()
    Image.new("L", (width, height)).save(stream, "PNG")
    return stream.getvalue()


def shards(folder):
    first = [("a.png", image(3, 2)), ("a.txt", b"12345"), ("b.png", image(3, 2)), ("b.cls", b"1")]
    second = [("c.png", b"no image"), ("c.txt", b"1")]
    urls = []
    for name, files in (("a", first), ("b", second)):
        urls.append(str(folder / f"{name}.tar"))
        (folder / f"{name}.tar").write_bytes(plain(files))
    return urls


def test_numbers(tmp_path):
    urls = shards(tmp_path)
    results = tarmac.stats(urls)
    facts, size = results.to_dict(), len(image(3, 2))
    assert (facts["shards"], facts["samples"], facts["bytes"]) == (2, 3, 2 * size + 15)
    assert facts["per_shard"] == {"min": 1, "median": 1.5, "mean": 1.5, "max": 2, "total": 3}
    assert facts["fields"]["txt"] == {
        "samples": 2,
        "min": 1,
        "median": 3.0,
        "mean": 3.0,
        "max": 5,
        "total": 6,
    }
    assert facts["fields"]["cls"]["samples"] == 1
    assert facts["resolutions"] == {"3x2": 2}
    assert facts["images"]["aspect"] == {"min": 1.5, "median": 1.5, "mean": 1.5, "max": 1.5}
    assert facts["unreadable"] == {"png": 1}
    lines = str(results).split("\n")
    assert lines[0] == f"2 shards, 3 samples, {2 * size + 15} bytes"
    assert any(line.split()[:2] == ["txt", "2"] for line in lines)
    assert "1 x png: unreadable image header" in lines
    assert "<td>txt</td>" in results._repr_html_()
    assert repr(results) == "<statistics of 3 samples in 2 shards: png, txt, cls>"


def test_images_of_all_sizes_are_summarised_instead_of_listed(tmp_path):
    files = [(f"{number}.png", image(10 + number, 5)) for number in range(30)]
    (tmp_path / "a.tar").write_bytes(plain(files))
    lines = str(tarmac.stats(tmp_path / "a.tar")).split("\n")
    (width,) = [line.split()[2:] for line in lines if line.startswith("image width")]
    assert width == ["30", "10", "24.5", "24.5", "39"]
    assert not [line for line in lines if "10x5" in line or "resolutions" in line]


def test_the_index_gives_the_same_numbers(tmp_path):
    urls = shards(tmp_path)
    expected = tarmac.stats(urls).to_dict(images=False)
    assert tarmac.stats(urls, images=False).to_dict(images=False) == expected
    for selection in ({"slice": slice(1, 2)}, {"where": "key = 'b'"}, {"keys": ["b"]}):
        one = tarmac.stats(urls, images=False, **selection)
        assert one.to_dict(images=False) == tarmac.stats(urls, **selection).to_dict(images=False)
        assert (len(one.samples), list(one.fields)) == (1, ["png", "cls"])


def test_an_empty_dataset(tmp_path):
    assert summary([]) == {"min": 0, "median": 0, "mean": 0, "max": 0, "total": 0}
    assert list(bars([])) == []
    (tmp_path / "a.tar").write_bytes(plain([]))
    assert str(tarmac.stats(tmp_path / "a.tar")).startswith("0 shards, 0 samples, 0 bytes")


def test_bars():
    assert list(bars([3, 3, 5], 4)) == ["3 .. 3  #### 2", "4 .. 4       0", "5 .. 5  ##   1"]
    for sizes in ([0, 1, 10_000_000], list(range(1000)), [7] * 5, [100, 900]):
        lines = list(bars(sizes))
        assert len(lines) <= max(statistics.BINS, 1)
        assert sum(int(line.split()[-1]) for line in lines) == len(sizes)
        assert lines[0].split()[0] == str(min(sizes))


def test_the_number_of_resolutions_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "MAX_RESOLUTIONS", 2)
    path = tmp_path / "a.tar"
    path.write_bytes(plain([(f"{n}.png", image(n % 3 + 1, 1)) for n in range(9)]))
    assert tarmac.stats(path).to_dict()["resolutions"] == {"1x1": 3, "2x1": 3}
