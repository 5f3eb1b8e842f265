"""`hf://`: URLs of the hub, and a token that is sent only to the hub."""

from __future__ import annotations

import random

import pytest

from harness.faultserver import Action, FaultServer
from tarmac.errors import AccessDenied, UnsupportedScheme, UrlError
from tarmac.storage import StorageOptions, open_read, open_write, read_range, stat
from tarmac.storage.hub import HubStore
from tarmac.storage.types import DEFAULT_STORAGE

BODY = random.Random(8).randbytes(100_000)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("hf://datasets/org/name/x.tar", "datasets/org/name/resolve/main/x.tar"),
        ("hf://datasets/org/name@v1.0/d/x.tar", "datasets/org/name/resolve/v1.0/d/x.tar"),
        ("hf://org/name/x.tar", "org/name/resolve/main/x.tar"),
        ("hf://models/org/name/x.tar", "org/name/resolve/main/x.tar"),
        ("hf://datasets/o/n@refs%2Fpr%2F1/x y#1.tar", "datasets/o/n/resolve/refs%2Fpr%2F1/x%20y%231.tar"),
    ],
)
def test_addresses(url, path):
    assert HubStore().resolve(url, DEFAULT_STORAGE)[0] == f"https://huggingface.co/{path}"


@pytest.mark.parametrize(
    "url", ["hf://", "hf://datasets/org", "hf://datasets/org/name", "hf://org/name/", "hf://a//b/c"]
)
def test_invalid_urls(url):
    with pytest.raises(UrlError, match="hf:"):
        HubStore().resolve(url, DEFAULT_STORAGE)


@pytest.fixture
def hub(monkeypatch):
    with FaultServer(BODY) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url.removesuffix("/object.tar"))
        monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
        yield server


URL = "hf://datasets/org/name/train-0.tar"


def fetch(url: str, options: StorageOptions) -> bytes:
    with open_read(url, options) as source:
        return b"".join(iter(lambda: source.read(1 << 20), b""))


def test_read_with_the_token(hub, hasty):
    assert fetch(URL, hasty) == BODY
    assert read_range(URL, 10, 20, hasty) == BODY[10:20]
    assert stat(URL, hasty).size == len(BODY)
    assert {request.path for request in hub.requests} == {"/datasets/org/name/resolve/main/train-0.tar"}
    assert {request.headers["authorization"] for request in hub.requests} == {"Bearer hf_verysecret"}


def test_a_header_of_the_caller_takes_precedence(hub, hasty):
    from dataclasses import replace

    fetch(URL, replace(hasty, headers={"authorization": "Bearer other"}))
    assert hub.requests[-1].headers["authorization"] == "Bearer other"


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_the_token_is_not_sent_to_redirect_targets(hub, hasty, framing):
    with FaultServer(BODY) as cdn:
        cdn.script([], then=Action(framing=framing))
        hub.script([], then=Action(status=302, headers={"Location": f"{cdn.url}?X-Amz-Signature=1"}))
        assert fetch(URL, hasty) == BODY
        assert all("authorization" in request.headers for request in hub.requests)
        assert len(cdn.requests) >= 1
        assert not any("authorization" in request.headers for request in cdn.requests)


def test_the_token_stays_out_of_errors(hub, hasty):
    hub.script([], then=Action(status=401))
    with pytest.raises(AccessDenied) as denied:
        fetch(URL, hasty)
    assert "verysecret" not in str(denied.value)


def test_uploads_are_not_supported(hasty):
    with pytest.raises(UnsupportedScheme, match="read-only"):
        open_write(URL, hasty)
