"""Finish a job when all of its units are done: write its manifest and its list of classes.

What that needs is JSON, which the plan of a job stores. So the job itself can finish, and so can `tarmac jobs finish`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tarmac.display import holds_secret
from tarmac.errors import UrlError, UsageError
from tarmac.indexing.manifest import Manifest, Shard, existing_shards, write_manifest
from tarmac.indexing.sidecar import open_sidecar, sidecar_url
from tarmac.jobs.spelling import BESIDE, Spelling, divide
from tarmac.jobs.task import Outcome
from tarmac.storage import StorageOptions, WriteOptions, is_local, location, write_all
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE


def closing_of(
    manifest: str | None, *, overwrite: bool = False, classes: str = "", class_names: bytes = b""
) -> dict[str, Any]:
    """Return what `close_job` needs: the manifest to write, and the file and content of the list of classes."""
    closing: dict[str, Any] = {}
    if manifest:
        closing |= {"manifest": manifest, "overwrite": overwrite}
    if class_names:
        closing |= {"classes": classes, "class_names": class_names.decode("utf-8", "surrogateescape")}
    return closing


def stored_closing(closing: dict[str, Any], pattern: str) -> dict[str, Any] | None:
    """Return what a plan stores, or None: only the job itself knows the secrets in its URLs.

    Names are relative to the directory of the output, as all names in a ledger; those of files elsewhere are absolute.
    """
    names = {name: closing[name] for name in ("manifest", "classes") if name in closing}
    if any(map(holds_secret, names.values())):
        return None
    home = Spelling(divide(pattern)[0], BESIDE)
    stored = {name: home.to_ledger(url) for name, url in names.items()}
    return closing | {name: location(url) if url == names[name] else url for name, url in stored.items()}


def close_job(
    closing: dict[str, Any], outcomes: Sequence[Outcome], storage: StorageOptions = DEFAULT_STORAGE
) -> list[str]:
    """Write what needs all units, and return the files. To do it twice is harmless."""
    files = []
    if "manifest" in closing:
        _write_manifest(closing["manifest"], outcomes, overwrite=closing["overwrite"], storage=storage)
        files.append(closing["manifest"])
    if "classes" in closing:
        text = closing["class_names"].encode("utf-8", "surrogateescape")
        write_all(closing["classes"], text, storage, WriteOptions(overwrite=True))
        files.append(closing["classes"])
    return files


def _write_manifest(
    url: str, outcomes: Sequence[Outcome], *, overwrite: bool, storage: StorageOptions
) -> None:
    """Write the manifest of all shards; a manifest of different shards is replaced only with `overwrite`."""
    shards = []
    for name in (name for outcome in outcomes for name in outcome.outputs):
        facts = open_sidecar(sidecar_url(name), storage).facts
        shards.append(Shard(name, facts.samples, facts.size, None, facts.fingerprint))
    try:
        existing = None if overwrite else existing_shards(url, storage)
    except UrlError:
        raise exists(url) from None
    if existing is not None:
        old, new = (
            [(real_path(shard.url), shard.fingerprint) for shard in each] for each in (existing, shards)
        )
        if old == new:
            return
        if [path for path, _ in old] != [path for path, _ in new]:
            raise exists(url)
    title = os.path.basename(url).partition(".")[0]
    write_manifest(Manifest(shards, title), url, storage)


def exists(name: str) -> UsageError:
    """Return the error for a file that another program or job has written."""
    hint = "another name, or `overwrite` to replace it."
    return UsageError("the file exists and was not written by this job.", url=name, hint=hint)


def real_path(url: str) -> str:
    """Return what identifies a file or object, whatever its path."""
    return os.path.realpath(local_path(url)) if is_local(url) else url
