"""The samples of one tar file by position."""

from __future__ import annotations

import hashlib
import io
import tarfile

import pytest

from compat.conftest import contents
from harness.shards import COMPRESSED_KINDS, PLAIN_KINDS, plain
from tarmac.compat.wids.wids import IndexedTarSamples, compute_file_md5sum, compute_num_samples
from tarmac.errors import (
    BadManifest,
    DigestMismatch,
    DuplicateField,
    IndexingError,
    NotATar,
    NotFound,
    SplitSample,
    Truncated,
)
from tarmac.storage import open_read


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    return path


FIRST = {".cls": b"7", ".txt": b"the first caption", "__key__": "s0"}


def test_samples(path):
    samples = IndexedTarSamples(path=str(path))
    assert len(samples) == compute_num_samples(path) == 3
    assert list(samples[0]) == list(FIRST)  # in the order of wids
    assert contents(samples[0]) == contents(samples[-3]) == FIRST
    assert [sample["__key__"] for sample in samples] == ["s0", "s1", "s2"]
    assert samples.path == str(path)
    assert samples.uuid
    for index in (3, -4):
        with pytest.raises(IndexError, match="3 samples"):
            samples[index]
    samples.close()
    with pytest.raises(ValueError, match="closed"):
        samples[0]


@pytest.mark.processes
def test_open_files(path):
    for stream in (io.BytesIO(path.read_bytes()), open_read(str(path)), open_read(f"pipe:cat {path}")):
        assert contents(IndexedTarSamples(stream=stream)[0]) == FIRST
    with open(path, "rb") as file:
        samples = IndexedTarSamples(path=path, stream=file, use_mmap=False)
        assert not file.closed
    assert contents(samples[0]) == FIRST  # the caller may close its file
    with pytest.raises(TypeError, match="`path`"):
        IndexedTarSamples()


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_tar_formats(kind, tmp_path):
    """wids truncated PAX and GNU names to 100 characters, merged equal ones, and lost ustar prefixes."""
    path = tmp_path / "a.tar"
    path.write_bytes(PLAIN_KINDS[kind]())
    with tarfile.open(path) as archive:
        expected = {member.name: archive.extractfile(member).read() for member in archive if member.isreg()}
    result = {}
    for sample in IndexedTarSamples(path=path):
        key = sample.pop("__key__")
        result |= {f"{key}{extension}": value.read() for extension, value in sample.items()}
    assert result == expected


def test_fields_keep_their_case(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([("n01.JPEG", b"1"), ("n01.seg.png", b"2"), ("README", b"3")]))
    assert list(IndexedTarSamples(path=path)[0]) == [".JPEG", ".seg.png", "__key__"]


@pytest.mark.parametrize(
    ("names", "error"),
    [(["a.txt", "a.cls", "a.txt", "b.txt"], DuplicateField), (["a.txt", "b.txt", "a.cls"], SplitSample)],
)
def test_repeated_names_are_errors(tmp_path, names, error):
    """In wids they shifted the positions of all later samples."""
    path = tmp_path / "a.tar"
    path.write_bytes(plain([(name, b"1") for name in names]))
    with pytest.raises(error):
        IndexedTarSamples(path=path)


def test_whole_samples_may_repeat(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([("a.txt", b"1"), ("b.txt", b"2"), ("a.txt", b"3")]))
    assert [sample[".txt"].read() for sample in IndexedTarSamples(path=path)] == [b"1", b"2", b"3"]


def test_damage_and_other_files_are_errors(tmp_path, path):
    whole = path.read_bytes()
    for content, error in (
        (whole[:2048], Truncated),
        (b"<html>404 not found</html>" * 40, NotATar),
        (COMPRESSED_KINDS["gz"](), IndexingError),
    ):
        (tmp_path / "b.tar").write_bytes(content)
        with pytest.raises(error):
            IndexedTarSamples(path=tmp_path / "b.tar")
    with pytest.raises(NotFound):
        IndexedTarSamples(path=tmp_path / "none.tar")


def test_checksums_and_sizes_are_checked(path):
    good = hashlib.md5(path.read_bytes()).hexdigest()
    assert compute_file_md5sum(path, 100) == compute_file_md5sum(io.BytesIO(path.read_bytes())) == good
    assert len(IndexedTarSamples(path=path, md5sum=good, expected_size=3)) == 3
    with pytest.raises(DigestMismatch, match=good):
        IndexedTarSamples(path=path, md5sum="0" * 32)
    with pytest.raises(BadManifest, match=r"a\.tar: .*\b4 .*\b3\b"):
        IndexedTarSamples(path=path, expected_size=4)
