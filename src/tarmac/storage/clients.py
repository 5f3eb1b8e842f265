"""From a URL to its obstore client. Clients are cached, and so are their connections."""

from __future__ import annotations

import base64
import functools
import re
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from tarmac import environment
from tarmac.errors import UrlError
from tarmac.storage.obstore_errors import translating
from tarmac.storage.types import StorageOptions

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

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
    return _object_store(f"{scheme}://{bucket}", storage, environment.store_settings()), path


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
def _object_store(base: str, storage: StorageOptions, _environment: tuple[object, ...]) -> ObjectStore:
    from obstore.store import from_url

    config = dict(storage.config)
    client = _client(storage, dict(storage.headers), http=_allows_http(base, config))
    with translating(base):
        return from_url(base, config=config, client_options=client, retry_config=_retry(storage))  # type: ignore[call-overload,no-any-return]


def _allows_http(base: str, config: dict[str, str]) -> bool:
    """Return whether plain http is allowed: by the endpoint, or by `allow_http` in the config.

    Remove `allow_http` from the config, because from_url panics on it.
    """
    for name in [name for name in config if name.lower().endswith("allow_http")]:
        if config.pop(name).lower() in ("1", "true", "yes", "on"):
            return True
    endpoints = (value for name, value in config.items() if name.lower().endswith("endpoint"))
    endpoint = next(endpoints, None) or environment.s3_endpoint() or ""
    # A gs:// client takes its address from the service account: https, unless that specifies http.
    return endpoint.startswith("http://") or base.startswith("gs://")


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
