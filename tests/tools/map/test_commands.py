"""A command gets a sample as files, its files are the new sample, and nothing is left behind."""

from __future__ import annotations

import builtins
import errno
import os
import stat
import tempfile
import threading

import psutil
import pytest

from harness.waiting import FOREVER, TIMEOUT, until
from tarmac.errors import BadName, DiskFull, TimedOut, TransformFailed, UsageError, WriteError
from tarmac.tools.map.commands import Command, Running

pytestmark = pytest.mark.processes

SAMPLE = {"__key__": "a/b", "__url__": "x.tar", "txt": b"hello", "seg.png": b"\0\xff"}


@pytest.fixture(autouse=True)
def private(tmp_path, monkeypatch):
    """Create temporary directories here; none may be left."""
    directory = tmp_path / "work"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    assert list(directory.iterdir()) == []


def test_fields_are_files_and_files_are_fields():
    command = Command("cat sample.txt sample.__key__ > sample.new; rm sample.seg.png; touch other")
    assert command(SAMPLE) == [
        {"__key__": "a/b", "__url__": "x.tar", "txt": b"hello", "new": b"helloa/b"},
    ]


def test_nothing_changed_is_nothing_changed():
    assert Command("true")(SAMPLE) == [SAMPLE]


def test_removing_all_drops_the_sample():
    assert Command("rm sample.*")(SAMPLE) == []
    assert Command("rm sample.txt sample.seg.png")(SAMPLE) == []


def test_the_command_may_name_the_sample():
    (new,) = Command("echo other/key > sample.__key__")(SAMPLE)
    assert new["__key__"] == "other/key"
    with pytest.raises(BadName):
        Command("echo ../up > sample.__key__")(SAMPLE)


def test_environment_and_input(private):
    (new,) = Command('echo "$TARMAC_KEY $TARMAC_URL $(wc -c)" > sample.txt; pwd > sample.dir')(SAMPLE)
    assert new["txt"] == b"a/b x.tar 0\n"
    assert new["dir"].decode().startswith(str(private))


def test_a_failure_is_an_error_with_location_and_reason():
    with pytest.raises(TransformFailed, match=r'x\.tar, sample "a/b": .* 7.*it broke'):
        Command("echo it broke >&2; exit 7")(SAMPLE)
    with pytest.raises(TransformFailed, match="signal 9"):
        Command("kill -9 $$")(SAMPLE)


def test_errors_show_the_end_of_long_output():
    with pytest.raises(TransformFailed) as caught:
        Command("yes no | head -c 100000; echo LAST; false")(SAMPLE)
    assert "LAST" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_time_is_limited_for_all_that_was_started():
    with pytest.raises(TimedOut, match="timeout"):
        Command(f"{SLEEP} & {SLEEP} & wait", timeout=0.3)(SAMPLE)
    assert no_sleepers()


def test_what_runs_on_in_the_background_is_ended():
    assert Command(f"{SLEEP} & disown; true")(SAMPLE) == [SAMPLE]
    assert no_sleepers()


SLEEP = f"sleep {FOREVER}.{os.getpid()}"  # no other test run has this command


def no_sleepers():
    return until(lambda: all(p.info["cmdline"] != SLEEP.split() for p in psutil.process_iter(["cmdline"])))


def test_several_samples_of_one():
    text = "for i in 10 2 000001; do echo $i > sample-$i.txt; done; echo k > sample-2.__key__"
    new = Command(text, multi=True)(SAMPLE)
    assert [(one["__key__"], one["txt"]) for one in new] == [
        ("a/b/000001", b"000001\n"),
        ("k", b"2\n"),
        ("a/b/10", b"10\n"),
    ]
    assert Command("true", multi=True)(SAMPLE) == []
    with pytest.raises(TransformFailed, match="multi"):
        Command("touch sample-000000.txt")(SAMPLE)


