"""From a URL to the obstore client that serves it. Clients are kept, and with them connections."""

from __future__ import annotations

import base64
import functools
import re
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from tarmac import environment
from tarmac.errors import UrlError
from tarmac.storage.failures import translating
from tarmac.storage.types import StorageOptions

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

__all__ = ["is_web", "locate", "login_of"]

_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")


def is_web(url: str) -> bool:
    """Whether the URL is one of a plain web server."""
    return url[:8].lower().startswith(("http://", "https://"))


def locate(url: str, options: StorageOptions) -> tuple[ObjectStore, str]:
    """Find the client for a URL and the path within it."""
    if is_web(url):
        parts = urlsplit(url)
        # One client per server where the path survives obstore's escaping; else one for this very URL.
        plain = not parts.query and _PLAIN_PATH.fullmatch(parts.path)
        base = urlunsplit((parts.scheme, parts.netloc, "" if plain else parts.path, parts.query, ""))
        return _web_store(base, options), parts.path.lstrip("/") if plain else ""
    # Names of objects are not escaped in such URLs: `#`, `?` and `%` stand for themselves.
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    if not bucket:
        raise UrlError(f"this is not of the form {scheme}://BUCKET/NAME.", url=url)
    return _object_store(f"{scheme}://{bucket}", options, environment.store_settings()), path


def login_of(url: str) -> tuple[str, dict[str, str]]:
    """Turn `user:password@` in a URL into a header."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    token = base64.b64encode(unquote(login).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {token}"}


@functools.lru_cache(maxsize=64)
def _web_store(base: str, options: StorageOptions) -> ObjectStore:
    from obstore.store import HTTPStore

    plain, login = login_of(base)
    client = _client(options, {**options.headers, **login}, http=True)
    with translating(base):
        return HTTPStore(plain, client_options=client, retry_config=_retry(options))


@functools.lru_cache(maxsize=64)
def _object_store(base: str, options: StorageOptions, _environment: tuple[object, ...]) -> ObjectStore:
    from obstore.store import from_url

    given = dict(options.config)
    client = _client(options, dict(options.headers), http=_allows_http(base, given))
    with translating(base):
        return from_url(base, config=given, client_options=client, retry_config=_retry(options))  # type: ignore[call-overload,no-any-return]


def _allows_http(base: str, config: dict[str, str]) -> bool:
    """Whether requests may go over plain http: where the endpoint says so, or `allow_http` in the config.

    That one is taken out of the config, because from_url breaks down over it.
    """
    for name in [name for name in config if name.lower().endswith("allow_http")]:
        if config.pop(name).lower() in ("1", "true", "yes", "on"):
            return True
    endpoints = (value for name, value in config.items() if name.lower().endswith("endpoint"))
    endpoint = next(endpoints, None) or environment.s3_endpoint() or ""
    # A gs:// client has its address inside the service account: https, unless that says http.
    return endpoint.startswith("http://") or base.startswith("gs://")


def _client(options: StorageOptions, headers: dict[str, str], *, http: bool) -> ClientConfig:
    config: ClientConfig = {
        "allow_http": http,
        "connect_timeout": timedelta(seconds=options.connect),
        "read_timeout": timedelta(seconds=options.idle),
        "timeout": timedelta(seconds=options.total),
        "user_agent": "tarmac",
    }
    if headers:
        config["default_headers"] = headers
    return config


def _retry(options: StorageOptions) -> RetryConfig:
    return {
        "max_retries": options.retries,
        "retry_timeout": timedelta(seconds=options.retry_time),
        "backoff": {
            "init_backoff": timedelta(seconds=options.backoff),
            "max_backoff": timedelta(seconds=max(options.backoff, options.max_backoff)),
            "base": 2,
        },
    }
