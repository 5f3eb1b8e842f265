"""Worker processes: errors that are sent, exits that are described, processes that are stopped."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time

import pytest

from harness.waiting import FOREVER, TIMEOUT
from tarmac.errors import BadName, WorkerFailed
from tarmac.runtime.processes import (
    close_parent_ends,
    exit_reason,
    keep_in_parent,
    result_of,
    sendable_error,
    wait_for_exit,
    worker_pool,
)


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("no")


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_an_error_is_sent_with_its_traceback():
    sent = pickle.loads(pickle.dumps(sendable_error(raised(BadName("bad.", key="k")), "worker 3")))
    assert (type(sent), sent.key) == (BadName, "k")
    assert "in worker 3" in sent.__notes__[0]
    assert "in raised" in sent.__notes__[0]


def test_an_error_that_cannot_be_pickled_is_described():
    sent = sendable_error(raised(Unpicklable("why")))
    assert isinstance(sent, WorkerFailed)
    assert "Unpicklable in a worker process: why" in str(sent)


@pytest.mark.parametrize(("how", "reason"), [("exit", "status 3"), ("kill", "SIGKILL")])
def test_how_a_process_ended(how, reason):
    def work():
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    assert reason in exit_reason(process)


def test_waiting_returns_what_still_runs():
    context = multiprocessing.get_context("fork")
    short, long = context.Process(target=int), context.Process(target=time.sleep, args=(FOREVER,))
    short.start()
    long.start()
    assert wait_for_exit([short], TIMEOUT) == []
    assert wait_for_exit([long], 0.01) == [long]
    long.kill()
    assert wait_for_exit([short, long], TIMEOUT) == []
    long.join()
    short.join()


def test_a_forked_worker_closes_the_ends_of_its_parent():
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    keep_in_parent(ours)

    def work():
        close_parent_ends()
        os._exit(0 if ours.closed else 1)

    process = context.Process(target=work)
    process.start()
    process.join(TIMEOUT)
    assert process.exitcode == 0
    assert not ours.closed
    ours.close()
    theirs.close()


def square(item):
    if item == 3:
        raise BadName("three.", key="3")
    return item * item


def test_a_pool_returns_results_and_errors():
    with worker_pool(2, square) as submit:
        results = [result_of(submit(item)) for item in range(5)]
    assert results[:3] == [0, 1, 4]
    assert isinstance(results[3], BadName)
    assert results[4] == 16


def _leave_when_interrupted(folder):
    """Hold a suspended generator while an interrupt arrives outside of it."""

    def files():
        path = f"{folder}/{os.getpid()}"
        open(path, "w").close()
        try:
            yield path
        finally:
            os.unlink(path)

    held = files()
    next(held)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(FOREVER)
    return list(held)


def test_an_interrupted_worker_closes_its_generators(tmp_path):
    with worker_pool(2, _leave_when_interrupted) as submit:
        assert isinstance(result_of(submit(str(tmp_path))), Exception)
    assert os.listdir(tmp_path) == []