def test_output_goes_into_a_field_or_to_standard_error(capfd):
    (new,) = Command("echo out; echo err >&2", log_field="log")(SAMPLE)
    assert new["log"] == b"out\nerr\n"
    assert capfd.readouterr() == ("", "")
    Command("echo out; echo err >&2")(SAMPLE)
    assert capfd.readouterr() == ("", "out\nerr\n")
    with pytest.raises(BadName):
        Command("true", log_field="a b")


def test_odd_names_are_safe():
    odd = {
        "-rf": b"1",
        "$(touch pwned)": b"2",
        "a'b\"c": b"3",
        "*": b"4",
        "\udcff": b"5",
        "ü": b"6",
        ";x": b"7",
    }
    sample = {"__key__": "k", "__url__": "u"} | odd
    (new,) = Command("cat -- sample.* > /dev/null && ls > sample.list")(
        {name.replace(" ", ""): value for name, value in sample.items()}
    )
    assert {name for name in new if name != "list"} == {name.replace(" ", "") for name in sample}
    assert b"\npwned" not in new["list"]


def test_no_field_leaves_the_directory(tmp_path):
    outside = tmp_path / "outside"
    for field in ("/../../outside", "x/../../../outside", "a/b", "n" * 300):
        with pytest.raises(TransformFailed, match="field"):
            Command("true")({"__key__": "k", field: b"!"})
    assert not outside.exists()


def test_only_plain_files_are_taken(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    for text in (f"ln -s {secret} sample.x", "mkdir sample.x", "mkfifo sample.x"):
        with pytest.raises(TransformFailed, match=r"sample\.x"):
            Command(text)(SAMPLE)
    with pytest.raises(BadName):
        Command("echo > 'sample.a b'")(SAMPLE)


def test_directories_without_permissions_are_removed(private):
    Command("mkdir -p a/b; touch a/b/c; chmod 0 a/b; chmod 0 a")(SAMPLE)
    assert list(private.iterdir()) == []


def test_scripts(tmp_path):
    script = tmp_path / "s.py"
    script.write_text("open('sample.n', 'w').write(str(len(open('sample.txt').read())))")
    command = Command(script=str(script), interpreter="python3 -I")
    assert command(SAMPLE)[0]["n"] == b"5"
    before = command.options()
    script.write_text("pass")
    assert command.options() != before
    with pytest.raises(UsageError, match="absent"):
        Command(script=str(tmp_path / "absent"))
    with pytest.raises(UsageError, match="interpreter"):
        Command(script=str(script), interpreter="no-such-program")
    with pytest.raises(UsageError):
        Command()


def test_failed_samples_are_kept_for_a_look(tmp_path):
    kept = tmp_path / "kept"
    command = Command("echo why; echo half > sample.new; false", keep_dir=str(kept))
    for _ in range(2):
        with pytest.raises(TransformFailed, match=str(kept)):
            command(SAMPLE)
    one, two = sorted(kept.iterdir())
    for location in (one, two):
        assert (location / "sample.new").read_text() == "half\n"
        assert (location / "output.txt").read_text() == "why\n"
        assert stat.S_ISDIR(os.lstat(location).st_mode)


def test_stop_kills_running_commands_and_starts_no_more():
    running, problems = Running(), []

    def work():
        try:
            Command(SLEEP)(SAMPLE, running)
        except TransformFailed as error:
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert until(lambda: running._commands)
    running.stop()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert "signal 9" in str(problems[0])
    with pytest.raises(TransformFailed, match="stopped"):
        Command("true")(SAMPLE, running)
    assert no_sleepers()


def test_a_full_disk_does_not_skip_the_sample(monkeypatch, tmp_path):
    real = builtins.open

    def full(path, mode="r", *rest, **more):
        if mode == "xb":
            raise OSError(errno.ENOSPC, "full")
        return real(path, mode, *rest, **more)

    monkeypatch.setattr(builtins, "open", full)
    with pytest.raises(DiskFull, match="TMPDIR"):
        Command("true")(SAMPLE)
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises(WriteError, match="TMPDIR"):
        Command("true")(SAMPLE)
