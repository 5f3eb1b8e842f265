"""`pipe:` URLs: the exit status is checked, and commands do not outlive their reader."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import psutil
import pytest

import tarmac
from harness.faultfs import descriptors
from harness.waiting import FOREVER, until
from tarmac.errors import CommandFailed, Stalled, UnsafeUrl, UnsupportedScheme
from tarmac.storage import StorageOptions, enforce_security, open_read, open_write, read_range, stat

pytestmark = pytest.mark.processes

OPTIONS = StorageOptions(command_timeout=60)


def fetch(url: str, options: StorageOptions = OPTIONS) -> bytes:
    with open_read(url, options) as source:
        return b"".join(iter(lambda: source.read(1 << 16), b""))


def running(mark: str) -> list[int]:
    """Return the processes of this test, by command line or environment."""
    pids = []
    for process in psutil.process_iter(["cmdline"]):
        if process.pid != os.getpid() and any(mark in part for part in process.info["cmdline"] or []):
            pids.append(process.pid)
    return pids


def mark_of_ours() -> str:
    """Return digits that no other process on this machine has in its command line."""
    return f"{os.getpid()}{random.SystemRandom().randrange(10**9)}"


def gone(mark: str) -> bool:
    return until(lambda: not running(mark), pause=0.02)


def test_output_is_read_to_its_end():
    assert fetch("pipe:echo hello") == b"hello\n"
    assert fetch("pipe:head -c 5000000 /dev/zero") == bytes(5_000_000)
    assert fetch("pipe:true") == b""
    assert fetch("pipe:printf a; sleep 0.2; printf b") == b"ab"
    assert fetch("pipe:cat") == b""  # standard input is empty, not inherited


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("false", "status 1"),
        ("exit 18", "status 18"),
        ("head -c 100000 /dev/zero; exit 3", "status 3"),
        ("kill -9 $$", "signal 9"),
        ("no-such-program-here", "status 127.*no-such-program-here"),
        ("echo broken >&2; exit 2", "broken"),
        ("echo out; exec >&-; sleep 0.2; exit 5", "status 5"),
    ],
)
def test_the_exit_status_is_checked_after_complete_output(command, what):
    with open_read(f"pipe:{command}", OPTIONS) as source, pytest.raises(CommandFailed, match=what):
        while source.read(1 << 16):
            pass


def test_a_shard_is_complete_only_with_status_0(tmp_path):
    with tarmac.TarWriter(tmp_path / "x.tar") as shard:
        for number in range(10):
            shard.write({"__key__": str(number), "txt": "x"})
    assert len(list(tarmac.read(f"pipe:cat {tmp_path}/x.tar"))) == 10
    with pytest.raises(CommandFailed, match="status 18"):
        list(tarmac.read(f"pipe:cat {tmp_path}/x.tar; exit 18"))


def test_standard_error_is_shortened_and_redacted():
    with pytest.raises(CommandFailed) as failed:
        fetch("pipe:seq 100000 >&2; echo https://h/x?sig=s3cret >&2; false")
    assert "s3cret" not in str(failed.value)
    assert len(str(failed.value)) < 800


@pytest.mark.parametrize(
    "command",
    [
        "yes MARK | cat",
        "sleep 10000.MARK & yes; wait",
        "(sh -c 'yes MARK; true'; true)",
        "sleep 10000.MARK & exec yes",
        "sh -c 'yes MARK; true' & exit 0",
    ],
)
def test_closing_early_kills_the_whole_pipeline(command):
    mark = mark_of_ours()
    with open_read(f"pipe:{command.replace('MARK', mark)}", OPTIONS) as source:
        assert source.read(100)
    assert gone(mark)


def test_a_stall():
    options, mark = replace(OPTIONS, command_timeout=0.3), mark_of_ours()
    for command in (
        f"echo a; sleep {FOREVER}.{mark}",
        f"sleep {FOREVER}.{mark}",
        f"exec >&-; sleep {FOREVER}.{mark}",
    ):
        with pytest.raises(Stalled):
            fetch(f"pipe:{command}", options)
    assert gone(mark)


def test_write(tmp_path):
    sink = open_write(f"pipe:cat > {tmp_path}/x", OPTIONS)
    for _ in range(50):
        sink.write(b"0123456789" * 10_000)
    sink.commit()
    assert (tmp_path / "x").read_bytes() == b"0123456789" * 500_000
    for late in (lambda: sink.write(b"x"), sink.commit):
        with pytest.raises(CommandFailed, match="pipe:cat"):
            late()
    with tarmac.TarWriter(f"pipe:gzip > '{tmp_path}/a b.gz'") as shard:
        shard.write({"__key__": "a", "txt": "b"})
    assert len(list(tarmac.read(tmp_path / "a b.gz"))) == 1


def test_a_command_that_fails_while_reading_its_input(tmp_path):
    sink = open_write("pipe:cat > /dev/null; echo full >&2; exit 4", OPTIONS)
    sink.write(b"x")
    with pytest.raises(CommandFailed, match=r"status 4.*full"):
        sink.commit()
    sink = open_write("pipe:exit 6", OPTIONS)
    with pytest.raises(CommandFailed, match="status 6"):
        for _ in range(100):
            sink.write(bytes(100_000))
        sink.commit()
    sink = open_write("pipe:head -c 10 > /dev/null", OPTIONS)
    with pytest.raises(CommandFailed, match="pipe:head"):
        for _ in range(100):
            sink.write(bytes(100_000))


def test_a_command_that_does_not_read():
    mark = mark_of_ours()
    sink = open_write(f"pipe:sleep {FOREVER}.{mark}", replace(OPTIONS, command_timeout=0.3))
    with pytest.raises(Stalled, match="pipe:sleep"):
        for _ in range(100):
            sink.write(bytes(100_000))
    sink = open_write(f"pipe:cat > /dev/null; sleep {FOREVER}.{mark}", replace(OPTIONS, total_timeout=0.3))
    with pytest.raises(Stalled, match=r"0\.3 seconds"):
        sink.commit()
    assert gone(mark)


def test_abort_kills_the_command_before_the_end_of_its_input(tmp_path):
    mark = mark_of_ours()
    sink = open_write(f"pipe:cat > {tmp_path}/{mark} && mv {tmp_path}/{mark} {tmp_path}/done", OPTIONS)
    sink.write(b"half")
    sink.abort()
    sink.abort()
    assert gone(mark)
    assert not (tmp_path / "done").exists()


def test_unsupported_operations():
    with pytest.raises(UnsupportedScheme, match="size"):
        stat("pipe:true")
    with pytest.raises(UnsupportedScheme, match="pipe:true"):
        read_range("pipe:true", 0, 5)
    with pytest.raises(CommandFailed, match="started"):
        open_read("pipe:a\0b")


def test_the_command_is_passed_to_the_shell_unchanged(tmp_path, monkeypatch):
    assert fetch("pipe:echo a | tr a b && echo $((1+1))") == b"b\n2\n"
    monkeypatch.chdir(tmp_path)
    for name in ("x; touch gotcha", "$(touch gotcha)", "`touch gotcha`", "x|touch gotcha", "x\ntouch gotcha"):
        with pytest.raises(tarmac.errors.TarmacError):
            open_read(name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["TARMAC_SECURE", "WDS_SECURE", None])
def test_secure_mode_forbids_commands(tmp_path, monkeypatch, name):
    if name:
        monkeypatch.setenv(name, "1")
    else:
        monkeypatch.setattr("tarmac.environment._enforced", False)
        enforce_security()
    for operation in (
        lambda: open_read(f"pipe:touch {tmp_path}/x"),
        lambda: open_write(f"pipe:touch {tmp_path}/x"),
    ):
        with pytest.raises(UnsafeUrl, match="pipe:touch"):
            operation()
    with pytest.raises(UnsafeUrl):
        list(tarmac.read(f"pipe:touch {tmp_path}/x"))
    assert os.listdir(tmp_path) == []
    if name is None:
        enforce_security(False)
        assert fetch("pipe:echo 1") == b"1\n"


def test_descriptors_stay_constant():
    before = descriptors()
    for number in range(40):
        if number % 2:
            fetch("pipe:echo x")
        else:
            with open_read("pipe:yes", OPTIONS) as source:
                source.read(10)
    assert not descriptors() - before


def test_descriptors_above_1024():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        assert fetch("pipe:echo x") == b"x\n"  # select() supports only 1024
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
