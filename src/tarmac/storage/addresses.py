"""Checks on the targets of redirects: a public server must not redirect requests into a private network.

Only the user may name a private address: it may be the metadata service of a cloud, or a local service
without authentication.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from tarmac.errors import UnsafeUrl

_CARRIER = ipaddress.ip_network("100.64.0.0/10")
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
_LOW_BITS = (1 << 32) - 1


def network_of(address: str) -> str:
    """Return the name of the network that an address belongs to: "" for the public one.

    IPv6 addresses that embed an IPv4 address count as the IPv4 address.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(ip) & _LOW_BITS)
        if inner is None and int(ip) >> 32 == 0 and int(ip) > 1:  # ::a.b.c.d
            inner = ipaddress.IPv4Address(int(ip) & _LOW_BITS)
        ip = inner or ip
    if ip.is_loopback or ip.is_unspecified:
        return "this machine"
    if ip.is_link_local:
        return "the link-local network"
    if ip.is_multicast or ip.is_reserved:
        return "a reserved network"
    if ip.is_private or (ip.version == 4 and ip in _CARRIER):
        return "a private network"
    return "" if ip.is_global else "a reserved network"


class Guard:
    """Connect for a request and its redirects, which must stay in public networks or in that of the request."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._first: str | None = None

    def connect(self, address: tuple[str, int], timeout: float, *_: Any) -> socket.socket:
        """Connect like `socket.create_connection`, to addresses that were checked."""
        host, port = address
        addresses = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        if self._first is not None:
            for ip in addresses:
                network = network_of(ip)
                if network not in ("", self._first):
                    raise UnsafeUrl(
                        f'the server redirects to "{host}" in {network}, which secure mode forbids.',
                        url=self._url,
                        hint="if that server can be trusted, use its URL instead.",
                    )
        failure = OSError("the name has no address")
        for ip in addresses:
            try:
                connection = socket.create_connection((ip, port), timeout)
            except OSError as error:
                failure = error
            else:
                self._first = network_of(ip) if self._first is None else self._first
                return connection
        raise failure
