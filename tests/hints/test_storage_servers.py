"""Follow the hints of servers, credentials and the cache."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import obstore
import pytest

import tarmac
from harness.commands import run
from harness.faultserver import IGNORE_RANGE, Action, FaultServer
from harness.folder import Handler, folder, serving
from harness.hints import follows, hinted
from harness.servers import redirector
from harness.shards import plain
from storage.caches import FAST
from tarmac.storage import httprequest

pytestmark = pytest.mark.processes
SHARD = plain()
KEYS = {"access_key_id": "a", "secret_access_key": "b"}


@pytest.fixture(autouse=True)
def own_environment(tmp_path, monkeypatch):
    """Use no credentials, indexes or profiles of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "HF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def server():
    with FaultServer(SHARD) as server:
        yield server


@pytest.fixture
def bucket(tmp_path):
    """The endpoint of a store with the bucket `data`."""
    (tmp_path / "root/data").mkdir(parents=True)
    (tmp_path / "root/data/x.tar").write_bytes(SHARD)
    with folder(tmp_path / "root") as url:
        yield url


def count(shards, storage=FAST, **options) -> int:
    return len(list(tarmac.read(shards, storage=storage, **options)))


@follows("a `cache`, which downloads whole shards.")
def test_a_server_without_ranges(server, tmp_path, capsys):
    server.script([], then=IGNORE_RANGE)
    with hinted("a `cache`, which downloads whole shards."):
        tarmac.Dataset(server.url, storage=FAST)[1]
    cache = tarmac.Cache(tmp_path / "cache")
    assert tarmac.Dataset(server.url, storage=FAST, cache=cache)[1]["__key__"] == "s1"
    assert run(["show", server.url, "--at", "s2"]) == 3
    assert "Try: a --cache, which downloads whole shards." in capsys.readouterr().err
    assert run(["show", server.url, "--at", "s2", "--cache", "new"]) == 0


@follows("raise StorageOptions.max_unsized_bytes if the file is that large.")
def test_a_large_file_without_a_length(server, capsys):
    server.script([], then=Action(framing="close"))
    with hinted("raise StorageOptions.max_unsized_bytes if the file is that large."):
        count(server.url, replace(FAST, max_unsized_bytes=100))
    assert count(server.url, replace(FAST, max_unsized_bytes=len(SHARD))) == 3
    checking = ["check", server.url, "-j", "1", "--storage"]
    assert run([*checking, "max_unsized_bytes=100"]) == 3
    assert "Try: raise --storage max_unsized_bytes=N if the file" in capsys.readouterr().out
    assert run([*checking, f"max_unsized_bytes={len(SHARD)}"]) == 0


@follows("raise StorageOptions.total_timeout if the server is only slow.")
def test_a_slow_server(server, monkeypatch):
    ticks = itertools.count()  # a clock that advances by one second per call
    monkeypatch.setattr(httprequest, "_now", lambda: next(ticks))
    server.script([], then=Action(framing="chunked"))
    with hinted("raise StorageOptions.total_timeout if the server is only slow."):
        count(server.url, replace(FAST, total_timeout=1))
    assert count(server.url, replace(FAST, total_timeout=1000)) == 3


@follows("web servers cannot be listed; name the shards: x-{0000..0009}.tar")
def test_a_pattern_for_a_web_server(tmp_path):
    for number in range(10):
        (tmp_path / f"x-{number:04d}.tar").write_bytes(SHARD)
    with folder(tmp_path) as url:
        with hinted("web servers cannot be listed; name the shards: x-{0000..0009}.tar"):
            count(f"{url}/x-*.tar")
        assert count(f"{url}/x-{{0000..0009}}.tar") == 30


@follows("check the credentials and what they allow.")
def test_rejected_credentials():
    class Guarded(Handler):
        def do_GET(self):
            allowed = self.headers.get("Authorization") == "Bearer right"
            self.reply(200 if allowed else 403, length=len(SHARD) if allowed else 0)
            self.wfile.write(SHARD if allowed else b"")

    with serving(Guarded) as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with hinted("check the credentials and what they allow."):
                count(f"{url}/x.tar", replace(FAST, headers=headers))
        assert count(f"{url}/x.tar", replace(FAST, headers={"Authorization": "Bearer right"})) == 3


