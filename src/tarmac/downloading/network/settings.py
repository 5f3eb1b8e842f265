"""What a download may ask of the network, and of those who offer the files."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict

from tarmac import __version__
from tarmac.arguments import as_names
from tarmac.errors import UsageError
from tarmac.limits import MIB

CHECKS = ("robots", "x-robots-tag", "content-signal", "tdmrep")
"""The ways to refuse consent that are honoured."""
HOST_CONCURRENCY = 8


class WebArgs(TypedDict, total=False):
    """Fetch URLs."""

    concurrency: int
    """Requests at a time, of each worker."""
    host_concurrency: int | None
    """Requests at a time to one host, of all workers together; by default 8, or one for each worker if that is more."""
    host_rate: float | None
    """Requests per second to one host, of all workers together."""
    timeout: float
    """Seconds for a URL with its redirects, however slowly it answers."""
    connect_timeout: float
    """Seconds for a connection."""
    shard_timeout: float | None
    """Seconds for the rows of a shard; those without a result then have to wait for the end of the run."""
    max_file_bytes: int
    """Largest file that is read."""
    url_retries: int
    """How often a failure that may pass is repeated; and once more at the end of the run, see `final_retry`."""
    backoff: float
    """Seconds before the first repetition; each further one waits twice as long."""
    max_wait: float
    """Seconds that the end of the run waits for a host that asked for a pause, or does not answer."""
    redirects: int
    """Redirects that are followed."""
    user_agent: str
    """How the program introduces itself; what is before a slash is its name in robots.txt."""
    ignore: Sequence[str]
    """Ways to refuse consent that are ignored: `robots`, `x-robots-tag`, `content-signal`, `tdmrep`."""
    allow_networks: Sequence[str]
    """Networks that are not public and may be connected to all the same: `10.0.0.0/8`."""
    hosts: Mapping[str, str]
    """Addresses of host names, in the place of those that name servers tell."""
    nameservers: Sequence[str]
    """Addresses of name servers, `10.0.0.1` or `10.0.0.1:5353`; by default those of the system."""
    verify_tls: bool
    """Whether certificates are verified."""


@dataclass(frozen=True)
class Web:
    """How URLs are fetched; `WebArgs` documents the arguments."""

    concurrency: int = 128
    host_concurrency: int | None = None
    host_rate: float | None = None
    timeout: float = 30.0
    connect_timeout: float = 10.0
    shard_timeout: float | None = 1800.0
    max_file_bytes: int = 32 * MIB
    url_retries: int = 2
    backoff: float = 1.0
    max_wait: float = 60.0
    redirects: int = 5
    user_agent: str = f"tarmac/{__version__}"
    ignore: Sequence[str] = ()
    allow_networks: Sequence[str] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)
    nameservers: Sequence[str] = ()
    verify_tls: bool = True

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if type(value) in (int, float) and value < (
                0 if each.name in ("url_retries", "redirects") else 1e-9
            ):
                raise UsageError(f"expected a positive number, got {value}.", field=each.name)
        for name in ("ignore", "allow_networks", "nameservers"):
            object.__setattr__(self, name, as_names(getattr(self, name), name))
        hosts: Any = self.hosts
        if not isinstance(hosts, Mapping) or not {*map(type, (*hosts, *hosts.values()))} <= {str}:
            raise UsageError(f"expected addresses by names of hosts, got {hosts!r}.", field="hosts")
        names = {name.lower(): address for name, address in hosts.items()}
        object.__setattr__(self, "hosts", names)
        for name in self.ignore:
            if name not in CHECKS:
                what = f"unknown check {name!r}: expected one of {', '.join(CHECKS)}."
                raise UsageError(what, field="ignore")
        for network in self.allow_networks:
            _check_network(network)
        for name, addresses in names.items():
            for address in addresses.split():
                _check_address(address, f"of {name}", "hosts")
        for server in self.nameservers:
            with_port = re.fullmatch(r"(?:\[(.+)\]|([^:]+)):\d+", server)
            address = (with_port[1] or with_port[2]) if with_port else server
            _check_address(address, "of a name server", "nameservers")
        if not self.token or not self.user_agent.isprintable() or not self.user_agent.isascii():
            what = f"expected a name such as 'mybot/1.0 (+https://example.org/bot)', got {self.user_agent!r}."
            raise UsageError(what, field="user_agent")

    def for_one_of(self, workers: int) -> Web:
        """Return the part of the limits of hosts that one of several workers gets, so that all keep them together."""
        most = self.host_concurrency or max(HOST_CONCURRENCY, workers)
        if most < workers:
            what = f"{workers} workers cannot share {most} requests at a time to a host."
            raise UsageError(
                what, field="host_concurrency", hint=f"`host_concurrency` {workers}, or fewer workers."
            )
        rate = None if self.host_rate is None else self.host_rate / workers
        return replace(self, host_concurrency=most // workers, host_rate=rate)

    @property
    def token(self) -> str:
        """Return the name by which robots.txt and headers address this program."""
        return self.user_agent.partition("/")[0].strip().lower()

    def checks(self, name: str) -> bool:
        """Return whether a way to refuse consent is honoured."""
        return name not in self.ignore


def _check_network(text: str) -> None:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        hint = None
        with contextlib.suppress(ValueError):
            hint = f"{ipaddress.ip_network(text, strict=False)}, or the address alone."
        raise UsageError(f"{error}.", field="allow_networks", hint=hint) from None


def _check_address(text: str, whose: str, field: str) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise UsageError(f"expected the address {whose}, got {text!r}.", field=field) from None
