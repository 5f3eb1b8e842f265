"""Devices: what engines assign to their workers, and what map functions get."""

from __future__ import annotations

import pytest

import tarmac
from harness import engines
from tarmac.errors import UsageError
from tarmac.jobs.engines import make_engine
from tarmac.runtime.device import assign_device, current_device, using_device

VARIABLES = ("TARMAC_DEVICE", "CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


@pytest.fixture(autouse=True)
def no_devices(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("settings", "spec", "expected"),
    [
        ({}, "auto", ["cpu", "cpu"]),
        ({}, "cpu:0,cpu:1", ["cpu:0", "cpu:1", "cpu:0"]),
        ({"CUDA_VISIBLE_DEVICES": "4,7"}, "auto", ["cuda:0", "cuda:1", "cuda:0"]),
        ({"CUDA_VISIBLE_DEVICES": "4,7"}, None, ["cuda:0", "cuda:1"]),
        ({"CUDA_VISIBLE_DEVICES": "4,7"}, "cpu", ["cpu", "cpu"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, "auto", ["cpu"]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "auto", ["cpu"]),
        ({"SLURM_JOB_GPUS": "2,3,5"}, "auto", ["cuda:0", "cuda:1", "cuda:2"]),
        ({"SLURM_STEP_GPUS": "2", "SLURM_JOB_GPUS": "2,3"}, "auto", ["cuda:0", "cuda:0"]),
        ({"TARMAC_DEVICE": "mps", "CUDA_VISIBLE_DEVICES": "1"}, "auto", ["mps", "mps"]),
    ],
)
def test_workers_use_devices_in_turn(monkeypatch, settings, spec, expected):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert [assign_device(spec, slot) for slot in range(len(expected))] == expected


def test_the_current_device(monkeypatch):
    assert current_device() == "cpu"
    with using_device("cuda:3"):
        assert current_device() == "cuda:3"
    monkeypatch.setenv("TARMAC_DEVICE", "cuda:1")
    assert current_device() == "cuda:1"


def test_invalid_devices(tmp_path):
    with pytest.raises(UsageError) as caught:
        make_engine("local", 1, "cuda:0,,cuda:1")
    assert caught.value.field == "device"
    with pytest.raises(UsageError) as caught:
        make_engine(engines.Twice("local"), 1, "cpu")
    assert caught.value.field == "device"


@pytest.mark.processes
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_function_is_set_up_once_in_each_process(tmp_path, jobs):
    shards = engines.make_shards(tmp_path)
    function = f"{tmp_path}/functions.py:Device"
    tarmac.map(shards, f"{tmp_path}/out/", function, jobs=jobs, device="cpu:0,cpu:1")
    lines = (tmp_path / "log").read_text().split("\n")[:-1]
    setups = [line.split()[1:] for line in lines if line.startswith("setup")]
    assert [device for _, device in sorted(setups, key=lambda each: each[1])] == ["cpu:0", "cpu:1"][
        : len(setups)
    ]
    assert 1 <= len(setups) <= jobs
    assert sorted(line.split()[1] for line in lines if line.startswith("close")) == sorted(
        pid for pid, _ in setups
    )
    used = {sample["device"].decode() for sample in tarmac.read(f"{tmp_path}/out/*.tar")}
    assert used == {device for _, device in setups}
