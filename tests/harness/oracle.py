"""How GNU tar, bsdtar and Python's tarfile read an archive."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

Listing = list[tuple[str, int, str]]
"""Name, size and digest of each regular file, in order."""


@dataclass(frozen=True)
class Verdict:
    """The members that a tool listed, and whether it reported success."""

    listing: Listing
    ok: bool


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def python_tarfile(data: bytes) -> Verdict:
    """Read with random access, which raises on damage that stream mode ignores."""
    listing: Listing = []
    try:
        with tarfile.open(
            fileobj=io.BytesIO(data), mode="r:*", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            for info in archive:
                if info.isreg() or info.islnk():
                    file = archive.extractfile(info)
                    assert file is not None
                    content = file.read()
                    listing.append((info.name, len(content), digest(content)))
    except (tarfile.TarError, EOFError, OSError, ValueError, OverflowError, KeyError):
        return Verdict(listing, ok=False)
    return Verdict(listing, ok=True)


def external(tool: str, path: Path, into: Path) -> Verdict:
    """Read names with `tool -t`, and contents by extraction into an empty directory."""
    binary = shutil.which(tool)
    assert binary, f"{tool} is not installed"
    listed = subprocess.run([binary, "-tf", path], capture_output=True, check=False)
    unpacked = subprocess.run([binary, "-xf", path, "-C", into], capture_output=True, check=False)
    listing: Listing = []
    for name in listed.stdout.decode("utf-8", "surrogateescape").splitlines():
        target = into / name
        if target.is_file() and not target.is_symlink():
            content = target.read_bytes()
            listing.append((name, len(content), digest(content)))
    return Verdict(listing, ok=listed.returncode == 0 and unpacked.returncode == 0)
