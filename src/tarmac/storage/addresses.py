"""Where a redirect may lead: a server outside must not make us ask one inside.

A name or address of a private network is the user's to give, not a server's: behind it may be the metadata
service of a cloud, or a service of this machine that trusts whoever can reach it.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from tarmac.errors import UnsafeUrl

__all__ = ["Guard", "network_of"]

_CARRIER = ipaddress.ip_network("100.64.0.0/10")
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
_LOW_BITS = (1 << 32) - 1


def network_of(address: str) -> str:
    """Name the network that an address belongs to: "" for the public one.

    IPv6 addresses that stand for an IPv4 address count as that one.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if found in _TRANSLATED:
            inner = ipaddress.IPv4Address(int(found) & _LOW_BITS)
        if inner is None and int(found) >> 32 == 0 and int(found) > 1:  # ::a.b.c.d
            inner = ipaddress.IPv4Address(int(found) & _LOW_BITS)
        found = inner or found
    if found.is_loopback or found.is_unspecified:
        return "this machine"
    if found.is_link_local:
        return "the link-local network"
    if found.is_multicast or found.is_reserved:
        return "a reserved network"
    if found.is_private or (found.version == 4 and found in _CARRIER):
        return "a private network"
    return "" if found.is_global else "a reserved network"


class Guard:
    """Connects for one request and its redirects, which stay in public networks or in that of the request."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._first: str | None = None

    def connect(self, address: tuple[str, int], timeout: float, *_: Any) -> socket.socket:
        """Connect as `socket.create_connection` does, to an address that was looked at before."""
        host, port = address
        found = [info[4][0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        if self._first is not None:
            for place in found:
                network = network_of(str(place))
                if network not in ("", self._first):
                    raise UnsafeUrl(
                        f'the server redirects to "{host}", an address of {network}; secure mode does not '
                        "follow it there.",
                        url=self._url,
                        hint="if that server can be trusted, give its URL instead.",
                    )
        for number, place in enumerate(found, 1):
            try:
                made = socket.create_connection((str(place), port), timeout)
            except OSError:
                if number == len(found):
                    raise
            else:
                self._first = network_of(str(place)) if self._first is None else self._first
                return made
        raise OSError("the name has no address")
