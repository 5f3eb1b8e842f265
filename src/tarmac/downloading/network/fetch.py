"""Fetch one URL: one request, with one answer for everything that can happen."""

from __future__ import annotations

import asyncio
import email.utils
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin, urlsplit

from tarmac.display import redact
from tarmac.downloading.network.consent import refused_by_headers
from tarmac.downloading.network.resolver import AddressPolicy, RefusedAddress, Resolver
from tarmac.downloading.network.settings import Web
from tarmac.extras import import_extra

_JUDGED = 1 << 16
"""Bytes after which a file is given up that does not begin like a wanted one; after less, the connection stays open."""
_REDIRECTS = (301, 302, 303, 307, 308)
_BUSY = (429, 503)
_LONGEST_ERROR = 200
MAX_URL = 8_000
_BYTE_ORDER_MARK = "\ufeff"
"""What text files of some programs begin with."""


@dataclass(slots=True)
class Reply:
    """The answer to a request."""

    status: str
    """`success`, `redirect`, or why there is no content."""
    error: str = ""
    http: int = 0
    body: bytes = b""
    location: str = ""
    """Where a redirect leads."""
    retry_after: float | None = None
    """Seconds for which the host wants no request."""
    seconds: float = 0.0
    headers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        """Return whether the host works: it answered, also if it refused."""
        failures = ("dns", "connect", "tls", "timeout", "truncated", "deadline")
        return self.status not in failures and self.http < 500

    @property
    def transient(self) -> bool:
        """Return whether another attempt may have another result."""
        return is_transient(self.status, self.http)


TRANSIENT = frozenset({"dns", "connect", "timeout", "truncated", "host_down", "rules", "deadline"})
"""Statuses that another attempt may change: names and hosts that do not answer, and answers that break off."""


def is_transient(status: str, http: int) -> bool:
    """Return whether another attempt may have another result."""
    return status in TRANSIENT or (status == "http" and (http >= 500 or http in (408, 425, 429)))


