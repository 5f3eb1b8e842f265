"""Profiles whose credentials boto3 fetches: single sign-on, roles and processes, against services on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.folder import Handler, serving

pytest.importorskip("boto3", reason="the extra aws is not installed")
LATER = "2099-01-01T00:00:00Z"
ROLE = f"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>s3cret</SecretAccessKey><SessionToken>token</SessionToken>
<Expiration>{LATER}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""
SIGNED_ON = {
    "roleCredentials": {
        "accessKeyId": "ASIASSO",
        "secretAccessKey": "s3cret",
        "sessionToken": "token",
        "expiration": 4070908800000,
    }
}


class Amazon(Handler):
    """STS, the portal of single sign-on, and S3, which answers with the access key that signed the request."""

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        assert "Action=AssumeRole" in form
        assert "AKIABASE" in self.headers["Authorization"]
        self.answer(ROLE.encode())

    def do_GET(self) -> None:
        if self.path.startswith("/federation/credentials"):
            if self.headers["x-amz-sso_bearer_token"] == "signed-on":
                self.answer(json.dumps(SIGNED_ON).encode())
            else:
                self.reply(401)
            return
        key = re.search(r"Credential=(\w+)/", self.headers["Authorization"])[1]
        self.answer(f"{key} {self.headers['x-amz-security-token']}".encode())

    def answer(self, body: bytes) -> None:
        self.reply(200, {"ETag": '"1"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}, len(body))
        self.wfile.write(body)


READ = """
from tarmac.errors import AccessDenied
from tarmac.storage import open_read
try:
    with open_read("s3://bucket/x.tar") as source:
        print(source.read(100).decode())
except AccessDenied as error:
    print(error)
"""


@pytest.fixture
def read(tmp_path):
    """Return a function that reads an object with a profile, in a process of its own: the SDK keeps its home."""
    process = tmp_path / "process.py"
    keys = {"Version": 1, "AccessKeyId": "AKIAPROCESS", "SecretAccessKey": "s", "SessionToken": "token"}
    process.write_text(f"print('{json.dumps(keys | {'Expiration': LATER})}')")
    lines = {
        "role": "role_arn = arn:aws:iam::1:role/x\nsource_profile = base",
        "process": f"credential_process = {sys.executable} {process}",
        "sso": "sso_session = corp\nsso_account_id = 1\nsso_role_name = reader",
    }
    config = "".join(f"[profile {name}]\nregion = eu-west-1\n{text}\n" for name, text in lines.items())
    config += "[sso-session corp]\nsso_region = eu-west-1\nsso_start_url = http://127.0.0.1/start\n"
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "config").write_text(config)
    (folder / "credentials").write_text("[base]\naws_access_key_id = AKIABASE\naws_secret_access_key = s\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with serving(Amazon) as address:

        def run(profile: str) -> str:
            added = {"HOME": str(tmp_path), "AWS_PROFILE": profile, "AWS_ENDPOINT_URL": address}
            command = [sys.executable, "-c", READ]
            done = subprocess.run(
                command, env=kept | added, capture_output=True, text=True, timeout=60, check=True
            )
            return done.stdout.strip()

        yield run


def sign_on(home: Path, token: str) -> None:
    """Write what `aws sso login` writes."""
    cache = home / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    content = {"accessToken": token, "expiresAt": LATER, "region": "eu-west-1"}
    (cache / f"{hashlib.sha1(b'corp').hexdigest()}.json").write_text(json.dumps(content))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("profile", "key"), [("role", "ASIAROLE"), ("process", "AKIAPROCESS"), ("sso", "ASIASSO")]
)
def test_requests_are_signed_with_fetched_credentials(profile, key, read, tmp_path):
    sign_on(tmp_path, "signed-on")
    assert read(profile) == f"{key} token"


@pytest.mark.processes
def test_a_sign_on_that_is_missing_or_rejected_says_how_to_sign_on(read, tmp_path):
    assert "aws sso login --profile sso" in read("sso")
    sign_on(tmp_path, "expired")
    assert "aws sso login --profile sso" in read("sso")
