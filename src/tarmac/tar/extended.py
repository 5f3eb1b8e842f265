"""Extended headers: GNU long names and PAX records that override fields of the next header."""

from __future__ import annotations

from dataclasses import dataclass

from tarmac.errors import BadHeader, LimitExceeded, UnsupportedMember
from tarmac.limits import Limits

GNU_NAME, GNU_LINK = b"L", b"K"
PAX, PAX_GLOBAL, PAX_SOLARIS = b"x", b"g", b"X"
_OF_ONE_MEMBER = frozenset((b"path", b"size", b"linkpath"))
EXTENSIONS = frozenset((GNU_NAME, GNU_LINK, PAX, PAX_GLOBAL, PAX_SOLARIS))


@dataclass(slots=True)
class Overrides:
    """The values that the extended headers before a member set.

    Two different values for one attribute raise an error: readers disagree on which one applies, and
    attackers use that to hide members from a scanner.
    """

    name: bytes | None = None
    link: bytes | None = None
    size: int | None = None
    count: int = 0

    def add(self, kind: bytes, payload: bytes, limits: Limits) -> None:
        """Apply one extended header."""
        self.count += 1
        if self.count > limits.extensions:
            raise LimitExceeded(f"more than {limits.extensions} extended headers before one member.")
        if kind in (GNU_NAME, GNU_LINK):
            name, end, _ = payload.partition(b"\0")
            if not end:
                raise BadHeader("a long name has no terminating NUL; readers disagree on where it ends.")
            if kind == GNU_NAME:
                self._set_name(name)
            else:
                self._set_link(name)
        elif kind in (PAX, PAX_SOLARIS):
            records = parse_pax(payload)
            if any(map(_rearranges, records)):
                raise UnsupportedMember("sparse files are not supported.")
            if b"path" in records:
                self._set_name(records[b"path"])
            if b"linkpath" in records:
                self._set_link(records[b"linkpath"])
            if b"size" in records:
                self._set_size(records[b"size"])
        elif kind == PAX_GLOBAL:
            forbidden = [key for key in parse_pax(payload) if key in _OF_ONE_MEMBER or _rearranges(key)]
            if forbidden:
                names = ", ".join(sorted(key.decode("utf-8", "replace") for key in forbidden))
                raise UnsupportedMember(f"a global header sets {names} for every member.")

    def apply(self, name: bytes, size: int) -> tuple[bytes, int]:
        """Return the name and size of the member; the size also determines the offset of the next header."""
        return (name if self.name is None else self.name), (size if self.size is None else self.size)

    def _set_name(self, name: bytes) -> None:
        if not name or b"\0" in name:
            raise BadHeader(f"invalid name in an extended header: {name[:80]!r}.")
        if self.name is not None and self.name != name:
            raise BadHeader("two extended headers set different names for one member.")
        self.name = name

    def _set_link(self, target: bytes) -> None:
        if not target or b"\0" in target:
            raise BadHeader(f"invalid link target in an extended header: {target[:80]!r}.")
        if self.link is not None and self.link != target:
            raise BadHeader("two extended headers set different targets for one link.")
        self.link = target

    def _set_size(self, text: bytes) -> None:
        if not text.isdigit() or len(text) > 19:
            raise BadHeader(f"invalid size in a PAX header: {text[:40]!r}.")
        size = int(text)
        if size >= 1 << 63:
            raise BadHeader(f"invalid size in a PAX header: {size} exceeds 63 bits.")
        if self.size is not None and self.size != size:
            raise BadHeader("two PAX headers set different sizes for one member.")
        self.size = size


def _rearranges(key: bytes) -> bool:
    """Return whether a PAX key belongs to a sparse or multi-volume file, whose bytes are stored differently."""
    return key.startswith((b"GNU.sparse.", b"GNU.volume.")) or key in (b"SCHILY.realsize", b"SUN.holesdata")


def parse_pax(payload: bytes) -> dict[bytes, bytes]:
    """Split `LENGTH KEY=VALUE\\n` records; the length counts the whole record, itself included."""
    records: dict[bytes, bytes] = {}
    position, end = 0, len(payload)
    while position < end:
        space = payload.find(b" ", position, position + 20)
        if space < 0:
            if not payload[position:].strip(b"\0"):
                break
            raise BadHeader(f"a PAX record has no length: {payload[position : position + 40]!r}.")
        digits = payload[position:space]
        length = int(digits) if digits.isdigit() else 0
        stop = position + length
        if stop <= space or stop > end or payload[stop - 1 : stop] != b"\n":
            raise BadHeader(f"a PAX record has the invalid length {digits!r}.")
        key, equals, value = payload[space + 1 : stop - 1].partition(b"=")
        if not key or not equals:
            raise BadHeader(f"a PAX record is not KEY=VALUE: {payload[space + 1 : stop][:40]!r}.")
        if records.setdefault(key, value) != value:
            raise BadHeader(f"a PAX header sets {key[:40]!r} twice.")
        position = stop
    return records
