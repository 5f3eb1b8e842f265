"""Secrets in URLs are never printed, and are written only to files that only their owner can read.

Every verb is tested on intact, damaged and missing shards, with user info, a query or a fragment in the URL,
next to characters at which a regular expression over finished text would stop.
"""

from __future__ import annotations

import gc
import os
import shutil
import stat
from pathlib import Path
from urllib.parse import quote

import pytest

import tarmac
import tarmac.webdataset as wds
from embedding.models import HERE
from harness.commands import run
from harness.folder import folder
from harness.shards import plain
from tarmac.errors import SecretsWritten, SingleZeroBlock, TarmacError, UnclosedWriter
from tools.shards import make

SECRET = "hunter2hunter2"
NAMES = ["s0.tar", "a b.tar", "it's.tar", 'q"q.tar', "a<b>.tar", "torn one.tar", "not there.tar"]
FORMS = [
    "http://user:{0}@{host}/{name}",
    "http://user:p@{0}@{host}/{name}",
    "http://{host}/{name}?sig={0}",
    "http://{host}/{name}?a='{0}'&b=\"{0}\"",
    "http://{host}/{name}?a=b {0} <{0}>",
    "http://{host}/{name}#{0}",
    "http://{host}/{name}?x#{0}",
    "http://u:{0}@{host}/{name}?sig={0}#{0}",
    "http://user:a/{0}@{host}/{name}",
]

