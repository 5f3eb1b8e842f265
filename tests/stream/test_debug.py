"""Printing samples and logging keys."""

from __future__ import annotations

import io

from tarmac.stream.debug import info, log_keys

SAMPLES = [{"__key__": f"k{i}", "x": i} for i in range(10)]


def test_info(capsys):
    out = io.StringIO()
    assert list(info(n=2, every=5, stream=out, name="top")(SAMPLES)) == SAMPLES
    assert out.getvalue().count("--- top") == 4
    list(info(fmt="{__key__}!", n=1)(SAMPLES))
    assert capsys.readouterr().err == "k0!\n"
    list(info(n=1, stream=out)([(1, 2)]))
    assert "0 1\n1 2\n" in out.getvalue()


def test_log_keys(tmp_path):
    path = tmp_path / "log"
    assert list(log_keys(str(path))(SAMPLES)) == SAMPLES
    lines = path.read_text().splitlines()
    assert lines[3] == "3\t0\t0\tk3"
    assert list(log_keys()(SAMPLES)) == SAMPLES
    list(log_keys(str(path))([{"__key__": "a\nb"}]))
    assert len(path.read_text().splitlines()) == 11
