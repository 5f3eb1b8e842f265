"""Real training processes: killed at any moment and resumed, and two ranks in step."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter

import pytest

from harness import rounds
from harness.waiting import until

TRAIN = """
    import json, os, sys, time
    import tarmac

    log, processes, epochs, *shards = sys.argv[1:]
    dataset = tarmac.Dataset(shards).decode()
    loader = tarmac.Loader(dataset, 4, seed=1, tail="short", threads=2, processes=int(processes))
    out = os.open(log, os.O_RDWR | os.O_CREAT)
    lines = os.read(out, 1 << 30).split(b"\\n")
    if len(lines) > 1:
        loader.load_state_dict(json.loads(lines[-2])["state"])
    os.lseek(out, -len(lines[-1]), os.SEEK_END)  # a truncated line is overwritten
    os.ftruncate(out, os.lseek(out, 0, os.SEEK_CUR))
    while loader.epoch < int(epochs):
        epoch = loader.epoch
        for batch in loader:
            time.sleep(0.002)  # training
            step = {"epoch": epoch, "keys": batch["__key__"], "state": loader.state_dict()}
            os.write(out, json.dumps(step).encode() + b"\\n")  # the step and its state in one
    loader.close()
"""


@pytest.mark.heavy
def test_every_sample_once_per_epoch_although_killed_a_hundred_times(shards, tmp_path):
    script, log = tmp_path / "train.py", tmp_path / "log"
    script.write_text(textwrap.dedent(TRAIN))
    rng, killed, never = random.Random(3), 0, 10_000

    def start(until):
        command = [sys.executable, script, log, str(rng.randrange(2)), str(until), *shards]
        return subprocess.Popen(command, start_new_session=True)

    def written():
        return log.stat().st_size if log.exists() else 0

    while killed < rounds(100):
        size = written()
        with start(never) as child:
            # Wait until it trains, or many kills would only hit the imports.
            assert until(lambda size=size, child=child: written() > size or child.poll() is not None)
            time.sleep(rng.uniform(0, 0.15))
            child.send_signal(signal.SIGKILL)
            child.wait()
        assert child.returncode == -signal.SIGKILL, "the training finished by itself"
        killed += 1
    state = json.loads(log.read_bytes().split(b"\n")[-2])["state"]
    with start(state["epoch"] + 1) as child:
        assert child.wait(600) == 0
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    assert len({step["epoch"] for step in steps}) == state["epoch"] + 1
    everything = Counter({f"s{number:05d}": 1 for number in range(203)})
    for epoch in range(state["epoch"] + 1):
        assert Counter(key for step in steps if step["epoch"] == epoch for key in step["keys"]) == everything


DISTRIBUTED = """
    import sys, json
    import torch, torch.distributed as dist
    import tarmac

    rank, rendezvous, *shards = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=2)
    loader = tarmac.Loader(tarmac.Dataset(shards).decode(), 6, seed=1, threads=1)
    steps, keys = 0, []
    for epoch in range(2):
        for batch in loader:
            total = torch.tensor(float(batch["cls"].sum()))
            dist.all_reduce(total)  # hangs if the other rank has no such step
            steps += 1
            keys += [(epoch, key) for key in batch["__key__"]]
    dist.destroy_process_group()
    print(json.dumps({"rank": loader.rank, "world": loader.world_size, "steps": steps, "keys": keys}))
"""


@pytest.mark.heavy
def test_two_ranks_of_torch_distributed_have_the_same_steps(shards, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(DISTRIBUTED))
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), tmp_path / "rendezvous", *shards],
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        results = [json.loads(rank.communicate(timeout=600)[0].splitlines()[-1]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()
    assert [(result["rank"], result["world"]) for result in results] == [(0, 2), (1, 2)]
    assert [result["steps"] for result in results] == [32, 32]  # 203 samples: 16 steps of 2 x 6 an epoch
    seen = Counter(tuple(key) for result in results for key in result["keys"])
    assert seen.total() == 2 * 192
    assert max(seen.values()) == 1
