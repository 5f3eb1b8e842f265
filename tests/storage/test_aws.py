"""S3 settings: the config, the environment and the profiles of the AWS SDK, in this order; none can panic."""

from __future__ import annotations

import re
import sys
import types
from dataclasses import replace

import pytest

import tarmac
from harness.folder import Handler, serving
from tarmac.errors import AccessDenied, BadSetting, ConnectFailed, NotFound, TarmacError, UrlError
from tarmac.extras import MissingExtra
from tarmac.storage import StorageOptions, open_read, open_write, read_range, stat
from tarmac.storage.clients import locate
from tarmac.storage.schemes import list_objects

KEYS = {"access_key_id": "a", "secret_access_key": "s3cret"}
CLOSED = "http://127.0.0.1:1"
"""An address at which no server listens."""


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    """Return a function that writes the files of the SDK."""

    def write(config: str = "", credentials: str = "") -> None:
        for name, text in (("CONFIG", config), ("SHARED_CREDENTIALS", credentials)):
            path = tmp_path / name.lower()
            path.write_text(text)
            monkeypatch.setenv(f"AWS_{name}_FILE", str(path))

    return write


def every_operation(url: str, storage: StorageOptions):
    yield lambda: open_read(url, storage)
    yield lambda: stat(url, storage)
    yield lambda: read_range(url, 0, 5, storage)
    yield lambda: list(list_objects(url, storage))
    yield lambda: open_write(url, storage).commit()


@pytest.mark.parametrize(
    "value", ["localhost:8333", "localhost", "http://", "", "ftp://h", "http://a b", "http://h:x"]
)
@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
def test_endpoints_need_a_scheme(name, value, hasty, monkeypatch):
    monkeypatch.setenv(name, value)
    for operation in every_operation("s3://bucket/x.tar", replace(hasty, config=KEYS)):
        with pytest.raises(BadSetting, match=f"{name}.*http:// or https://"):
            operation()


def test_the_hint_for_an_endpoint_is_an_endpoint(hasty, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:1")
    storage = replace(hasty, config=KEYS, retries=0)
    with pytest.raises(BadSetting) as info:
        stat("s3://bucket/x", storage)
    monkeypatch.setenv("AWS_ENDPOINT_URL", re.search(r"http://\S+", info.value.hint)[0])
    with pytest.raises(ConnectFailed):
        stat("s3://bucket/x", storage)


def test_endpoints_in_the_config_and_of_azure_need_a_scheme(hasty, profiles, monkeypatch):
    with pytest.raises(BadSetting, match=r"endpoint in StorageOptions.config"):
        stat("s3://bucket/x", replace(hasty, config={**KEYS, "endpoint": "localhost:1"}))
    account = {"account_name": "x", "account_key": "eHg="}
    with pytest.raises(BadSetting, match="azure_endpoint"):
        stat("az://bucket/x", replace(hasty, config={**account, "azure_endpoint": "localhost:1"}))
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "localhost:1")
    with pytest.raises(BadSetting, match="AZURE_STORAGE_ENDPOINT"):
        stat("az://bucket/x", replace(hasty, config=account))
    profiles("[default]\nendpoint_url = localhost:1\n")
    with pytest.raises(BadSetting, match="profile"):
        stat("s3://bucket/x", replace(hasty, config=KEYS))
    monkeypatch.setenv("HF_ENDPOINT", "localhost:1")
    with pytest.raises(BadSetting, match="HF_ENDPOINT"):
        stat("hf://datasets/a/b/c.tar", hasty)


@pytest.mark.parametrize(
    ("url", "config"),
    [
        ("s3://bucket/x", {**KEYS, "region": "a b"}),
        ("s3://bucket/x", {**KEYS, "region": "a\nb"}),
        ("s3://a b/x", {**KEYS, "endpoint": CLOSED}),
        ("s3://../x", {**KEYS, "endpoint": CLOSED}),
        ("s3://a?b/x", {**KEYS, "endpoint": CLOSED}),
        ("s3://bucket/x", {**KEYS, "endpoint": CLOSED, "timeout": "soon"}),
        ("az://c/x", {"account_name": "a b", "account_key": "eHg="}),
        ("gs://c d/x", {"skip_signature": "true"}),
    ],
)
def test_nothing_panics(url, config, hasty):
    for operation in every_operation(url, replace(hasty, config=config, retries=0)):
        with pytest.raises(TarmacError) as info:
            operation()
        assert "s3cret" not in str(info.value)


@pytest.mark.parametrize(
    "name", ["timeout", "aws_timeout", "proxy_url", "allow_invalid_certificates", "user_agent"]
)
def test_settings_of_the_http_client_are_accepted(name, hasty):
    values = {"proxy_url": CLOSED, "allow_invalid_certificates": "true"}
    config = {**KEYS, "endpoint": CLOSED, name: values.get(name, "9s")}
    with pytest.raises(ConnectFailed):
        stat("s3://bucket/x", replace(hasty, config=config))


