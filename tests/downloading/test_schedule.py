"""The order of requests: hosts in turn, never above their limits, never before they want it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tarmac.downloading.network import hosts as hosts_module
from tarmac.downloading.network.hosts import COOL_DOWN, FAILURES, NEVER, RECENT, Hosts
from tarmac.downloading.network.schedule import SHORTEST_TAIL, TAIL, Schedule, Tail


def test_hosts_take_turns():
    schedule = Schedule(Hosts())
    for number in range(3):
        for host in ("a", "b", "c"):
            schedule.add(host, f"{host}{number}")
    taken = [schedule.take(0.0)[1] for _ in range(9)]
    assert taken == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]
    assert schedule.take(0.0) is None
    assert len(schedule) == 0


def test_the_rate_of_a_host():
    hosts = Hosts(concurrency=10, rate=4.0)
    schedule = Schedule(hosts)
    for number in range(3):
        schedule.add("a", number)
    assert schedule.take(0.0) == ("a", 0)
    hosts.start("a", 0.0)
    assert schedule.take(0.1) is None
    assert schedule.next_time() == 0.25
    assert schedule.take(0.25) == ("a", 1)


def test_retry_after_blocks_a_host_and_no_other():
    hosts = Hosts()
    schedule = Schedule(hosts, patience=20.0)
    schedule.add("a", 1)
    schedule.add("b", 2)
    hosts.start("a", 0.0)
    hosts.finish("a", 0.0, answered=True, retry_after=15.0)
    assert schedule.take(0.0) == ("b", 2)
    assert schedule.take(14.9) is None
    assert schedule.take(15.0) == ("a", 1)


def test_a_host_that_wants_too_long_a_pause_is_given_up():
    hosts = Hosts()
    schedule = Schedule(hosts, patience=20.0)
    hosts.start("a", 0.0)
    hosts.finish("a", 0.0, answered=True, retry_after=3600.0)
    schedule.add("a", 1)
    assert schedule.take(0.0) is None
    assert list(schedule.given_up()) == [1]
    assert len(schedule) == 0


def test_a_host_that_fails_is_left_alone_and_then_tried_once():
    hosts = Hosts()
    for _ in range(FAILURES):
        assert hosts.ready_at("a", 0.0) <= 0.0
        hosts.start("a", 0.0)
    for _ in range(FAILURES):
        hosts.finish("a", 0.0, answered=False)
    assert hosts.ready_at("a", 0.0) == COOL_DOWN
    hosts.start("a", COOL_DOWN)
    assert hosts.ready_at("a", COOL_DOWN) == NEVER  # one request finds out
    hosts.finish("a", COOL_DOWN, answered=False)
    assert hosts.ready_at("a", COOL_DOWN) == 3 * COOL_DOWN
    hosts.start("a", 3 * COOL_DOWN)
    hosts.finish("a", 3 * COOL_DOWN, answered=True)
    assert hosts.ready_at("a", 3 * COOL_DOWN) <= 3 * COOL_DOWN


def test_a_unit_waits_for_its_last_rows_for_a_part_of_the_time_that_the_others_took():
    tail = Tail(total=1000, began=10.0)
    assert (tail.most, Tail(total=49, began=0.0).most) == (20, 0)
    assert tail.ends(few=False, now=50.0) == NEVER
    assert tail.ends(few=True, now=110.0) == tail.ends(few=True, now=111.0) == 110.0 + 100 * TAIL
    assert tail.ends(few=False, now=112.0) == NEVER  # redirects led to further hosts
    assert tail.ends(few=True, now=210.0) == 210.0 + 200 * TAIL
    assert Tail(total=50, began=0.0).ends(few=True, now=2.0) == 2.0 + SHORTEST_TAIL


def test_hosts_are_forgotten_unless_they_have_a_request_or_a_pause(monkeypatch):
    monkeypatch.setattr(hosts_module, "MAX_HOSTS", 100)
    hosts = Hosts()
    hosts.start("busy", 0.0)
    hosts.start("rude", 0.0)
    hosts.finish("rude", 0.0, answered=True, retry_after=1000.0)
    most = 0
    for number in range(5000):
        hosts.start(f"h{number}", float(number % 3))
        hosts.finish(f"h{number}", float(number % 3), answered=number % 5 > 0)
        hosts.start("often", 3.0)
        hosts.finish("often", 3.0, answered=False)
        most = max(most, len(hosts.known))
    assert most <= 110
    assert hosts.known["busy"].active == 1
    assert hosts.ready_at("rude", 500.0) == 1000.0
    assert hosts.known["often"].failures == 5000


def test_hosts_that_are_only_asked_as_seldom_as_they_want_are_not_slow():
    hosts = Hosts(concurrency=1, rate=0.01)
    schedule = Schedule(hosts)
    schedule.add("a", 1)
    schedule.add("a", 2)
    assert not schedule.moves(0.0)  # it has never answered
    assert schedule.take(0.0) == ("a", 1)
    hosts.start("a", 0.0)
    assert schedule.moves(50.0)  # the rate allows the next request at 100.0
    hosts.finish("a", 99.0, answered=True)
    assert schedule.moves(100.0)
    assert not schedule.moves(99.0 + RECENT + 1)
    hosts.start("a", 109.0)
    hosts.finish("a", 110.0, answered=True, retry_after=60.0)
    assert not schedule.moves(111.0)


@given(
    items=st.lists(st.sampled_from("abcd"), max_size=40),
    most=st.integers(1, 3),
    rate=st.sampled_from([None, 2.0, 10.0]),
    draw=st.data(),
)
def test_every_item_is_taken_once_and_within_the_limits(items, most, rate, draw):
    hosts = Hosts(most, rate)
    schedule = Schedule(hosts, patience=NEVER)
    for number, host in enumerate(items):
        schedule.add(host, number)
    now, running, taken, started = 0.0, [], [], {}
    while len(taken) < len(items) or running:
        result = schedule.take(now)
        if result is not None:
            host, number = result
            assert host == items[number]
            assert rate is None or now - started.get(host, -NEVER) >= 1 / rate - 1e-9
            hosts.start(host, now)
            started[host] = now
            running.append(host)
            taken.append(number)
            assert max(Counter(running).values()) <= most
        elif running:
            host = running.pop(draw.draw(st.integers(0, len(running) - 1)))
            hosts.finish(host, now, answered=draw.draw(st.booleans()))
            schedule.ended(host)
        else:
            assert schedule.next_time() < NEVER
            now = max(now, schedule.next_time())
    assert sorted(taken) == list(range(len(items)))
