"""Network failures: the correct bytes or a typed error, never silent damage."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from harness import reserved_ports, rounds
from harness.faultfs import descriptors
from harness.faultserver import (
    GZIP_LABEL,
    IGNORE_RANGE,
    NO_REPLY,
    REDIRECT_TO_FILE,
    REDIRECT_TO_SELF,
    Action,
    FaultServer,
    random_script,
)
from harness.waiting import FOREVER
from harness.work import calls
from tarmac.errors import (
    AccessDenied,
    ConnectFailed,
    NotFound,
    ObjectChanged,
    ShortRead,
    Stalled,
    TransferError,
    UrlError,
    UsageError,
)
from tarmac.storage import StorageOptions, open_read, read_range, stat

BODY = random.Random(1).randbytes(200_000)
LONG = random.Random(2).randbytes(3_000_000)


@pytest.fixture
def server():
    with FaultServer(BODY) as running:
        yield running


@pytest.fixture
def long_server():
    with FaultServer(LONG) as running:
        yield running


def fetch(url: str, options: StorageOptions, size: int = 1 << 20) -> bytes:
    with open_read(url, options) as source:
        return b"".join(iter(lambda: source.read(size), b""))


def script_of(seed: int, size: int) -> list[Action]:
    """Return random faults, including some invalid responses."""
    rng = random.Random(seed)
    script = random_script(rng, size, 4)
    odd = [
        IGNORE_RANGE,
        Action(widen=rng.randint(1, 2000)),
        Action(shift=rng.choice((-512, 1, 512))),
        Action(status=rng.choice((408, 429))),
        Action(cut=rng.randint(0, size - 1), framing="chunked"),
        Action(framing="chunked"),
        Action(cut=rng.randint(0, size - 1), widen=rng.randint(1, 600)),
    ]
    if rng.random() < 0.5:
        script.insert(rng.randint(0, len(script)), rng.choice(odd))
    return script


def test_2000_random_schedules(server, hasty):
    whole = failed = 0
    for seed in range(rounds(2000)):
        script = script_of(seed, len(BODY))
        server.script(script)
        server.clear()
        try:
            result = fetch(server.url, hasty)
        except (TransferError, UrlError):
            failed += 1
        else:
            assert result == BODY, f"seed {seed}: silent damage after {script}"
            whole += 1
        # A resumed body starts where it broke: only bytes in flight at a break are sent twice.
        sent = sum(request.sent for request in server.requests)
        widened = sum(2 * action.widen for action in script)
        whole_again = len(BODY) * sum(a.whole or a.framing == "chunked" or a.shift != 0 for a in script)
        assert sent <= len(BODY) + widened + whole_again + (1 << 16) * len(script), f"seed {seed}"
    assert whole > rounds(2000) * 0.6
    assert failed > 0


def test_500_random_schedules_for_ranges(server, hasty):
    whole = 0
    for seed in range(rounds(500)):
        rng = random.Random(seed)
        start = rng.randint(0, len(BODY) - 1)
        stop = rng.randint(start, len(BODY))
        server.script(script_of(seed, len(BODY)))
        try:
            result = read_range(server.url, start, stop, hasty)
        except (TransferError, UrlError):
            continue
        assert result == BODY[start:stop], f"seed {seed}"
        whole += 1
    assert whole > rounds(500) * 0.5


def test_truncated_bodies_are_resumed(server, hasty):
    offsets = [0, 1, 511, 512, 513, len(BODY) - 1, *range(4096, len(BODY), 4096)]
    for offset in offsets:
        for reset in (False, True):
            server.script([Action(cut=offset, reset=reset)])
            server.clear()
            assert fetch(server.url, hasty) == BODY
            assert len(server.requests) == 2
            resumed = server.requests[1].range
            assert resumed is not None or offset == 0


# ---- statuses


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 429])
def test_temporary_failures_are_retried(server, hasty, status):
    server.script([Action(status=status, headers={"Retry-After": "0"})] * 3)
    assert fetch(server.url, hasty) == BODY
    server.script([Action(status=status)] * 3)
    assert read_range(server.url, 5, 50, hasty) == BODY[5:50]
    server.script([Action(status=status)] * 3)
    assert stat(server.url, hasty).size == len(BODY)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 429])
def test_permanent_failures_are_raised(server, hasty, status):
    server.script([], then=Action(status=status))
    with pytest.raises(ConnectFailed, match=rf"{status}.*\b4 retries"):
        fetch(server.url, hasty)
    assert len(server.requests) == 5


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, AccessDenied),
        (403, AccessDenied),
        (404, NotFound),
        (410, NotFound),
        (400, TransferError),
        (412, ObjectChanged),
        (405, TransferError),
        (418, TransferError),
    ],
)
def test_client_errors_are_not_retried(server, hasty, status, kind):
    server.script([], then=Action(status=status))
    for operation in (lambda: fetch(server.url, hasty), lambda: read_range(server.url, 0, 9, hasty)):
        server.clear()
        with pytest.raises(kind, match=str(status)) as refused:
            operation()
        assert type(refused.value) is kind
        assert len(server.requests) == 1
    with pytest.raises(kind, match=str(status)):
        stat(server.url, hasty)


def test_numbers_in_a_name_are_not_a_status(server, hasty):
    server.script([], then=Action(status=503))
    with pytest.raises(ConnectFailed):
        fetch(server.url.replace("object", "404/401-403"), hasty)


def test_stat_of_a_url_signed_for_get(server, hasty):
    server.script([Action(status=403)])
    result = stat(f"{server.url}?X-Amz-Signature=0123456789", hasty)
    assert (result.size, result.version) == (len(BODY), '"v1"')
    assert [(request.method, request.range) for request in server.requests] == [
        ("HEAD", None),
        ("GET", "bytes=0-0"),
    ]


# ---- invalid responses


def test_a_whole_body_in_response_to_a_range(server, hasty):
    server.script([], then=IGNORE_RANGE)
    with pytest.raises(TransferError, match="range"):
        read_range(server.url, 10, 20, hasty)
    server.script([Action(cut=1000)], then=IGNORE_RANGE)
    with pytest.raises(TransferError):
        fetch(server.url, hasty)


@pytest.mark.parametrize("shift", [-512, -1, 1, 512])
def test_a_wrong_content_range(server, hasty, shift):
    server.script([], then=Action(shift=shift))
    with pytest.raises(TransferError, match="range"):
        read_range(server.url, 1000, 1100, hasty)
    server.script([Action(cut=100_000)], then=Action(shift=shift))
    with pytest.raises(TransferError):
        fetch(server.url, hasty)


def test_more_bytes_than_requested(server, hasty):
    server.script([], then=Action(widen=100))
    with pytest.raises(TransferError):
        read_range(server.url, 1000, 1100, hasty)
    server.script([Action(cut=10)], then=Action(widen=100))
    with pytest.raises(ShortRead, match="object"):
        read_range(server.url, 1000, 1100, hasty)
    server.script([Action(cut=100_000)], then=Action(widen=700))
    assert fetch(server.url, hasty) == BODY


def test_a_range_beyond_the_end(server, hasty):
    with pytest.raises(ShortRead, match="0x00030d40"):
        read_range(server.url, len(BODY) - 10, len(BODY) + 10, hasty)
    with pytest.raises(TransferError, match="416"):
        read_range(server.url, len(BODY) + 10, len(BODY) + 20, hasty)
    assert read_range(server.url, 5, 5, hasty) == b""
    for start, stop in ((-1, 5), (6, 5)):
        with pytest.raises(UsageError, match="start"):
            read_range(server.url, start, stop, hasty)


@pytest.mark.parametrize("etag", ['"v2"', None])
def test_an_object_replaced_while_it_is_read(long_server, hasty, etag):
    other = random.Random(3).randbytes(len(LONG))
    long_server.script([Action(cut=1_500_000), Action(change=(other, etag))])
    with pytest.raises(ObjectChanged, match="replaced"):
        fetch(long_server.url, hasty)


def test_bodies_without_an_etag_are_not_resumed(hasty):
    with FaultServer(BODY, etag=None) as server:
        server.script([Action(cut=100_000)])
        with pytest.raises(ShortRead) as short:
            fetch(server.url, hasty)
        assert short.value.offset is not None
        assert fetch(server.url, hasty) == BODY


def test_content_encoding_is_not_decoded(server, hasty):
    server.script([GZIP_LABEL])
    assert fetch(server.url, hasty) == BODY
    assert "gzip" not in server.requests[0].headers.get("accept-encoding", "")


def test_invalid_redirects(server, hasty):
    for action in (REDIRECT_TO_SELF, REDIRECT_TO_FILE, Action(status=302)):
        server.script([], then=action)
        server.clear()
        with pytest.raises(TransferError) as refused:
            fetch(server.url, hasty)
        assert "root:" not in str(refused.value)
        assert len(server.requests) < 100


def test_unreachable_servers(hasty):
    with reserved_ports(1) as [port]:
        for url in (f"http://127.0.0.1:{port}/x.tar", "http://host.invalid/x.tar"):
            for operation in (fetch, stat):
                with pytest.raises(ConnectFailed, match="reached"):
                    operation(url, hasty)


def test_closed_connections(server, hasty):
    server.script([], then=NO_REPLY)
    with pytest.raises(ConnectFailed, match="4 retries"):
        fetch(server.url, hasty)
    server.script([NO_REPLY] * 3)
    assert fetch(server.url, hasty) == BODY


# ---- time


@pytest.mark.parametrize(
    "action",
    [
        Action(stall=FOREVER, stall_at=0),
        Action(stall=FOREVER, stall_at=100),
        Action(stall=FOREVER, stall_at=2_500_000),
        Action(silent=True, stall=FOREVER),
        Action(head_seconds=FOREVER, headers={"X-Long": "x" * 60_000}),  # six bytes per second
        Action(stall=FOREVER, stall_at=100, framing="chunked"),
        Action(stall=FOREVER, stall_at=100, framing="close"),
    ],
    ids=["body", "early", "late", "silent", "head", "chunked", "close"],
)
def test_the_idle_timeout(long_server, hasty, action):
    long_server.script([], then=action)
    with pytest.raises(Stalled):
        fetch(long_server.url, replace(hasty, idle_timeout=1.0, retries=0))
    assert len(long_server.requests) <= 2  # obstore, and then web.py for a body without a length
    assert all(request.sent <= action.stall_at for request in long_server.requests)  # it still stalls


def test_a_temporary_stall_is_resumed(long_server, hasty):
    long_server.script([Action(stall=FOREVER, stall_at=1_200_000)])
    assert fetch(long_server.url, replace(hasty, idle_timeout=2)) == LONG
    assert len(long_server.requests) == 2


def test_the_total_timeout(long_server, hasty):
    long_server.script([], then=Action(rate=20_000))
    with pytest.raises(TransferError):
        fetch(long_server.url, replace(hasty, total_timeout=1.0, retries=0))
    [request] = long_server.requests
    assert request.sent < len(LONG)


# ---- bodies without a length


@pytest.mark.parametrize("framing", ["chunked", "close"])
def test_unknown_length(long_server, hasty, framing):
    long_server.script([], then=Action(framing=framing))
    assert fetch(long_server.url, hasty) == LONG
    assert fetch(long_server.url, hasty, size=100) == LONG
    with open_read(long_server.url, hasty) as source:
        assert source.length is None
        assert source.version == '"v1"'


@pytest.mark.parametrize("cut", [0, 1, 16_384, 100_000, len(BODY) - 1, len(BODY)])
@pytest.mark.parametrize("reset", [False, True])
def test_a_truncated_chunked_body(server, hasty, cut, reset):
    server.script([], then=Action(framing="chunked", cut=cut, reset=reset))
    with pytest.raises(ShortRead):
        fetch(server.url, hasty)


def test_a_truncated_body_without_length_is_a_truncated_archive(hasty, tmp_path):
    import tarmac
    from tarmac.errors import Truncated

    with tarmac.TarWriter(tmp_path / "x.tar") as shard:
        for number in range(100):
            shard.write({"__key__": f"{number:03d}", "txt": "x" * 1000})
    data = (tmp_path / "x.tar").read_bytes()
    with FaultServer(data) as server:
        for cut in range(0, len(data) - 1024, 512 * 17):
            server.script([], then=Action(framing="close", cut=cut))
            with pytest.raises((Truncated, tarmac.errors.NotATar)):
                list(tarmac.read(server.url, storage=hasty))
        server.script([], then=Action(framing="close"))
        assert len(list(tarmac.read(server.url, storage=hasty))) == 100


# ---- resources


def test_descriptors_stay_constant(long_server, hasty):
    def use(number: int) -> None:
        with open_read(long_server.url, hasty) as source:
            source.read(100)  # and abandon the rest
        fetch(f"{long_server.url}?n={number}", hasty)
        stat(long_server.url, hasty)

    for number in range(80):
        use(number)
    before = descriptors()
    for number in range(80, 80 + rounds(150)):
        use(number)
    assert len(descriptors()) <= len(before) + 5


def test_small_reads_send_no_more_requests(long_server, hasty):
    assert fetch(long_server.url, hasty, 512) == LONG
    assert len(long_server.requests) == 1
    with open_read(long_server.url, hasty) as source:
        work = calls(lambda: [source.read(512) for _ in range(0, len(LONG), 512)])
    assert work < 10 * len(LONG) / 512