VERBS: dict[str, list[str]] = {
    "pack": ["pack", "SOURCE", "--from", "lines", "-o", "p-{i}.tar"],
    "copy": ["copy", "SOURCE", "-o", "c-{i}.tar", "--index"],
    "copy-json": ["copy", "SOURCE", "-o", "dir/", "--json", "--manifest", "made.json"],
    "copy-mix": ["copy", "--mix", "SOURCE", "-o", "c-{i}.tar"],
    "copy-storage": ["copy", "x.tar", "--storage", "SOURCE", "-o", "c-{i}.tar"],
    "copy-slice": ["copy", "x.tar", "--slice", "SOURCE", "-o", "c-{i}.tar"],
    "sort": ["sort", "SOURCE", "-o", "s-{i}.tar", "--json"],
    "map": ["map", "SOURCE", "-c", "true", "-o", "m-{i}.tar"],
    "join": ["join", "SOURCE", "--with", "SOURCE", "-o", "j-{i}.tar", "--replace"],
    "index": ["index", "SOURCE", "-o", "secret.json"],
    "index-sidecars": ["index", "SOURCE", "-o", "secret.json", "--sidecars", "sidecars"],
    "index-json": ["index", "SOURCE", "-o", "secret.json", "--json"],
    "check": ["check", "SOURCE", "--ledger", "ledger.jsonl"],
    "check-json": ["check", "SOURCE", "--json", "--all-errors", "--require", "nothing"],
    "check-twice": ["check", "SOURCE", "SOURCE", "--duplicates"],
    "check-twice-json": ["check", "SOURCE", "SOURCE", "--duplicates", "--json"],
    "check-repair": ["check", "SOURCE", "--repair", "-o", "r/"],
    "check-repair-losses": ["check", "SOURCE", "--repair", "-o", "r/", "--losses", "lost.jsonl"],
    "show": ["show", "SOURCE"],
    "show-json": ["show", "SOURCE", "--json"],
    "show-at": ["show", "SOURCE", "--at", "99"],
    "show-raw": ["show", "SOURCE", "--raw", "nothing"],
    "show-extract": ["show", "SOURCE", "--extract", "x"],
    "export": ["export", "SOURCE", "-o", "e.jsonl", "--json"],
    "embed": ["embed", "SOURCE", "-o", "v/", "--model", f"{HERE}:Letters", "--text", "txt"],
    "embed-score": [
        "embed",
        "SOURCE",
        "-o",
        "v/",
        "--model",
        f"{HERE}:Letters",
        "--text",
        "txt",
        "--score",
        f"{HERE}:Longest",
    ],
    "audit": ["audit", "SOURCE", "--batch-size", "2", "--step", "0"],
    "audit-json": ["audit", "SOURCE", "--batch-size", "2", "--step", "0", "--json"],
    "cache": ["cache", "warm", "SOURCE", "--cache", "kept"],
    "cache-json": ["cache", "warm", "SOURCE", "--cache", "kept", "--json"],
    "cache-ls": ["cache", "ls", "--cache", "kept", "--json"],
    "cache-evict": ["cache", "evict", "SOURCE", "--cache", "kept", "--json"],
}


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    root = tmp_path_factory.mktemp("secrets")
    make(root, 3, name="s{}.tar")
    whole = (root / "s0.tar").read_bytes()
    for name in NAMES[1:-2]:
        (root / name).write_bytes(whole)
    (root / "torn one.tar").write_bytes(whole[: len(whole) // 2])
    with folder(root, keep_alive=False) as url:
        yield url.removeprefix("http://")


def urls(host: str) -> list[str]:
    """Return all URL forms with all names; spaces and quotes unescaped, and escaped as by browsers."""
    names = [*NAMES, quote("torn one.tar"), quote("a b.tar")]
    pairs = [
        (form, name)
        for number, form in enumerate(FORMS)
        for name in (names if number in (0, 2) else NAMES[:6:5])
    ]
    return [form.replace("{0}", SECRET).format(host=host, name=name) for form, name in pairs]


def leaks(folder: Path) -> list[str]:
    """Return files with the secret in their name or content that other users can read."""
    leaks = []
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        private = path.is_file() and stat.S_IMODE(path.stat().st_mode) == 0o600
        if SECRET in path.name or (SECRET.encode() in content and not private):
            leaks.append(str(path))
    return leaks


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_neither_print_nor_write_secrets(host, verb, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for url in urls(host):
        for path in tmp_path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        jobs = ["-j", "1"] if VERBS[verb][0] not in ("show", "audit", "cache") else []
        for _ in range(2):  # the second run has a ledger, an index, or an existing output
            status = run([url if each == "SOURCE" else each for each in VERBS[verb]] + jobs)
            shown = capfd.readouterr()
            assert SECRET not in shown.out + shown.err, (url, status)
            assert "Traceback" not in shown.err, url
        assert leaks(tmp_path) == [], url


@pytest.mark.parametrize(
    "verb",
    [
        ["map", "-c", f"true -u me:{SECRET}", "-o", "m-{i}.tar"],
        ["map", "-c", f"TOKEN={SECRET} false", "-o", "m-{i}.tar", "--on-error", "skip"],
        ["copy", "--post-cmd", f"true -u me:{SECRET}", "-o", "c-{i}.tar"],
        ["copy", "--post-cmd", f"TOKEN={SECRET} false", "-o", "c-{i}.tar"],
    ],
)
def test_ledgers_do_not_contain_arguments_of_commands(verb, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    command = [verb[0], *make(tmp_path, 2), *verb[1:], "-j", "1"]
    for arguments in (command, command, [*command, "--max-samples", "1"]):  # the last is another job
        run(arguments)
        shown = capfd.readouterr()
        assert SECRET not in shown.out + shown.err
    assert leaks(tmp_path) == []


def test_files_with_secrets_are_private_and_warn(host, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    try:
        url = f"http://{host}/s0.tar?sig={SECRET}"
        assert not run(["index", url, "-o", "secret.json", "--sidecars", "sidecars", "-j", "1"])
        assert "secret.json contains the credentials" in capfd.readouterr().err
        assert stat.S_IMODE(Path("secret.json").stat().st_mode) == 0o600
        assert SECRET in Path("secret.json").read_text()
        assert len(tarmac.Dataset("secret.json")) == 3
        url = url.partition("?")[0]
        assert not run(["index", url, "-o", "open.json", "--sidecars", "sidecars", "-j", "1"])
        assert "credentials" not in capfd.readouterr().err
        assert stat.S_IMODE(Path("open.json").stat().st_mode) == 0o644
        beside = f"http://user:{SECRET}@{host}"  # names beside a manifest are relative and contain no secret
        assert not run(["index", f"{beside}/s0.tar", "-o", f"{beside}/beside.json", "-j", "1"])
        assert "credentials" not in capfd.readouterr().err
        assert SECRET not in wds.gopen(f"http://{host}/beside.json").read().decode()
        with pytest.warns(SecretsWritten, match=r"mode 0600"):
            tarmac.indexing.manifest.write_manifest(
                tarmac.indexing.manifest.read_manifest("secret.json"), "again.json"
            )
    finally:
        os.umask(before)


def test_errors_contain_no_secrets(host):
    for url in urls(host):
        with pytest.raises(TarmacError) as caught:
            for source in (url, url.replace(host, "127.0.0.1:1")):
                list(tarmac.read(source, storage=tarmac.StorageOptions(retries=0, connect_timeout=1)))
        assert SECRET not in f"{caught.value} {caught.value!r} {caught.value.args} {caught.value.url}"


WARNED = [f"?sig=AB {SECRET}", f"?a=b {SECRET} <{SECRET}>", f"#x {SECRET}"]


@pytest.mark.parametrize("secret", WARNED)
def test_warnings_contain_no_secrets(tmp_path, secret, capfd):
    """The warning about one zero block, from the command line and the library."""
    (tmp_path / "s0.tar").write_bytes(plain([("a.txt", b"1"), ("b.txt", b"2")])[:-512])
    with folder(tmp_path) as url:
        with pytest.warns(SingleZeroBlock) as caught:
            assert len(list(tarmac.read(f"{url}/s0.tar{secret}"))) == 2
        assert [text for text in map(str, (each.message for each in caught)) if SECRET in text] == []
        run(["check", f"{url}/s0.tar{secret}", "-j", "1"])
    shown = capfd.readouterr()
    assert "one zero block" in shown.out + shown.err
    assert SECRET not in shown.out + shown.err


def test_logs_contain_no_secrets(host, tmp_path, caplog):
    caplog.set_level("INFO")
    url = f"http://{host}/s0.tar?a=b {SECRET}"
    assert len(list(tarmac.WebDataset(url, shardshuffle=False, verbose=True))) == 3
    cached = tarmac.WebDataset(url, shardshuffle=False, verbose=True, cache_dir=str(tmp_path))
    assert len(list(cached)) == 3
    with tarmac.ShardWriter(f"http://{host}/made-%d.tar?a=b {SECRET}") as writer:
        writer.write({"__key__": "a", "txt": "b"})
    assert "s0.tar?…" in caplog.text
    assert "made-0.tar?…" in caplog.text
    assert SECRET not in caplog.text


def test_warnings_of_unclosed_writers_contain_no_secrets(host):
    with pytest.warns(UnclosedWriter, match=r"open\.tar\?…: ") as caught:
        writer = tarmac.TarWriter(f"http://{host}/open.tar?a=b {SECRET}")
        writer.write({"__key__": "a", "txt": "b"})
        del writer
        gc.collect()
    assert SECRET not in str(caught[0].message)


@pytest.mark.parametrize("end", [f"?sig={SECRET}", f"?sig=a/{SECRET}", f"?sig={SECRET}#x", f"#{SECRET}"])
def test_names_of_ledgers_contain_no_secrets(tmp_path, end, capfd):
    (path,) = make(tmp_path, 4)
    root = tmp_path / "served"
    root.mkdir()
    with folder(root) as url:
        target = f"http://user:{SECRET}@{url.removeprefix('http://')}/out/o-{{i}}.tar{end}"
        for _ in range(2):
            assert not run(["copy", path, "-o", target, "--max-samples", "2", "--index", "-j", "1"])
    assert SECRET not in "".join(capfd.readouterr())
    assert (root / "out/o-1.tar").exists()
    assert len(list((root / "out/.tarmac").iterdir())) == 1
    assert leaks(tmp_path) == []
