"""Resolve names of hosts, and refuse addresses that are not public.

An address is checked in the moment of the connection, so that neither a redirect, nor a literal in an unusual
notation, nor a name whose address changes leads into a private network.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tarmac.downloading.network.settings import Web
from tarmac.storage.addresses import network_of

KEPT, KEPT_FAILURE = 600.0, 60.0
"""Seconds for which addresses are kept, and for which a name without addresses is."""
MAX_NAMES = 50_000
QUERIES = 64
"""Concurrent questions to name servers."""
_QUERY_TIMEOUT, _QUERY_TRIES = 3.0, 2


class RefusedAddress(Exception):
    """A host has only addresses that are not public and not allowed."""


class UnknownName(OSError):
    """A name has no address, or no name server answers."""


@dataclass(frozen=True)
class AddressPolicy:
    """Which addresses may be connected to."""

    web: Web

    @cached_property
    def _allowed(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        return [ipaddress.ip_network(network) for network in self.web.allow_networks]

    def permits(self, address: str) -> bool:
        """Return whether an address is public, or in a network that the user allows."""
        ip = ipaddress.ip_address(address.partition("%")[0])
        if any(ip.version == network.version and ip in network for network in self._allowed):
            return True
        return ip.is_global and not network_of(address)

    def check_host(self, host: str) -> None:
        """Raise if a host is a literal address that is refused, in whichever notation."""
        address = literal_address(host)
        if address is not None and not self.permits(address):
            raise RefusedAddress(f"{address} is not a public address.")

    def open_socket(self, info: Any) -> socket.socket:
        """Return a socket for an address, the last check before the connection."""
        family, kind, protocol, _, address = info
        if not self.permits(address[0]):
            raise RefusedAddress(f"{address[0]} is not a public address.")
        opened = socket.socket(family=family, type=kind, proto=protocol)
        opened.settimeout(0)
        return opened


def literal_address(host: str) -> str | None:
    """Return the address that a host name spells, as dotted numbers or in another notation; None for names."""
    bare = host.strip("[]").partition("%")[0]
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        pass
    try:  # 127.1, 0x7f000001, 017700000001: systems connect to all of these
        return socket.inet_ntoa(socket.inet_aton(bare.rstrip("."))) if bare.isascii() else None
    except OSError:
        return None


@dataclass
class Resolver:
    """Resolve names, each of them once for a while; it has the methods that aiohttp expects."""

    policy: AddressPolicy
    clock: Callable[[], float] = time.monotonic
    known: OrderedDict[str, tuple[float, list[str]]] = field(default_factory=OrderedDict)
    """The addresses of names, and until when they are kept."""

    def __post_init__(self) -> None:
        self._asking: dict[str, asyncio.Task[list[str]]] = {}
        self._queries = asyncio.Semaphore(QUERIES)
        self._servers: Any = None

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[dict[str, Any]]:
        """Return the permitted addresses of a host."""
        addresses = await self.addresses(host)
        permitted = [address for address in addresses if self.policy.permits(address)]
        if not permitted:
            raise RefusedAddress(f"{addresses[0]} is not a public address.")
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
            for address in permitted
        ]

    async def addresses(self, host: str) -> list[str]:
        """Return all addresses of a host."""
        name = host.lower().rstrip(".")
        literal = literal_address(name)
        if literal is not None:
            return [literal]
        until, addresses = self.known.get(name, (0.0, []))
        if until <= self.clock():
            task = self._asking.get(name)
            if task is None:
                task = self._asking[name] = asyncio.ensure_future(self._ask(name))
                task.add_done_callback(lambda _: self._asking.pop(name, None))
            addresses = await asyncio.shield(task)
        if not addresses:
            raise UnknownName(f"{host} has no address.")
        return addresses

    async def _ask(self, name: str) -> list[str]:
        given = self.policy.web.hosts.get(name)
        if given is not None:
            addresses = given.split()
        else:
            async with self._queries:
                addresses = await self._query(name)
        self.known[name] = (self.clock() + (KEPT if addresses else KEPT_FAILURE), addresses)
        self.known.move_to_end(name)
        while len(self.known) > MAX_NAMES:
            self.known.popitem(last=False)
        return addresses

    async def _query(self, name: str) -> list[str]:
        from tarmac.extras import import_extra

        aiodns = import_extra("aiodns", "download", "names of hosts")
        if self._servers is None:
            import pycares

            self._servers = aiodns.DNSResolver(
                nameservers=list(self.policy.web.nameservers) or None,
                timeout=_QUERY_TIMEOUT,
                tries=_QUERY_TRIES,
                # URLs have whole names: with the search domains of this machine they would be others.
                flags=pycares.ARES_FLAG_EDNS | pycares.ARES_FLAG_NOSEARCH,
            )
        try:
            answer = await self._servers.getaddrinfo(name, family=socket.AF_UNSPEC, type=socket.SOCK_STREAM)
        except (aiodns.error.DNSError, UnicodeError):
            return []
        found_addresses = (node.addr[0] for node in answer.nodes)
        return list(
            dict.fromkeys(each.decode() if isinstance(each, bytes) else each for each in found_addresses)
        )

    async def close(self) -> None:
        """End the questions to name servers."""
        if self._servers is not None:
            await self._servers.close()
