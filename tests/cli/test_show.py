"""`tarmac show` beyond listing: contents, numbers, sheets, files."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from PIL import Image

from cli.running import numbers
from harness.shards import plain
from tarmac.cli import main, program


@pytest.fixture
def folder(tmp_path, monkeypatch):
    stream = io.BytesIO()
    Image.new("RGB", (6, 4)).save(stream, "PNG")
    for shard in range(2):
        files = []
        for number in range(2):
            files += [
                (f"{shard}/a{number}.png", stream.getvalue()),
                (f"{shard}/a{number}.txt", b"two\nlines"),
            ]
        (tmp_path / f"s{shard}.tar").write_bytes(plain(files))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(program, ["show", *map(str, arguments)])


def failing(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["show", *map(str, arguments)])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return ended.value.code, err


def test_what_is_in_a_sample(folder):
    size = len((folder / "s0.tar").read_bytes()) and len(
        run("s0.tar", "--at", "0", "--raw", "png").stdout_bytes
    )
    text = run("s*.tar", "--at", "1/a1", "--content").stdout
    assert text == f"1/a1\tpng {size}  txt 9\n  png: PNG image, 6x4, RGB\n  txt: two\n    lines\n"
    report = json.loads(run("s*.tar", "-n", 1, "--content", "--json").stdout)
    assert report["content"] == {"png": "PNG image, 6x4, RGB", "txt": "two\nlines"}
    assert run("s*.tar", "--at", "-1", "--raw", "txt").stdout_bytes == b"two\nlines"


def test_chosen_samples(folder):
    assert run("s*.tar", "--slice", "1:3", "--fields", "txt").stdout == "0/a1\ttxt 9\n1/a0\ttxt 9\n"
    assert run("s*.tar", "--where", "png.width = 6", "--slice-shard", "0:1", "--fields", "txt").stdout == (
        "0/a0\ttxt 9\n1/a0\ttxt 9\n"
    )


def test_numbers(folder):
    total = run("s*.tar", "--total").stdout
    assert total.startswith("shards\t2\nsamples\t4\nbytes\t")
    assert total.endswith("fields\tpng txt\n")
    (folder / "s.tar.gz").write_bytes(gzip.compress((folder / "s0.tar").read_bytes()))
    assert json.loads(run("s.tar.gz", "--total", "--json").stdout)["fields"] == {"png": 2, "txt": 2}
    assert run("s*.tar", "--fields-only").stdout == "png\t4\ntxt\t4\n"
    assert run("s*.tar", "--fields-only", "-n", 1).stdout == "png\t1\ntxt\t1\n"
    stats = run("s*.tar", "--stats").stdout
    assert "6x4" in stats
    assert "####" in stats
    report = json.loads(run("s*.tar", "--stats", "--json", "--slice", ":3").stdout)
    assert (report["samples"], report["resolutions"]) == (3, {"6x4": 3})


def test_a_sheet_and_files(folder):
    done = run("s*.tar", "--sheet", "x.png", "-n", 3)
    assert (done.exit_code, numbers(done.stderr)) == (0, [3])
    with Image.open("x.png") as page:
        assert page.size[0] > 300
    done = run("s*.tar", "--extract", "d", "--at", "0", "--at", "1/a1")
    assert numbers(done.stderr) == [2, 4]
    assert (folder / "d/1/a1.txt").read_bytes() == b"two\nlines"
    (folder / "d/1/a1.txt").write_bytes(b"mine")
    assert run("s*.tar", "--extract", "d", "--overwrite").exit_code == 0
    assert (folder / "d/1/a1.txt").read_bytes() == b"two\nlines"


def test_names_that_lead_away(folder, capsys):
    (folder / "odd.tar").write_bytes(plain([("../x.txt", b"1")]))
    code, err = failing(capsys, "odd.tar", "--extract", "d")
    assert code == 1
    assert '"../x.txt"' in err
    assert not (folder / "x.txt").exists()
    (folder / "esc.tar").write_bytes(plain([("a\n\x1b[31m\udc80.txt", b"1")], 1))
    assert run("esc.tar").stdout == "a\\n\\x1b[31m\\udc80\ttxt 1\n"
    assert json.loads(run("esc.tar", "--json").stdout)["key"] == "a\n\x1b[31m\udc80"


def test_mistakes(folder, capsys):
    assert failing(capsys, "s*.tar", "--at", "1/a7")[0] == 2
    assert failing(capsys, "s*.tar", "--raw", "jpg")[0] == 1
    assert failing(capsys, "s*.tar", "--stats", "--total")[0] == 2
    assert failing(capsys, "s*.tar", "--sheet", "x.gif")[0] == 2
    code, err = failing(capsys, "pipe:cat s0.tar")
    assert code == 2
    assert "--allow-exec" in err
    assert run("pipe:cat s0.tar", "--allow-exec", "-n", 1).stdout.startswith("0/a0\t")


def test_raw_bytes_into_a_pipe_that_ends(folder):
    (folder / "big.tar").write_bytes(plain([("a.bin", bytes(3_000_000))]))
    command = f"{sys.executable} -m tarmac show big.tar --raw bin | head -c 10 | wc -c"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "10"
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_files_are_counted_as_json_too(folder):
    done = run("s0.tar", "--extract", "out", "--json")
    assert json.loads(done.stdout) == {"samples": 2, "files": 4, "directory": "out"}


@pytest.mark.parametrize(("what", "status"), [("| head -1 >/dev/null", 0), ("> /dev/full", 1)])
def test_a_closed_pipe_is_not_an_error_and_a_full_disk_is_one_line(folder, what, status):
    command = f"set -o pipefail; {sys.executable} -m tarmac show {' s0.tar s1.tar' * 50} {what}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert done.returncode == status
    assert b"Traceback" not in done.stderr
    assert done.stderr.count(b"\n") == status
    stream = f"set -o pipefail; {sys.executable} -m tarmac copy s0.tar -o - {what}"
    done = subprocess.run(["bash", "-c", stream], capture_output=True, check=False)
    assert done.returncode == status
    assert b"Traceback" not in done.stderr