@pytest.mark.parametrize(
    ("scheme", "config"),
    [
        ("s3", {**KEYS, "endpoint": CLOSED}),
        ("s3a", {**KEYS, "aws_endpoint_url": CLOSED}),
        ("s3", {**KEYS, "endpoint": CLOSED, "aws_allow_http": "true"}),
        ("az", {"account_name": "a", "account_key": "eHg=", "azure_storage_endpoint": CLOSED}),
    ],
)
def test_an_endpoint_may_be_plain_http(scheme, config, hasty):
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1 cannot be reached, after 4 retries"):
        stat(f"{scheme}://bucket/x", replace(hasty, config=config))


def test_unknown_settings_are_named(hasty):
    for url in ("s3://bucket/x", "gs://bucket/x", "az://bucket/x"):
        with pytest.raises(UrlError, match="no_such_setting"):
            stat(url, replace(hasty, config={"no_such_setting": "s3cret"}))


def test_servers_that_cannot_be_reached_are_named(hasty):
    config = {**KEYS, "endpoint": "http://me:s3cret@127.0.0.1:1"}
    with pytest.raises(
        ConnectFailed, match=r"server 127\.0\.0\.1:1 cannot be reached, after 4 retries"
    ) as info:
        stat("s3://bucket/x", replace(hasty, config=config))
    assert "s3cret" not in str(info.value)
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1 cannot"):
        stat("http://me:s3cret@127.0.0.1:1/x", hasty)


CREDENTIALS = """
[default]
aws_access_key_id = someone
aws_secret_access_key = wr%ong

[work]
aws_access_key_id = {access}
aws_secret_access_key = {secret}
"""
CONFIG = """
# the endpoint comes from the section of services
[profile work]
region = us-east-1
services = local

[services local]
s3 =
  endpoint_url = {endpoint}
  addressing_style = path
"""


def test_profiles(s3, hasty, profiles, monkeypatch, tmp_path):
    profiles(
        CONFIG.format(endpoint=s3.endpoint), CREDENTIALS.format(access=s3.access_key, secret=s3.secret_key)
    )
    monkeypatch.setenv("AWS_PROFILE", "work")
    with tarmac.TarWriter("s3://data/profile.tar", storage=hasty) as shard:
        shard.write({"__key__": "a", "txt": "1"})
    [sample] = tarmac.read("s3://data/profile.tar", storage=hasty)
    assert sample["txt"] == b"1"
    # The environment has precedence over the profile, and the config over both.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(AccessDenied, match=r"403.*AWS_ACCESS_KEY_ID in the environment"):
        stat("s3://data/profile.tar", hasty)
    keys = {"access_key_id": s3.access_key, "secret_access_key": s3.secret_key}
    assert stat("s3://data/profile.tar", replace(hasty, config=keys)).size
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, CLOSED)
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1 "):
            stat("s3://data/profile.tar", replace(hasty, config=keys))
        assert stat("s3://data/profile.tar", replace(hasty, config={**keys, "endpoint": s3.endpoint})).size


