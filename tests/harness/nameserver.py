"""A name server on loopback: it answers with scripted addresses, and counts the questions."""

from __future__ import annotations

import contextlib
import ipaddress
import socketserver
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

KINDS = {1: "A", 28: "AAAA"}
NO_ERROR, SERVER_FAILURE, NO_SUCH_NAME = 0, 2, 3
SILENT: Sequence[str] = ("silent",)
"""In the place of addresses: no answer."""
FAILING: Sequence[str] = ("failing",)
"""In the place of addresses: the server says that it cannot answer."""


@dataclass
class NameServer:
    """A running server, and the names and kinds of the records that it was asked for."""

    address: str
    questions: Counter[tuple[str, str]] = field(default_factory=Counter)


@contextlib.contextmanager
def name_server(script: Callable[[str, int], Sequence[str]]) -> Iterator[NameServer]:
    """Run a server whose script gets a name and how often it was asked for before; no addresses: no such name."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, socket = self.request
            name, end = _name(data)
            kind = KINDS.get(*struct.unpack_from(">H", data, end), "")
            number, state.questions[name, kind] = state.questions[name, kind], state.questions[name, kind] + 1
            answer = script(name, number)
            if answer is not SILENT:
                socket.sendto(_response(data[: end + 4], kind, answer), self.client_address)

    with socketserver.UDPServer(("127.0.0.1", 0), Handler) as server:
        state = NameServer(f"127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


def _name(data: bytes) -> tuple[str, int]:
    """Return the name in a question, and where it ends."""
    labels, at = [], 12
    while size := data[at]:
        labels.append(data[at + 1 : at + 1 + size].decode())
        at += size + 1
    return ".".join(labels).lower(), at + 1


def _response(question: bytes, kind: str, answer: Sequence[str]) -> bytes:
    addresses = [] if answer is FAILING else [ipaddress.ip_address(each) for each in answer]
    records = [each.packed for each in addresses if (each.version == 6) == (kind == "AAAA")]
    code = SERVER_FAILURE if answer is FAILING else NO_ERROR if answer else NO_SUCH_NAME
    head = question[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, len(records), 0, 0)
    number = 28 if kind == "AAAA" else 1
    bodies = (struct.pack(">HHHIH", 0xC00C, number, 1, 300, len(each)) + each for each in records)
    return head + question[12:] + b"".join(bodies)
