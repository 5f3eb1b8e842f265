"""Build an index of lists: vectors are coded in parts, anywhere, and the codes are sorted into lists."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tarmac.errors import IndexDamaged
from tarmac.searching.choice import BLOCK, Choice
from tarmac.searching.library import Metric, Numbers, Vectors, contiguous, import_faiss, metric_number
from tarmac.searching.sources import HINT, Sources
from tarmac.searching.train import train_centroids, training_sample
from tarmac.storage import WriteOptions, write_all

_OWN, _GIVEN, _BY_RESIDUAL, _BIAS = True, False, False, False
"""Arguments of the library, which takes them by position."""
QUERY_BITS = 8
"""Bits of a number of a query, while it is compared with codes."""


@dataclass(frozen=True)
class Trained:
    """What codes depend on: the centroids of the lists, and the rotation before them."""

    centroids: Vectors
    rotation: Vectors | None = None

    @property
    def digest(self) -> str:
        """A hash, to recognise parts that were coded with it."""
        digest = xxhash.xxh3_128(contiguous(self.centroids))
        digest.update(b"" if self.rotation is None else contiguous(self.rotation))
        return digest.hexdigest()

    def to_bytes(self) -> bytes:
        """Return the content of a file."""
        stream = io.BytesIO()
        if self.rotation is None:
            np.savez(stream, centroids=self.centroids)
        else:
            np.savez(stream, centroids=self.centroids, rotation=self.rotation)
        return stream.getvalue()

    @classmethod
    def read(cls, path: str) -> Trained:
        """Read the file; raise IndexDamaged if it is not whole."""
        arrays = read_arrays(path)
        if "centroids" not in arrays:
            raise IndexDamaged("there are no centroids.", url=path, hint=HINT)
        return cls(arrays["centroids"], arrays.get("rotation"))


def read_arrays(path: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a working file; raise IndexDamaged if it is not whole."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        what = f"cannot read a working file: {error}."
        raise IndexDamaged(what, url=path, hint=HINT) from None


def train(vectors: Sources, choice: Choice, metric: Metric, without: Numbers) -> Trained:
    """Train the centroids of an index on other vectors than some; rotate them before, if their codes need it."""
    sample = training_sample(vectors, choice.lists, without=without)
    vectors.release()
    if choice.kind != "rabitq":
        return Trained(train_centroids(sample, choice.lists, metric))
    rotation = random_rotation(choice.dimension)
    for start in range(0, len(sample), 1 << 14):
        sample[start : start + (1 << 14)] = sample[start : start + (1 << 14)].astype(np.float32) @ rotation.T
    return Trained(train_centroids(sample, choice.lists, metric), rotation)


def random_rotation(dimension: int, seed: int = 1) -> Vectors:
    """Return an orthonormal matrix, always the same: codes of one bit need vectors without preferred directions."""
    matrix = np.random.default_rng(seed).normal(size=(dimension, dimension))
    return np.linalg.qr(matrix)[0].astype(np.float32)


class Coder:
    """An index without vectors, which turns vectors into lists and codes."""

    def __init__(self, choice: Choice, trained: Trained, metric: Metric) -> None:
        faiss, number = import_faiss(), metric_number(metric)
        dimension, lists = choice.dimension, len(trained.centroids)
        self.choice, self.rotation = choice, trained.rotation
        self.quantizer = faiss.IndexFlat(dimension, number)
        self.quantizer.add(contiguous(trained.centroids))
        if choice.kind == "rabitq":
            self.index = faiss.IndexIVFRaBitQ(self.quantizer, dimension, lists, number, _OWN, choice.bits)
        else:
            kind = faiss.ScalarQuantizer.QT_fp16
            self.index = faiss.IndexIVFScalarQuantizer(
                self.quantizer, dimension, lists, kind, number, _BY_RESIDUAL
            )
        self.index.train(contiguous(trained.centroids))
        self._kept: tuple[Any, ...] = ()
        """What the assembled index refers to, without owning it."""

    def encode(self, vectors: Vectors) -> tuple[NDArray[np.int32], NDArray[np.uint8], Vectors]:
        """Return the list of each vector, its code, and its score with the centroid of the list."""
        faiss = import_faiss()
        turned = contiguous(vectors if self.rotation is None else vectors @ self.rotation.T)
        scores, at = self.quantizer.search(turned, 1)
        lists = contiguous(at.reshape(-1), np.int64)
        codes = np.empty((len(turned), self.index.code_size), np.uint8)
        self.index.encode_vectors(
            len(turned), faiss.swig_ptr(turned), faiss.swig_ptr(lists), faiss.swig_ptr(codes)
        )
        return lists.astype(np.int32), codes, scores.reshape(-1)

    def assemble(self, parts: Iterable[str]) -> Any:
        """Return the index of the vectors that the parts hold, one part after the other. It needs this object."""
        faiss = import_faiss()
        lists = faiss.ArrayInvertedLists(self.index.nlist, self.index.code_size)
        self.index.replace_invlists(lists, _GIVEN)
        first = 0
        for path in parts:
            first += _add_part(lists, path, first)
        self.index.ntotal = first
        whole: Any = self.index
        if self.choice.kind == "rabitq":
            whole = faiss.IndexIVFRaBitQFastScan(self.index, BLOCK)
            whole.qb = QUERY_BITS
            self.index.replace_invlists(None, _GIVEN)
            del lists  # the codes are copied
            self._kept = (whole,)
        else:
            self._kept = (lists,)
        if self.rotation is None:
            return whole
        turn = faiss.LinearTransform(self.choice.dimension, self.choice.dimension, _BIAS)
        faiss.copy_array_to_vector(contiguous(self.rotation).reshape(-1), turn.A)
        turn.is_trained, turn.is_orthonormal = True, True
        self._kept = (*self._kept, turn)
        return faiss.IndexPreTransform(turn, whole)


def _add_part(lists: Any, path: str, first: int) -> int:
    """Add the codes of a part, whose first vector has this number; return how many there are."""
    faiss = import_faiss()
    arrays = read_arrays(path)
    where, codes = arrays["lists"], arrays["codes"]
    order = np.argsort(where, kind="stable")
    numbers, codes = order + first, contiguous(codes[order], np.uint8)
    present, starts = np.unique(where[order], return_index=True)
    for number, start, stop in zip(
        present.tolist(), starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True
    ):
        lists.add_entries(
            number, stop - start, faiss.swig_ptr(numbers[start:stop]), faiss.swig_ptr(codes[start:stop])
        )
    return len(order)


def encode_part(vectors: Sources, start: int, stop: int, coder: Coder, path: str) -> tuple[int, float]:
    """Write the lists and codes of a range of vectors to a file; return its size, and the mean score of centroids."""
    results, coded, total = [], [], 0.0
    for _, block in vectors.blocks(start, stop):
        lists, codes, scores = coder.encode(block)
        results.append(lists)
        coded.append(codes)
        total += float(scores.sum(dtype=np.float64))
    stream = io.BytesIO()
    np.savez(stream, lists=np.concatenate(results), codes=np.concatenate(coded))
    content = stream.getbuffer()
    size = len(content)
    write_all(path, bytes(content), write=WriteOptions(overwrite=True))
    return size, total / (stop - start)
