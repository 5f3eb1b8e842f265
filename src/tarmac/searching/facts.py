"""What an index says about itself, in `knn.json` beside `index.faiss`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import xxhash

from tarmac.errors import BadManifest, IndexDamaged, IndexStale, JobBusy, NotFound, UsageError
from tarmac.searching.choice import Choice
from tarmac.searching.library import METRICS, Metric, import_faiss
from tarmac.searching.measure import Latency, Recall
from tarmac.searching.searcher import Effort
from tarmac.searching.sources import HINT, Source
from tarmac.storage import WriteOptions, is_local, read_all, write_all
from tarmac.storage.local import local_path
from tarmac.storage.locks import FileLock
from tarmac.tools.workdir import disk_errors

FORMAT = "tarmac-knn-1"
MANIFEST, INDEX = "knn.json", "index.faiss"
_NEXT = "next"
"""What the manifest will say when a new index has replaced this one."""
_CHUNK = 1 << 22


@dataclass(frozen=True)
class KnnFacts:
    """The manifest of an index."""

    choice: Choice
    metric: Metric
    effort: Effort
    target_recall: float
    recall: Recall
    """The measured share of the nearest neighbours that a search returns."""
    latency_ms: Latency
    """How long a search for one query takes, in milliseconds."""
    sources: Sequence[Source]
    """The embeddings that the index was made from."""
    fit: float = 0.0
    """The mean score of the indexed vectors with the centroids of their lists."""
    model: str = ""
    memory_bytes: int = 0
    """The size of the index in memory, which is that of its file."""
    digest: str = ""
    """A hash of the file."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the index was built with."""
    recall_when_built: Recall | None = None
    """The recall before any vectors were added, if some were."""

    @property
    def built(self) -> Recall:
        """Return the recall when the index was built."""
        return self.recall_when_built or self.recall

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON."""
        return {"format": FORMAT, "vectors": self.choice.vectors} | asdict(self)

    @classmethod
    def from_json(cls, text: bytes | str, url: str) -> KnnFacts:
        """Return the manifest that `to_json` wrote; raise BadManifest if the text is something else."""
        try:
            values = json.loads(text)
            if values.get("format") != FORMAT:
                raise ValueError(f"expected the format {FORMAT!r}, got {values.get('format')!r}")
            known = {each.name: values[each.name] for each in fields(cls) if each.name in values}
            if known["metric"] not in METRICS:
                raise ValueError(f"unknown metric {known['metric']!r}")
            kinds = {"choice": Choice, "effort": Effort, "recall": Recall, "latency_ms": Latency}
            kinds |= {"recall_when_built": Recall} if known.get("recall_when_built") else {}
            known |= {name: kind(**known[name]) for name, kind in kinds.items()}
            return cls(**known | {"sources": tuple(Source(**source) for source in known["sources"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadManifest(f"this is not an index of vectors: {error}.", url=url, hint=HINT) from None


def index_directory(output: str | os.PathLike[str], *, field: str = "output") -> str:
    """Return the path of the directory of an index, which is on this machine."""
    name = os.fspath(output)
    if not is_local(name):
        what = "an index is a directory of this machine, or of a file system that it sees."
        raise UsageError(what, field=field, url=name)
    path = local_path(name).rstrip("/") or "/"
    if os.path.isfile(path):
        raise UsageError("expected a directory, got a file.", field=field, url=name)
    return path


def read_facts(directory: str) -> KnnFacts:
    """Read the manifest of an index."""
    path = os.path.join(directory, MANIFEST)
    try:
        text = bytes(read_all(path))
    except NotFound:
        what = f"the directory has no {MANIFEST}."
        if os.path.isfile(os.path.join(directory, INDEX)):
            what = f"the directory has an {INDEX} of another program, without {MANIFEST}."
        raise NotFound(what, url=directory, hint="tarmac knn build DIR -o INDEX.") from None
    facts = KnnFacts.from_json(text, path)
    following = json.loads(text).get(_NEXT)
    if following is not None:  # the writer was killed: the index is the old one or the new one
        new = KnnFacts.from_json(json.dumps(following), path)
        return new if digest_of(os.path.join(directory, INDEX)) == new.digest else facts
    return facts


@contextlib.contextmanager
def unchanged(directory: str, facts: KnnFacts) -> Iterator[None]:
    """Keep other processes from replacing an index; raise if it is no longer the one that was opened."""
    with _locked(directory, "add", wait=False) as alone:
        if not alone:
            raise JobBusy("another process is adding to this index.", url=directory)
        if read_facts(directory).digest != facts.digest:
            what = "the index has changed since it was opened."
            raise IndexStale(what, url=directory, hint="open it again, with tarmac.Knn.")
        yield


@contextlib.contextmanager
def _locked(directory: str, name: str, *, wait: bool) -> Iterator[bool]:
    """Hold a lock while the block runs; yield whether this process has it."""
    lock = FileLock(os.path.join(directory, f".{name}.lock"))
    alone = lock.acquire(wait=wait)
    try:
        yield alone
    finally:
        if alone:
            lock.remove()


def publish(index: Any, directory: str, facts: KnnFacts) -> KnnFacts:
    """Write an index and its manifest; return the manifest, with the size and the digest of the index.

    Whenever this is killed, the directory has the old index or the new one, and its manifest. Several tasks that finish
    the same index do it one after the other.
    """
    with _locked(directory, "publish", wait=True):
        return _publish(index, directory, facts)


def _publish(index: Any, directory: str, facts: KnnFacts) -> KnnFacts:
    faiss = import_faiss()
    path, part = os.path.join(directory, INDEX), os.path.join(directory, f".{INDEX}.part")
    with disk_errors(path):
        faiss.write_index(index, part)
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
    facts = replace(facts, memory_bytes=os.path.getsize(part), digest=digest_of(part))
    with contextlib.suppress(NotFound, BadManifest):
        _write(directory, read_facts(directory).to_json() | {_NEXT: facts.to_json()})
    os.replace(part, path)
    _write(directory, facts.to_json())
    return facts


def _write(directory: str, values: Mapping[str, Any]) -> None:
    content = (json.dumps(values, indent=1) + "\n").encode()
    write_all(os.path.join(directory, MANIFEST), content, write=WriteOptions(overwrite=True))


def load_index(directory: str, facts: KnnFacts) -> Any:
    """Read an index whose bytes are those that were written; raise IndexDamaged otherwise."""
    path = os.path.join(directory, INDEX)
    if not os.path.isfile(path):
        raise NotFound("the file of the index is missing.", url=path, hint=HINT)
    size = os.path.getsize(path)
    if size != facts.memory_bytes:
        what = f"expected an index of {facts.memory_bytes} bytes, got {size}."
        raise IndexDamaged(what, url=path, hint=HINT)
    if digest_of(path) != facts.digest:
        raise IndexDamaged("the index is not as it was written.", url=path, hint=HINT)
    index = import_faiss().read_index(path)
    expected = facts.choice.vectors, facts.choice.dimension
    if (index.ntotal, index.d) != expected:
        what = "expected {} vectors of {} numbers, got {} of {}.".format(*expected, index.ntotal, index.d)
        raise IndexDamaged(what, url=path, hint=HINT)
    return index


def digest_of(path: str) -> str:
    """Return a hash of a file."""
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
