"""Helpers for tests of formats: write small shards with every kind of field, and export them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from harness.shards import plain
from tarmac import Report, export

TEXT = "héllo\tw\\o\r\n“r”"


def png(width: int, height: int = 4) -> bytes:
    """Return a small image."""
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (width, height), (width * 9 % 256, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def fields(number: int) -> dict[str, bytes]:
    """Return the fields of a sample."""
    return {
        "cls": b"%d" % number,
        "png": png(number + 1),
        "txt": f"{TEXT}{number}".encode(),
        "json": json.dumps({"n": number, "é": [1, None, "x\ny"]}, indent=1).encode(),
    }


def write(folder: Path, counts: list[int], form: int = tarfile.PAX_FORMAT) -> list[str]:
    """Write a shard for each count; keys are numbered across shards."""
    urls, number = [], 0
    for shard, count in enumerate(counts):
        files = []
        for _ in range(count):
            files += [(f"k/{number:03d}.{name}", data) for name, data in fields(number).items()]
            number += 1
        urls.append(str(folder / f"s{shard}.tar"))
        Path(urls[-1]).write_bytes(plain(files, form))
    return urls


def odd(folder: Path, files: list[tuple[str, bytes]], name: str = "odd.tar") -> str:
    """Write one shard of these files."""
    path = folder / name
    path.write_bytes(plain(files, tarfile.GNU_FORMAT))
    return str(path)


def run(shards: Any, format: str, output: Any, **options: Any) -> Report:
    """Export in one process, without a progress bar."""
    return export(shards, str(output), format, **({"jobs": 1, "progress": False} | options))
