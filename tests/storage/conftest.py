"""Servers that the storage tests share; each runs once per session."""

from __future__ import annotations

import pytest

from harness.servers import azurite, nginx, required, seaweed_s3
from storage.caches import Origin
from tarmac.storage import FileStore, StorageOptions, register_scheme, schemes

HASTY = {
    "connect_timeout": 20.0,
    "idle_timeout": 60.0,
    "backoff": 0.001,
    "max_backoff": 0.005,
    "retries": 4,
    "retry_timeout": 600.0,
}


@pytest.fixture(scope="session")
def hasty() -> StorageOptions:
    """Options that do not wait long between retries."""
    return StorageOptions(**HASTY)


@pytest.fixture(scope="session")
def web_root(tmp_path_factory):
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="session")
def web(web_root):
    with required(nginx(web_root)) as url:
        yield url


@pytest.fixture(scope="session")
def s3():
    with required(seaweed_s3()) as server:
        server.make_bucket("data")
        yield server


@pytest.fixture(scope="session")
def open_s3():
    with required(seaweed_s3(anonymous=True)) as server:
        server.make_bucket("data")
        yield server


@pytest.fixture(scope="session")
def azure():
    with required(azurite()) as server:
        server.make_container("data")
        yield server


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch, tmp_path_factory):
    """Remove credentials of the developer from the environment."""
    import os

    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "HF_", "AIS_")):
            monkeypatch.delenv(name)
    for name in ("HF_HOME", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")


@pytest.fixture
def origin(monkeypatch):
    """Shards behind the registered scheme `mem://`."""
    monkeypatch.setattr(schemes, "_registered", {})
    server = Origin()
    register_scheme("mem", FileStore(server.open))
    return server


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
