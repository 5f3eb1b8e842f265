"""Memory stays bounded, whatever the size of the shard."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.heavy

PRELUDE = """
import sys
sys.path.insert(0, "tests")
from harness.memory import peak
from tarmac.tar.writer import HeaderBuilder, Owner, END_MARKER, member_block
from tarmac.tar import read_members
from harness.native import read_samples
from tarmac.samples.grouping import Grouping

class Generated:
    '''A shard that is generated while it is read.'''
    def __init__(self, blocks, count, step=1000):
        self.blocks, self.count, self.step, self.number, self.rest = blocks, count, step, 0, b""
    def read(self, size):
        if not self.rest and self.number <= self.count:
            stop = min(self.number + self.step, self.count)
            self.rest = b"".join(self.blocks(n) for n in range(self.number, stop))
            self.rest += END_MARKER if stop == self.count else b""
            self.number = stop if stop < self.count else self.count + 1
        data, self.rest = self.rest[:size], self.rest[size:]
        return data

headers = HeaderBuilder(Owner())
base = peak()
"""


WITHOUT_C = """
import sys
sys.modules["tarmac_native.tar"] = None
"""


@pytest.fixture(params=["", WITHOUT_C], ids=["with C", "without C"])
def run(request) -> Callable[[str], int]:
    """Return a function that runs a script and returns the number that it prints."""

    def run(script: str) -> int:
        program = request.param + PRELUDE + textwrap.dedent(script)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    return run


def test_streaming_two_gigabytes(run):
    grown = run("""
        payload = bytes(2 << 20)
        source = Generated(lambda n: member_block(headers, b"%d.bin" % n, payload), 1024, step=1)
        total = sum(len(sample["bin"]) for sample in read_samples(source))
        assert total == 2 << 30
        print(peak() - base)
    """)
    assert grown < 64 << 20


def test_a_local_shard_of_two_gigabytes(run, tmp_path):
    grown = run(f"""
        import os
        path = {str(tmp_path / "big.tar")!r}
        with open(path, "wb") as file:
            for n in range(1024):
                file.write(headers.header(b"%d.bin" % n, 2 << 20)); file.seek(2 << 20, 1)
            file.write(END_MARKER)
        import tarmac
        base = peak()
        assert sum(len(s["bin"]) for s in tarmac.read(path)) == 2 << 30
        os.unlink(path)
        print(peak() - base)  # mapped pages count; the reader releases them
    """)
    assert grown < 64 << 20


def test_skipping_a_million_members(run):
    grown = run("""
        block = member_block(headers, b"a.bin", b"x")
        source = Generated(lambda n: block, 1_000_000)
        assert sum(1 for _ in read_members(source, wanted=lambda name: False)) == 0
        print(peak() - base)
    """)
    assert grown < 16 << 20


@pytest.mark.parametrize("repeated", ["error", "keep"])
def test_a_million_members_in_half_a_million_samples(run, repeated):
    grown = run(f"""
        name = lambda n: b"%07d.%c" % (n // 2, b"ab"[n % 2])
        source = Generated(lambda n: member_block(headers, name(n), b"x"), 1_000_000)
        samples = read_samples(source, Grouping(repeated={repeated!r}))
        assert sum(1 for _ in samples) == 500_000
        print(peak() - base)
    """)
    assert grown < 64 << 20


@pytest.mark.parametrize("repeated", ["error", "keep"])
def test_long_field_names_are_not_kept(run, repeated):
    grown = run(f"""
        name = lambda n: b"%07d." % n + b"%07d" % n * 3000
        source = Generated(lambda n: member_block(headers, name(n), b"x"), 10_000, step=10)
        samples = read_samples(source, Grouping(repeated={repeated!r}))
        assert sum(1 for _ in samples) == 10_000
        print(peak() - base)
    """)
    assert grown < 100 << 20  # those of a thousand are; all together they take 200 MiB