@follows("if that server can be trusted, use its URL instead.")
def test_a_redirect_into_a_private_network(server, monkeypatch):
    monkeypatch.setenv("TARMAC_SECURE", "1")
    networks = iter([""])  # the first server counts as public, all others as private
    monkeypatch.setattr("tarmac.storage.addresses.network_of", lambda _: next(networks, "this machine"))
    with redirector(lambda _: server.url) as url:
        with hinted("if that server can be trusted, use its URL instead."):
            count(f"{url}/x.tar")
    assert count(server.url) == 3


@follows("check the endpoint, region and bucket.")
def test_a_client_that_crashes(bucket, monkeypatch):
    class PanicException(BaseException):
        pass

    get = obstore.get

    def crashing(client, *args, **options):
        if client.config.get("region") == "invalid":
            raise PanicException("region")
        return get(client, *args, **options)

    monkeypatch.setattr(obstore, "get", crashing)
    config = {**KEYS, "endpoint": bucket, "region": "invalid"}
    with hinted("check the endpoint, region and bucket."):
        count("s3://data/x.tar", replace(FAST, config=config))
    assert count("s3://data/x.tar", replace(FAST, config={**config, "region": "us-east-1"})) == 3


@follows("http://{} or https://{}.")
def test_an_endpoint_without_a_scheme(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.removeprefix("http://"))
    with hinted("http://{} or https://{}.") as caught:
        count("s3://data/x.tar", replace(FAST, config=KEYS))
    monkeypatch.setenv("AWS_ENDPOINT_URL", re.match(r"http://\S+", caught.value.hint)[0])
    assert count("s3://data/x.tar", replace(FAST, config=KEYS)) == 3


PROFILE = "aws_access_key_id = a\naws_secret_access_key = b\n"


@follows("set AWS_PROFILE to one of these, or run aws configure --profile {}.")
def test_a_profile_that_is_missing(bucket, monkeypatch):
    Path("credentials").write_text(f"[work]\n{PROFILE}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket)
    monkeypatch.setenv("AWS_PROFILE", "wrok")
    with hinted("set AWS_PROFILE to one of these, or run aws configure --profile wrok."):
        count("s3://data/x.tar")
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert count("s3://data/x.tar") == 3
    monkeypatch.setenv("AWS_PROFILE", "wrok")
    Path("credentials").write_text(f"[work]\n{PROFILE}[wrok]\n{PROFILE}")  # as aws configure does
    assert count("s3://data/x.tar") == 3


@follows("a line such as [default], or region = us-east-1.")
@pytest.mark.parametrize("name", ["config", "credentials"])
def test_an_invalid_file_of_the_sdk(bucket, monkeypatch, name):
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket)
    valid = f"[default]\n{PROFILE}region = us-east-1\n"
    for damaged in (valid.removeprefix("[default]\n"), valid.replace("region = us-east-1", "us-east-1")):
        Path(name).write_text(damaged)
        with hinted("a line such as [default], or region = us-east-1.") as caught:
            count("s3://data/x.tar")
        assert caught.value.url == os.path.abspath(name)
    Path(name).write_text(valid)
    assert count("s3://data/x.tar") == 3


@follows("check the URL and the server, and read it again; the response was not cached.")
def test_a_page_in_place_of_a_shard(server):
    server.script([Action(body=b"<html>busy</html>" * 100)])
    with hinted("check the URL and the server, and read it again; the response was not cached."):
        count(server.url, cache=tarmac.Cache("cache"))
    assert count(server.url, cache=tarmac.Cache("cache")) == 3


@follows(
    "read it again: the damaged copy {} was removed from the cache. If the error persists, the shard is damaged "
    "in the store."
)
def test_a_damaged_copy(server):
    server.script([Action(body=SHARD[:-1500])])
    with hinted(
        "read it again: the damaged copy {} was removed from the cache. If the error persists, the shard is damaged "
        "in the store."
    ):
        count(server.url, cache=tarmac.Cache("cache"))
    assert count(server.url, cache=tarmac.Cache("cache")) == 3