class InvalidUrl(ValueError):
    """A text is not a URL that can be fetched."""


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a URL that matter for a request."""

    url: str
    host: str
    origin: str


def parse_url(text: object) -> Address:
    """Return the parts of a URL; raise if it cannot be fetched."""
    url = text.strip().removeprefix(_BYTE_ORDER_MARK) if isinstance(text, str) else ""
    if not url:
        raise InvalidUrl("the row has no URL.")
    if len(url) > MAX_URL:
        raise InvalidUrl(f"the URL has {len(url)} characters.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidUrl(f"{redact(str(error))}.") from None
    if parts.scheme.lower() not in ("http", "https"):
        raise InvalidUrl(f"expected http or https, got {parts.scheme[:20]!r}.")
    if not host or " " in host or not url.isprintable():
        raise InvalidUrl("the URL has no host, or control characters.")
    scheme = parts.scheme.lower()
    try:
        name = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        raise InvalidUrl("the name of the host is invalid.") from None
    shown = f"[{name}]" if ":" in name else name
    standard = {"http": 80, "https": 443}[scheme]
    return Address(url, name.rstrip(".") or name, f"{scheme}://{shown}:{port or standard}")


class Fetcher:
    """A session of requests. It belongs to one event loop."""

    def __init__(self, web: Web, resolver: Resolver, largest: Callable[[bytes], float]) -> None:
        aiohttp = self._aiohttp = import_extra("aiohttp", "download", "downloads")
        self._web = web
        self._policy: AddressPolicy = resolver.policy
        self._resolver = resolver
        self._largest = largest
        connector = aiohttp.TCPConnector(
            limit=0,  # the schedule decides
            resolver=resolver,
            use_dns_cache=False,
            ssl=web.verify_tls,
            socket_factory=self._policy.open_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={
                "User-Agent": web.user_agent,
                "Accept": "image/*,*/*;q=0.5",
                "Accept-Encoding": "identity",
            },
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=web.connect_timeout),
        )

        # A request that fails is repeated by the schedule alone, which knows the limits of its host.
        self._session._retry_connection = False

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await self._resolver.close()

    async def get(
        self,
        url: str,
        *,
        seconds: float,
        most: int,
        rules: bool = False,
        note: Callable[[int], None] = lambda _: None,
    ) -> Reply:
        """Send one request, and return its content or what happened instead, after `seconds` at most.

        `rules` are those of a site: these are not pictures, and need no consent. `note` is told how much has arrived.
        """
        started = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                reply = await self._get(url, most, note, rules=rules)
        except TimeoutError:
            reply = Reply("timeout", f"no complete answer after {seconds:g} s.")
        except RefusedAddress as error:
            reply = Reply("refused_address", str(error))
        except self._aiohttp.ClientConnectorDNSError:
            reply = Reply("dns", "the name has no address.")
        except (
            self._aiohttp.ClientConnectorCertificateError,
            self._aiohttp.ClientSSLError,
            ssl.SSLError,
        ) as error:
            reply = Reply("tls", _text(error))
        except (self._aiohttp.ServerTimeoutError, self._aiohttp.ConnectionTimeoutError):
            reply = Reply("timeout", f"no connection after {self._web.connect_timeout:g} s.")
        except self._aiohttp.ClientPayloadError as error:
            reply = Reply("truncated", _text(error))
        except (self._aiohttp.InvalidURL, self._aiohttp.NonHttpUrlClientError, UnicodeError) as error:
            reply = Reply("invalid_url", _text(error))
        except self._aiohttp.ClientResponseError as error:
            reply = Reply("protocol", _text(error))
        except (self._aiohttp.ClientError, OSError) as error:
            reply = Reply("connect", _text(error))
        except (ValueError, EOFError, zlib.error) as error:
            reply = Reply("protocol", _text(error))
        reply.seconds = time.monotonic() - started
        return reply

    async def _get(self, url: str, most: int, note: Callable[[int], None], *, rules: bool) -> Reply:
        self._policy.check_host(parse_url(url).host)
        async with self._session.get(url, allow_redirects=False) as response:
            http, headers = response.status, response.headers
            if http in _REDIRECTS and "location" in headers:
                return _redirect(url, headers["location"], http)
            if http != 200:
                after = _retry_after(headers.get("retry-after", "")) if http in _BUSY else None
                return Reply("http", f"{http} {response.reason or ''}".strip()[:80], http, retry_after=after)
            refusal = "" if rules else refused_by_headers(headers, self._web)
            if refusal:
                return Reply("opted_out", refusal, http)
            length = response.content_length
            if length is not None and length > most:
                return Reply("too_large", f"{length} bytes are announced; the limit is {most}.", http)
            decode = _decoder(headers.get("content-encoding", ""))
            parts, size, judged = [], 0, rules
            async for chunk in response.content.iter_any():
                part = decode(chunk, most - size + 1)
                parts.append(part)
                size += len(part)
                note(size)
                if size > _JUDGED and not judged:
                    largest, judged = self._largest(b"".join(parts)), True
                    if not largest:
                        return Reply("not_image", "it does not begin like an image in a known format.", http)
                    if length is None:
                        most = int(min(most, largest))
                if size > most:
                    return Reply("too_large", f"more than {most} bytes.", http)
            return Reply("success", http=http, body=b"".join(parts), headers=headers)


def _redirect(url: str, location: str, http: int) -> Reply:
    try:
        return Reply("redirect", http=http, location=urljoin(url, location))
    except ValueError:
        return Reply("invalid_url", "a redirect leads to what is not a URL.", http)


def _decoder(encoding: str) -> Any:
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return lambda chunk, _: chunk
    if name not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"unknown content encoding {name[:20]!r}")
    return zlib.decompressobj(47 if name != "deflate" else 15).decompress


def _retry_after(value: str) -> float | None:
    """Return the seconds of a `Retry-After`, given as a number or a date."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(min(int(text[:9]), 10**6))
    try:
        date = email.utils.parsedate_to_datetime(text)
        return max(date.timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return None


def _text(error: BaseException) -> str:
    """Return an error without the secrets that URLs may contain."""
    return redact(str(error) or type(error).__name__)[:_LONGEST_ERROR]
