"""Empty files and manifests, for tests that expand patterns and lists."""

from __future__ import annotations

import json
from pathlib import Path


def touch(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def write_manifest(path: str, *urls: object, **more: object) -> str:
    Path(path).write_text(json.dumps({"shardlist": [{"url": url} for url in urls], **more}))
    return path
