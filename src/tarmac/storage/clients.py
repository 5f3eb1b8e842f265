"""From a URL to its obstore client. Clients are cached, and so are their connections."""

from __future__ import annotations

import base64
import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from tarmac import environment
from tarmac.errors import UrlError
from tarmac.storage import aws
from tarmac.storage.obstore_errors import translating
from tarmac.storage.types import StorageOptions

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

Pairs = tuple[tuple[str, str], ...]
_PREFIX = re.compile(r"^(?:aws|azure|google)_")
_SECRET = re.compile(r"key|secret|token|credential|service_account|client_id|sas", re.IGNORECASE)
_CLIENT_OPTIONS = frozenset(
    (
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
        "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle",
        "http2_max_frame_size", "http2_only", "pool_idle_timeout", "pool_max_idle_per_host",
        "proxy_ca_certificate", "proxy_excludes", "proxy_url", "randomize_addresses", "read_timeout", "timeout",
        "user_agent",
    )
)  # fmt: skip
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")


def is_web(url: str) -> bool:
    """Return whether the URL belongs to a plain web server."""
    return url[:8].lower().startswith(("http://", "https://"))


def locate(url: str, storage: StorageOptions) -> tuple[ObjectStore, str]:
    """Return the client for a URL, and the path of the object."""
    if is_web(url):
        parts = urlsplit(url)
        # One client per server if the path survives obstore's escaping, else one for this URL.
        plain = not parts.query and _PLAIN_PATH.fullmatch(parts.path)
        base = urlunsplit((parts.scheme, parts.netloc, "" if plain else parts.path, parts.query, ""))
        return _web_store(base, storage), parts.path.lstrip("/") if plain else ""
    # Object names in such URLs are not escaped: `#`, `?` and `%` are literal.
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    if not bucket:
        raise UrlError(f"expected {scheme}://BUCKET/NAME.", url=url)
    if _is_s3(url) and not _BUCKET.fullmatch(bucket):
        raise UrlError("the name of a bucket has letters, digits, dots, hyphens and underscores.", url=url)
    return _object_store(*_settings(f"{scheme.lower()}://{bucket}", storage)), path


def _settings(base: str, storage: StorageOptions) -> tuple[str, StorageOptions, Pairs, aws.Files]:
    """Return everything that the client for a bucket depends on."""
    return base, storage, environment.store_settings(), aws.read_files() if _is_s3(base) else ("", "")


@contextlib.contextmanager
def requesting(url: str, storage: StorageOptions) -> Iterator[tuple[ObjectStore, str]]:
    """Yield the client for a URL and the path of the object; translate the errors of requests."""
    with translating(url, lambda: credentials_of(url, storage)):
        yield locate(url, storage)


def credentials_of(url: str, storage: StorageOptions) -> str:
    """Return where the credentials for a URL come from, in words without secrets."""
    if not is_web(url):
        scheme, _, rest = url.partition("://")
        base = f"{scheme.lower()}://{rest.partition('/')[0]}"
        return _access(*_settings(base, storage)).credentials
    if login_of(url)[1]:
        return "the user and password of the URL"
    return "the header Authorization" if "authorization" in map(str.lower, storage.headers) else "none"


def login_of(url: str) -> tuple[str, dict[str, str]]:
    """Split a URL into one without `user:password@`, and the Authorization header for them."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    token = base64.b64encode(unquote(login).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {token}"}


@functools.lru_cache(maxsize=64)
def _web_store(base: str, storage: StorageOptions) -> ObjectStore:
    from obstore.store import HTTPStore

    plain, login = login_of(base)
    client = _client(storage, {**storage.headers, **login}, http=True)
    with translating(base):
        return HTTPStore(plain, client_options=client, retry_config=_retry(storage))


@functools.lru_cache(maxsize=64)
def _object_store(base: str, storage: StorageOptions, variables: Pairs, files: aws.Files) -> ObjectStore:
    from obstore.store import S3Store, from_url

    config, options = _split(storage.config)
    access = _access(base, storage, variables, files)
    client = _client(storage, dict(storage.headers), http=_allows_http(base, options, access))
    more: dict[str, Any] = {"client_options": {**client, **options}, "retry_config": _retry(storage)}
    if not _is_s3(base):
        with translating(base):
            return from_url(base, config=config, **more)  # type: ignore[call-overload,no-any-return]
    if access.provider is not None:
        more["credential_provider"] = access.provider()
    config = {name: value for name, value in config.items() if aws.plain(name) != "endpoint"} | access.config
    with translating(base):
        return S3Store(base.partition("://")[2], config=config, **more)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=64)
def _access(base: str, storage: StorageOptions, variables: Pairs, files: aws.Files) -> aws.Access:
    """Return the endpoint of a bucket and the source of its credentials."""
    if _is_s3(base):
        return aws.resolve(storage.config, dict(variables), files)
    prefix = "GOOGLE_" if base.startswith("gs://") else "AZURE_"
    given = [(name, value, f"{name} in StorageOptions.config") for name, value in storage.config.items()]
    given += [(name, value, name) for name, value in variables if name.startswith(prefix)]
    endpoint = None
    for name, value, label in given:
        if endpoint is None and _PREFIX.sub("", name.lower()) in ("endpoint", "storage_endpoint"):
            environment.check_endpoint(label, endpoint := value)
    secrets = (label for name, value, label in given if value and _SECRET.search(name))
    return aws.Access({}, endpoint, next(secrets, "none"))


def _is_s3(url: str) -> bool:
    return url[:6].lower().startswith(("s3://", "s3a://"))


def _split(config: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Separate the settings of the store from those of its HTTP client, which make the store panic."""
    names = {name: _PREFIX.sub("", name.lower()) for name in config}
    return (
        {name: value for name, value in config.items() if names[name] not in _CLIENT_OPTIONS},
        {names[name]: value for name, value in config.items() if names[name] in _CLIENT_OPTIONS},
    )


def _allows_http(base: str, options: dict[str, str], access: aws.Access) -> bool:
    """Return whether plain http is allowed: by the endpoint, or by `allow_http`, which is removed."""
    if options.pop("allow_http", "").lower() in ("1", "true", "yes", "on"):
        return True
    # A gs:// client takes its address from the service account: https, unless that specifies http.
    return (access.endpoint or "").startswith("http://") or base.startswith("gs://")


def _client(storage: StorageOptions, headers: dict[str, str], *, http: bool) -> ClientConfig:
    config: ClientConfig = {
        "allow_http": http,
        "connect_timeout": timedelta(seconds=storage.connect_timeout),
        "read_timeout": timedelta(seconds=storage.idle_timeout),
        "timeout": timedelta(seconds=storage.total_timeout),
        "user_agent": "tarmac",
    }
    if headers:
        config["default_headers"] = headers
    return config


def _retry(storage: StorageOptions) -> RetryConfig:
    return {
        "max_retries": storage.retries,
        "retry_timeout": timedelta(seconds=storage.retry_timeout),
        "backoff": {
            "init_backoff": timedelta(seconds=storage.backoff),
            "max_backoff": timedelta(seconds=max(storage.backoff, storage.max_backoff)),
            "base": 2,
        },
    }
