"""Secrets in URLs and headers reach their server, but no message."""

from __future__ import annotations

import traceback
from dataclasses import replace

import pytest

from harness.faultserver import NO_REPLY, REDIRECT_TO_FILE, REDIRECT_TO_SELF, Action, FaultServer
from harness.waiting import FOREVER
from storage.test_network import BODY, fetch
from tarmac.errors import TarmacError
from tarmac.storage import read_range, stat

SIGNED = [
    "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA{0}&X-Amz-Signature={0}",
    "AWSAccessKeyId=AKIA{0}&Signature={0}&Expires=1",
    "sv=2021&sig={0}&se=2030",
    "Expires=1&GoogleAccessId=x&Signature={0}",
    "token={0}",
    "access_token={0}#x",
]
SECRETS = [f"s3cr3t{number:02d}" * 3 for number in range(36)]


def secret_urls(base: str) -> list[tuple[str, str]]:
    host = base.removeprefix("http://")
    urls = []
    for number, secret in enumerate(SECRETS):
        if number % 6 == 5:
            urls.append((f"http://user:{secret}@{host}", secret))
        else:
            urls.append((f"{base}?{SIGNED[number % 6].format(secret)}", secret))
    return urls


@pytest.mark.parametrize(
    "action",
    [
        Action(status=403),
        Action(status=404),
        Action(status=503),
        Action(cut=10),
        Action(framing="chunked", cut=10),
        Action(framing="close", stall=FOREVER),
        NO_REPLY,
        REDIRECT_TO_SELF,
        REDIRECT_TO_FILE,
    ],
    ids=["403", "404", "503", "cut", "chunked", "stall", "silence", "circle", "file"],
)
def test_secrets_stay_out_of_messages_and_tracebacks(hasty, action):
    options = replace(
        hasty, retries=1, idle_timeout=0.2, headers={"Authorization": "Bearer t0psecrett0psecret"}
    )
    with FaultServer(BODY, etag=None) as server:
        server.script([], then=action)
        for url, secret in secret_urls(server.url)[:: 6 if action.stall else 1]:
            for operation in (fetch, stat, lambda u, o: read_range(u, 0, 10, o)):
                try:
                    operation(url, options)
                except TarmacError as error:
                    text = "".join(traceback.format_exception(error)) + repr(error) + str(error.__dict__)
                    assert secret not in text
                    assert "t0psecret" not in text


def test_a_password_in_the_url_is_sent_as_a_header(hasty):
    with FaultServer(BODY) as server:
        url = server.url.replace("http://", "http://me:p%40ss@")
        assert fetch(url, hasty) == BODY
        server.script([], then=Action(framing="chunked"))
        assert fetch(url, hasty) == BODY
    assert {request.headers.get("authorization") for request in server.requests} == {"Basic bWU6cEBzcw=="}