@follows("remove the damaged copy {} from the cache and read it again.")
def test_a_damaged_copy_that_cannot_be_removed(server, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(13, "denied")

    server.script([Action(body=SHARD[:-1500])])
    with (
        monkeypatch.context() as patch,
        hinted("remove the damaged copy {} from the cache and read it again.") as caught,
    ):
        patch.setattr(os, "unlink", denied)
        count(server.url, cache=tarmac.Cache("cache"))
    os.remove(re.search("copy (.*) from", caught.value.hint)[1])
    assert count(server.url, cache=tarmac.Cache("cache")) == 3


@follows("write a local manifest, or copy the shards to the store first.")
def test_a_manifest_of_local_shards_in_a_store(tmp_path):
    Path("x.tar").write_bytes(SHARD)
    (tmp_path / "root").mkdir()
    with folder(tmp_path / "root") as url:
        with hinted("write a local manifest, or copy the shards to the store first."):
            tarmac.index("x.tar", f"{url}/all.json", jobs=1)
        tarmac.index("x.tar", "all.json", jobs=1)
        assert len(tarmac.Dataset("all.json")) == 3
        tarmac.copy("x.tar", f"{url}/x.tar", jobs=1)
        tarmac.index(f"{url}/x.tar", f"{url}/all.json", jobs=1)
        assert tarmac.Dataset(f"{url}/all.json")[2]["__key__"] == "s2"


@follows("set TARMAC_HOME to a writable directory, or tarmac index SHARDS --sidecars DIR -o FILE.json")
def test_an_index_without_a_place(tmp_path, monkeypatch):
    (tmp_path / "root").mkdir()
    (tmp_path / "root/x.tar").write_bytes(SHARD)
    monkeypatch.setenv("TARMAC_HOME", "/dev/null/home")
    with folder(tmp_path / "root") as url:
        with hinted(
            "set TARMAC_HOME to a writable directory, or tarmac index SHARDS --sidecars DIR -o FILE.json"
        ):
            tarmac.Dataset(f"{url}/x.tar")
        assert run(["index", f"{url}/x.tar", "--sidecars", "DIR", "-o", "FILE.json", "-j", "1"]) == 0
        assert tarmac.Dataset("FILE.json")[2]["__key__"] == "s2"
        monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "writable"))
        assert tarmac.Dataset(f"{url}/x.tar")[2]["__key__"] == "s2"


@pytest.fixture
def without_credentials():
    """A config without credentials: those of the container or instance are denied by a proxy."""

    class Denied(Handler):
        def do_GET(self):
            self.reply(403)

        do_PUT = do_GET

    class Bucket(Handler):
        def do_GET(self):
            self.reply(200, {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT", "ETag": '"1"'}, len(SHARD))
            self.wfile.write(SHARD)

    with serving(Denied) as proxy, serving(Bucket) as url:
        yield url, {"proxy_url": proxy, "allow_http": "true"}


SIGNING = {
    "s3": "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; AWS_SKIP_SIGNATURE=true for a public bucket.",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS; GOOGLE_SKIP_SIGNATURE=true for a public bucket.",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; AZURE_SKIP_SIGNATURE=true for a public container.",
}
VARIABLES = {
    "s3": [
        {"AWS_PROFILE": "work"},
        {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
        {"AWS_SKIP_SIGNATURE": "true"},
    ],
    "gs": [{"GOOGLE_APPLICATION_CREDENTIALS": "account.json"}, {"GOOGLE_SKIP_SIGNATURE": "true"}],
    "az": [
        {"AZURE_STORAGE_ACCOUNT_NAME": "me", "AZURE_STORAGE_ACCOUNT_KEY": "eHg="},
        {"AZURE_SKIP_SIGNATURE": "true"},
    ],
}


def service_account() -> dict[str, str]:
    """Return credentials with a new key; requests are signed with it, without asking a server."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    command = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]
    key = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {"type": "service_account", "client_email": "me", "private_key_id": "k", "private_key": key}


@follows(
    "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; AWS_SKIP_SIGNATURE=true for a public bucket.",
    "GOOGLE_APPLICATION_CREDENTIALS; GOOGLE_SKIP_SIGNATURE=true for a public bucket.",
    "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY; AZURE_SKIP_SIGNATURE=true for a public container.",
)
@pytest.mark.parametrize("scheme", SIGNING)
def test_no_credentials(without_credentials, monkeypatch, scheme):
    url, config = without_credentials
    Path("credentials").write_text(f"[work]\n{PROFILE}")
    if scheme == "gs":
        Path("account.json").write_text(json.dumps(service_account()))
    names = {"s3": "endpoint", "gs": "google_base_url", "az": "azure_endpoint"}
    config[names[scheme]] = url
    first = {"account_name": "me"} if scheme == "az" else {}
    with hinted(SIGNING[scheme]):
        count(f"{scheme}://data/x.tar", replace(FAST, retries=0, config=config | first))
    del config["proxy_url"]
    for variables in VARIABLES[scheme]:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            more = {} if "AZURE_STORAGE_ACCOUNT_NAME" in variables else first
            assert count(f"{scheme}://data/x.tar", replace(FAST, config=config | more)) == 3
