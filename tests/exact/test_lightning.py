"""Lightning, as in docs/exact.md, stopped in an epoch and resumed on another number of devices."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tarmac

pytest.importorskip("torch")
pytest.importorskip("lightning")

ROOT = Path(__file__).resolve().parents[2]
SAMPLES, BATCH = 46 * 64, 64

PRELUDE = """
import json, sys, warnings
import numpy as np
import torch
import tarmac

warnings.simplefilter("ignore")
warnings.simplefilter("error", tarmac.errors.TarmacWarning)
ds = tarmac.Dataset("d.tar")

def augment(sample, rng):
    return np.full(4, float(sample["cls"]), np.float32), sample["cls"] % 10
"""

RECORDING = """
class Recording(Model):
    def on_fit_start(self):
        self.seen, self.validated = [], 0

    def val_dataloader(self):
        return torch.utils.data.DataLoader(range(2))

    def validation_step(self, batch, index):
        self.validated += 1

    def training_step(self, batch, index):
        self.seen.append((self.current_epoch, batch[0][:, 0].tolist()))
        return super().training_step(batch, index)

class Stop(lightning.Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint("stopped.ckpt")
            trainer.should_stop = True

if __name__ == "__main__":
    devices, stop, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    options = {"strategy": "ddp"} if devices > 1 else {}
    options |= {"devices": devices, "enable_progress_bar": False, "enable_model_summary": False}
    options |= {"enable_checkpointing": False, "callbacks": [Stop(stop)] if stop else []}
    options |= {"num_sanity_val_steps": 0}
    model = Recording()
    fit(model, 2, None if stop else "stopped.ckpt", **options)
    with open(f"{name}-{model.global_rank}.json", "w") as file:
        json.dump((model.seen, model.validated), file)
"""


PLAIN = """
def key_of(sample):
    return sample["cls"]

import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, index):
        self.seen.append((self.current_epoch, batch.tolist()))
        return self.layer(torch.ones(1, 1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

if __name__ == "__main__":
    devices, peeks, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    loader = tarmac.Loader(ds.decode().map(key_of), batch_size=64, threads=1)
    for _ in range(peeks):
        next(iter(loader))
    model = Model()
    lightning.Trainer(
        max_epochs=2, devices=devices, strategy="ddp", accelerator="cpu", logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    ).fit(model, loader)
    with open(f"{name}-{model.global_rank}.json", "w") as file:
        json.dump((model.seen, 0), file)
"""


@pytest.fixture
def folder(tmp_path):
    """Write a dataset, and the recipe of the document as a program that records its batches."""
    with tarmac.TarWriter(tmp_path / "d.tar", index=True) as writer:
        for number in range(SAMPLES):
            writer.write({"__key__": f"{number:05d}", "cls": number})
    section = (ROOT / "docs" / "exact.md").read_text().partition("## With Lightning")[2]
    recipe = re.search(r"```python\n(.*?)\nfit\(Model\(\), 1\)", section, re.DOTALL)[1]
    (tmp_path / "program.py").write_text(PRELUDE + recipe + RECORDING)
    return tmp_path


def run(folder, devices, stop, name):
    """Run the program; return (epoch, samples) for each step of each device."""
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "program.py", str(devices), str(stop), name],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(devices)]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_resumed_on_another_number_of_devices(folder, before, after):
    """Every sample once in the stopped epoch and in the next one, and a validation after each."""
    stop = 40 // before  # 2,560 samples, and more steps than a whole epoch has on two devices
    first = run(folder, before, stop, "first")
    rest = run(folder, after, 0, "rest")
    assert [len(steps) for steps, _ in first] == [stop] * before
    left = (SAMPLES - 2560) // BATCH // after
    assert [[epoch for epoch, _ in steps].count(0) for steps, _ in rest] == [left] * after
    assert {validated for _, validated in rest} == {2 * 2}
    every = [step for steps, _ in first + rest for step in steps]
    for epoch in (0, 1):
        seen = [sample for number, batch in every if number == epoch for sample in batch]
        assert sorted(seen) == list(range(SAMPLES)), epoch


def test_a_loader_created_before_the_devices_are_known(folder):
    """`trainer.fit(model, loader)` after reading batches: every sample once per epoch."""
    (folder / "program.py").write_text(PRELUDE + PLAIN)
    results = run(folder, 2, 2, "plain")
    for epoch in (0, 1):
        seen = [[batch for number, batch in steps if number == epoch] for steps, _ in results]
        assert [len(steps) for steps in seen] == [SAMPLES // BATCH // 2] * 2
        assert sorted(sample for steps in seen for batch in steps for sample in batch) == list(range(SAMPLES))