def test_the_source_of_rejected_credentials_is_named(s3, azure, hasty, profiles, monkeypatch):
    profiles(credentials=CREDENTIALS.format(access="someone", secret="s3cret"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    with pytest.raises(AccessDenied, match=r'403.*Credentials: the profile "default"\.'):
        stat("s3://data/x", hasty)
    monkeypatch.setenv("AWS_PROFILE", "work")
    for operation in every_operation("s3://data/x", hasty):
        with pytest.raises(AccessDenied, match=r'403.*Credentials: the profile "work"\.') as info:
            operation()
        assert "s3cret" not in str(info.value)
        assert "someone" not in str(info.value)
    with pytest.raises(AccessDenied, match=r"Credentials: StorageOptions\.config\."):
        stat("s3://data/x", replace(hasty, config=KEYS))
    with pytest.raises(AccessDenied, match=r"Credentials: none \(skip_signature\)"):
        stat("s3://data/x", replace(hasty, config={"skip_signature": "true"}))
    config = {**azure.config(), "account_key": "d3Jvbmc="}
    with pytest.raises(AccessDenied, match=r"Credentials: account_key in StorageOptions\.config"):
        stat("az://data/x", replace(hasty, config=config))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", config.pop("account_key"))
    with pytest.raises(AccessDenied, match=r"Credentials: AZURE_STORAGE_ACCOUNT_KEY"):
        stat("az://data/x", replace(hasty, config=config))


@pytest.mark.processes
@pytest.mark.parametrize("secure", ["0", "1"])
def test_the_source_of_credentials_for_web_servers(secure, hasty, monkeypatch):
    class Deny(Handler):
        def do_GET(self):
            self.reply(403)

        do_HEAD = do_GET

    monkeypatch.setenv("TARMAC_SECURE", secure)
    with serving(Deny) as url:
        with pytest.raises(AccessDenied, match=r"403.*Credentials: none\."):
            stat(f"{url}/x.tar", hasty)
        with pytest.raises(AccessDenied, match=r"Credentials: the header Authorization\."):
            stat(f"{url}/x.tar", replace(hasty, headers={"authorization": "Bearer s3cret"}))
        with pytest.raises(AccessDenied, match=r"Credentials: the user and password of the URL\.") as info:
            stat(f"{url.replace('://', '://me:s3cret@')}/x.tar", hasty)
    assert "s3cret" not in str(info.value)


def test_a_changed_file_makes_a_new_client(hasty, profiles, s3):
    text = (
        CREDENTIALS.replace("[work]", "[other]")
        .replace("[default]", "[work]")
        .replace("[other]", "[default]")
    )
    profiles(
        f"[default]\nendpoint_url = {s3.endpoint}\n", text.format(access=s3.access_key, secret="wrong-secret")
    )
    with pytest.raises(AccessDenied):
        stat("s3://data/changed", hasty)
    profiles(
        f"[default]\nendpoint_url = {s3.endpoint}\n", text.format(access=s3.access_key, secret=s3.secret_key)
    )
    with pytest.raises(NotFound):
        stat("s3://data/changed", hasty)
    client = locate("s3://data/x", hasty)[0]
    assert locate("s3://data/y", hasty)[0] is client


def test_files_that_cannot_be_used(hasty, profiles, monkeypatch, tmp_path):
    profiles("[profile one]\nregion = x\n", "[two]\naws_access_key_id = a\n")
    monkeypatch.setenv("AWS_PROFILE", "three")
    with pytest.raises(BadSetting, match=r'"three".*one, two'):
        stat("s3://bucket/x", hasty)
    with pytest.raises(ConnectFailed):  # nothing of the profile is needed
        stat("s3://bucket/x", replace(hasty, config={**KEYS, "endpoint": CLOSED}))
    profiles("[default]\ns3cret without an equals sign\n")
    with pytest.raises(BadSetting, match="line 2") as info:
        stat("s3://bucket/x", hasty)
    assert "s3cret" not in str(info.value)
    (tmp_path / "config").write_bytes(b"\xff\xfe")
    with pytest.raises(BadSetting, match=r"config.*UTF-8"):
        stat("s3://bucket/x", hasty)


FETCHED = {
    "sso_session = corp\nsso_account_id = 1": "single sign-on",
    "role_arn = arn:aws:iam::1:role/x\nsource_profile = default": "a role",
    "credential_process = /bin/keys": "a credential process",
}


@pytest.mark.parametrize(("lines", "kind"), FETCHED.items())
def test_fetched_credentials_need_boto3(lines, kind, hasty, profiles, monkeypatch):
    profiles(f"[profile dev]\n{lines}\n")
    monkeypatch.setenv("AWS_PROFILE", "dev")
    monkeypatch.setitem(sys.modules, "boto3", None)
    for operation in every_operation("s3://bucket/x", hasty):
        with pytest.raises(MissingExtra, match=rf'profile "dev" uses {kind}.*"tarmac-data\[aws\]"'):
            operation()


def test_fetched_credentials_come_from_boto3(s3, hasty, profiles, monkeypatch):
    class Session:
        region_name = None

        def __init__(self, profile_name):
            assert profile_name == "dev"

        def get_credentials(self):
            if not answer:
                raise PermissionError("s3cret")
            return types.SimpleNamespace(get_frozen_credentials=lambda: types.SimpleNamespace(**answer))

    for name in ("boto3", "boto3.session", "botocore", "botocore.credentials"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(Session=Session))
    monkeypatch.delitem(sys.modules, "obstore.auth.boto3", raising=False)
    answer = {}
    profiles(f"[profile dev]\nsso_session = corp\nendpoint_url = {s3.endpoint}\n")
    monkeypatch.setenv("AWS_PROFILE", "dev")
    with pytest.raises(AccessDenied, match=r"PermissionError.*aws sso login --profile dev") as info:
        stat("s3://data/x", hasty)
    assert "s3cret" not in str(info.value)
    answer |= {"access_key": s3.access_key, "secret_key": s3.secret_key, "token": None}
    with open_read("s3://probe/probe", hasty) as source:
        assert source.read(10) == b"1"
    monkeypatch.delitem(sys.modules, "obstore.auth.boto3", raising=False)
