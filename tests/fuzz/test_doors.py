"""Every door and every verb answers any bytes with samples or a typed error, and nothing else."""

from __future__ import annotations

import contextlib
import io
import random
from pathlib import Path

import pytest
from click.exceptions import Exit

import tarmac
import tarmac.webdataset as wds
from harness import rounds
from harness.damage import pax_header, sized, structural
from harness.shards import KINDS, plain, with_hard_links
from tarmac.cli import program
from tarmac.errors import LimitExceeded, TarmacError, Truncated
from tarmac.tar import read_members

pytestmark = pytest.mark.filterwarnings("ignore::tarmac.errors.TarmacWarning")
CORPUS = sorted((Path(__file__).parent.parent / "corpus").glob("*.tar*"))
LENIENT = tarmac.TarOptions(end="lenient", concatenated=True)
DOORS = {
    "read": lambda path: list(tarmac.read(path)),
    "read leniently": lambda path: list(tarmac.read(path, tar=LENIENT)),
    "read as a stream": lambda path: list(tarmac.read(path, mmap=False, fields=["txt"])),
    "WebDataset": lambda path: list(tarmac.WebDataset(path)),
    "WebDataset that goes on": lambda path: list(
        tarmac.WebDataset(path, handler=wds.ignore_and_continue, empty_check=False)
    ),
    "Dataset": lambda path: list(tarmac.Dataset(path, progress=False)),
}
VERBS = {
    "check": "check {}",
    "repair": "check {} --repair -o {}.repaired/",
    "index": "index {} -o {}.json --digests",
    "show": "show {} --json",
    "show --at": "show {} --at 0",
    "copy": "copy {} -o {}.copy.tar",
    "sort": "sort {} -o {}.sorted.tar --by key",
    "export": "export {} --to dir -o {}.files/",
}


def run(verb, path):
    """Run a verb without the handler of unexpected errors."""
    with contextlib.suppress(SystemExit, Exit):
        program(VERBS[verb].replace("{}", str(path)).split(), standalone_mode=False)


def typed(door, path):
    with contextlib.suppress(TarmacError):
        DOORS[door](str(path)) if door in DOORS else run(door, path)


@pytest.mark.parametrize("door", [*DOORS, *VERBS])
def test_structural_mutants(door, tmp_path, capsys):
    rng = random.Random(door)
    seeds = [make() for make in KINDS.values()] + [with_hard_links()] + [p.read_bytes() for p in CORPUS]
    for number in range(rounds(40)):
        path = tmp_path / f"{number}.tar"
        path.write_bytes(structural(rng.choice(seeds), rng))
        typed(door, path)


@pytest.mark.parametrize("door", [*DOORS, *VERBS])
def test_the_corpus(door, tmp_path, capsys):
    for case in CORPUS:
        path = tmp_path / case.name
        path.write_bytes(case.read_bytes())
        typed(door, path)


FORGED = {
    "header": sized(plain(), 0, 2**63 - 1),
    "last header": sized(plain([("a.txt", b"1")]), 0, 2**63 - 512),
    "pax": pax_header(b"size", b"9223372036854775807") + plain(),
    "pax beyond": pax_header(b"size", b"9999999999999999999") + plain(),
    "second": plain([("a.txt", b"1")])[:1024] + pax_header(b"size", b"9223372036854775000") + plain(),
}


@pytest.mark.parametrize("form", FORGED)
@pytest.mark.parametrize("door", [*DOORS, *VERBS])
def test_a_forged_size_is_an_error_that_names_the_member(door, form, tmp_path, capsys):
    """A size of 2^63-1 ended in a traceback of mmap.madvise in all that read headers only."""
    path = tmp_path / "x.tar"
    path.write_bytes(FORGED[form])
    typed(door, path)
    if door in ("read", "WebDataset", "Dataset"):
        with pytest.raises(tarmac.errors.ArchiveError):
            DOORS[door](str(path))


@pytest.mark.parametrize("payload", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_an_archive_that_ends_in_a_payload_is_torn_however_it_is_read(payload, stream):
    """Where bytes are passed over, too: a lenient reader must not take the last sample for a whole one."""
    data = plain([("a.txt", b"x" * 700), ("b.txt", b"y" * 700)])
    for cut, torn in ((512 + 1024 + 512 + 699, True), (512 + 1024 + 512 + 700, False)):
        source = io.BytesIO(data[:cut]) if stream else data[:cut]
        with pytest.raises(Truncated) as caught:
            list(read_members(source, payload=payload))
        assert caught.value.torn is torn


def test_limits_still_count():
    with pytest.raises(LimitExceeded):
        list(read_members(FORGED["header"]))
