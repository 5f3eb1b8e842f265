"""Unclosed writers are published with a warning, unless an exception ended the program."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

import tarmac
from tarmac.errors import UnclosedWriter, WriteError

START = """
import os, signal, sys, threading
import LIBRARY as wds
def samples(n=1000):
    return ({"__key__": f"{i:06d}", "txt": "x" * (i % 7), "cls": i} for i in range(n))
def fill(sink, n=1000):
    for sample in samples(n):
        sink.write(sample)
    return sink
"""
ONE = "sink = fill(wds.TarWriter('x.tar'))\n"
MANY = "sink = fill(wds.ShardWriter('x-%03d.tar', maxcount=400, verbose=0))\n"
GOPEN = "from tarmac.webdataset import gopen; f = gopen('x.tar', 'wb'); sink = fill(wds.TarWriter(f))\n"
LOCAL = "def main():\n    sink = fill(wds.TarWriter('x.tar'))\n    {}\nmain()\n"


def run(code, cwd, library="tarmac.webdataset", check=True):
    program = START.replace("LIBRARY", library) + code
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)
    if check:
        assert done.returncode == 0, done.stderr
    return done


def content(directory):
    """Return the samples of each shard by its name; all files must be complete shards."""
    return {
        name: [(s["__key__"], s["txt"], s["cls"]) for s in tarmac.read(str(directory / name))]
        for name in sorted(os.listdir(directory))
    }


@pytest.mark.parametrize(
    "code",
    [
        ONE,
        MANY,
        LOCAL.format("return"),
        LOCAL.format("sys.exit()"),
        LOCAL.format("sys.exit(0)"),
        ONE + "sys.exit(0)",
        ONE + "del sink",
        "for n in range(3): fill(wds.TarWriter(f'x{n}.tar'), 10)",
        "def run(): fill(wds.TarWriter('x.tar'))\nt = threading.Thread(target=run); t.start(); t.join()",
        ONE + "try: 1 / 0\nexcept ZeroDivisionError: pass",
        "try: 1 / 0\nexcept ZeroDivisionError: fill(wds.TarWriter('x.tar'))",
        "def held():\n    sink = wds.TarWriter('x.tar')\n"
        "    for s in samples(): sink.write(s); yield s\nh = held(); [next(h) for _ in range(1000)]",
        "class Loop: pass\na = Loop(); a.a = a; a.sink = fill(wds.TarWriter('x.tar')); del a",
        GOPEN,
    ],
)
def test_unclosed_writers_are_published_with_a_warning(code, tmp_path):
    done = run(code, tmp_path)
    assert "UnclosedWriter: x" in done.stderr
    assert "published" in done.stderr
    assert sum(len(shard) for shard in content(tmp_path).values()) == (30 if "range(3)" in code else 1000)


@pytest.mark.parametrize("code", [ONE, MANY])
def test_at_least_the_data_of_webdataset_is_published(code, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    run(code, ours)
    run(code, theirs, "webdataset")
    lenient = tarmac.TarOptions(
        end="lenient"
    )  # webdataset may lose the last blocks and the end-of-archive marker
    assert sorted(os.listdir(ours)) == sorted(os.listdir(theirs))
    for name, samples_of_shard in content(ours).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            left = list(tarmac.read(str(theirs / name), tar=lenient))
        assert len(left) > 190
        assert [s["__key__"] for s in left] == [key for key, _, _ in samples_of_shard][: len(left)]


def test_shards_of_400_400_and_200(tmp_path):
    done = run(MANY, tmp_path)
    assert [len(shard) for shard in content(tmp_path).values()] == [400, 400, 200]
    assert done.stderr.count("UnclosedWriter") == 1


@pytest.mark.parametrize(
    "code",
    [
        ONE + "1 / 0",
        MANY + "1 / 0",
        LOCAL.format("1 / 0"),
        ONE + "sys.exit(3)",
        ONE + "sys.exit('went wrong')",
        LOCAL.format("sys.exit(1)"),
        LOCAL.format("raise SystemExit(1)"),
        ONE + "os.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(60)",
        ONE + "try: 1 / 0\nexcept ZeroDivisionError: del sink",
        "def run():\n    sink = fill(wds.TarWriter('x.tar'))\n    1 / 0\n"
        "t = threading.Thread(target=run); t.start(); t.join()",
        "def held():\n    with wds.TarWriter('x.tar') as sink:\n"
        "        for s in samples(): sink.write(s); yield s\nh = held(); next(h); del h",
    ],
)
def test_nothing_is_published_after_an_exception(code, tmp_path):
    done = run(code, tmp_path, check=False)
    assert "UnclosedWriter: x" in done.stderr
    assert "Nothing" in done.stderr
    assert set(content(tmp_path)) == ({"x-000.tar", "x-001.tar"} if "Shard" in code else set())


def test_a_failed_with_block_leaves_nothing_without_a_warning(tmp_path):
    done = run("with wds.TarWriter('x.tar') as sink: fill(sink); 1 / 0", tmp_path, check=False)
    assert "Unclosed" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_closed_writer_does_not_warn(tmp_path):
    done = run(ONE + "sink.close()\n1 / 0", tmp_path, check=False)
    assert "Unclosed" not in done.stderr
    assert len(content(tmp_path)["x.tar"]) == 1000


def test_an_empty_writer_replaces_nothing(tmp_path):
    run(ONE + "sink.close()", tmp_path)
    assert run("sink = wds.TarWriter('x.tar')", tmp_path).stderr == ""
    assert len(content(tmp_path)["x.tar"]) == 1000


def test_killed_programs_publish_nothing(tmp_path):
    for end in ("os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"):
        run(ONE + end, tmp_path, check=False)
        assert not (tmp_path / "x.tar").exists()
    run(ONE + "sink.close()", tmp_path)
    assert os.listdir(tmp_path) == ["x.tar"]


FORKED = """
pid = os.fork()
if pid == 0:
    {}
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == {}
fill_more = [sink.write({{"__key__": f"more{{i}}", "txt": "y", "cls": 1}}) for i in range(3)]
"""


@pytest.mark.parametrize(
    "opened",
    [ONE, GOPEN],
)
@pytest.mark.parametrize(
    ("child", "status"), [("pass", 0), ("del sink", 0), ("sink.abort()", 0), ("sink.close()", 256)]
)
def test_a_forked_process_does_not_settle_the_writers_of_its_parent(opened, child, status, tmp_path):
    run(opened + FORKED.format(child, status), tmp_path)
    assert len(content(tmp_path)["x.tar"]) == 1003


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(("end", "kept"), [("pass", True), ("sys.exit(0)", True), ("1 / 0", False)])
def test_processes_of_multiprocessing_settle_their_own_writers(method, end, kept, tmp_path):
    program = START.replace("LIBRARY", "tarmac") + (
        f"def work():\n    global sink\n    sink = fill(wds.TarWriter('x.tar'))\n    {end}\n"
        "if __name__ == '__main__':\n    import multiprocessing as mp\n"
        f"    p = mp.get_context({method!r}).Process(target=work); p.start(); p.join()\n"
    )
    (tmp_path / "program").write_text(program)
    done = subprocess.run(
        [sys.executable, "program"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    os.unlink(tmp_path / "program")
    assert "UnclosedWriter" in done.stderr
    assert set(content(tmp_path)) == ({"x.tar"} if kept else set())


def test_index_manifest_and_callback_as_after_close(tmp_path):
    run(
        "sink = fill(wds.ShardWriter('x-%d.tar', maxcount=400, index='all.json', "
        "post=lambda name: print(name, file=open('post', 'a'))))",
        tmp_path,
    )
    assert len(tarmac.Dataset(str(tmp_path / "all.json"))) == 1000
    assert (tmp_path / "post").read_text().split() == ["x-0.tar", "x-1.tar", "x-2.tar"]
    run("sink = fill(wds.TarWriter('y.tar', index=True))", tmp_path)
    assert (tmp_path / "y.tar.arrow").exists()


def test_a_second_writer_for_the_same_name_wins(tmp_path):
    """A notebook cell that is run twice."""
    path = str(tmp_path / "x.tar")
    writer = tarmac.TarWriter(path)
    writer.write({"__key__": "old", "txt": "x"})
    with pytest.warns(UnclosedWriter, match=r"x\.tar: .*Nothing"):
        writer = tarmac.TarWriter(path)
    writer.write({"__key__": "new", "txt": "x"})
    writer.close()
    assert [sample["__key__"] for sample in tarmac.read(path)] == ["new"]


def test_a_failed_publication_is_reported(tmp_path):
    code = ONE + "import shutil; shutil.rmtree(os.getcwd())"
    (tmp_path / "d").mkdir()
    done = run(code, tmp_path / "d")
    assert "could not be published" in done.stderr


def test_an_interrupted_sample_is_never_published(tmp_path):
    """After an interrupt within a sample, neither close() nor the exit publishes half of it."""
    path = tmp_path / "x.tar"

    class Interrupting:
        def __init__(self):
            self.blocks = 0

        def write(self, data):
            self.blocks += 1
            if self.blocks == 3:
                raise KeyboardInterrupt

    writer = tarmac.TarWriter(Interrupting())
    with pytest.raises(KeyboardInterrupt):
        writer.write({"__key__": "a", "bin": bytes(100_000), "txt": "x"})
    with pytest.raises(WriteError, match="completely"):
        writer.write({"__key__": "b", "txt": "x"})
    with pytest.raises(WriteError, match="completely"):
        writer.close()
    assert not path.exists()


def test_all_writers_are_published_where_warnings_are_errors(tmp_path):
    code = "import warnings\nwarnings.simplefilter('error')\n"
    code += "sinks = [fill(wds.TarWriter(f'x{n}.tar'), 10) for n in range(3)]\n"
    done = run(code, tmp_path, check=False)
    assert "UnclosedWriter" in done.stderr
    for number in range(3):
        assert len(list(tarmac.read(str(tmp_path / f"x{number}.tar")))) == 10
