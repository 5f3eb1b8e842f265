"""Trainers of other libraries, where installed: the same batches, stopped and resumed at every step."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import tarmac

torch = pytest.importorskip("torch")

EPOCHS, STEPS = 3, 6  # 203 samples in batches of 32, the rest is dropped


def noisy(sample, rng):
    return {
        "x": sample["npy"].ravel() / 203 + rng.random(12).astype(np.float32),
        "labels": sample["cls"] % 10,
    }


@pytest.fixture
def noise(dataset):
    return dataset.map(noisy, random=True)


def seen_by_a_loop(noise):
    """Return the batches of a plain loop over a Loader, in all epochs."""
    loader = tarmac.Loader(noise, 32, seed=1, threads=0)
    return [batch["x"].tolist() for _ in range(EPOCHS) for batch in loader]


def loss_of(layer, x, labels):
    return torch.nn.functional.cross_entropy(layer(x), labels)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")  # of the library, about itself and this machine
@pytest.mark.parametrize("processes", [0, 2])
def test_lightning_resumes_at_every_step(noise, tmp_path, processes):
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen, self.loader = torch.nn.Linear(12, 10), [], None

        def train_dataloader(self):
            self.loader = tarmac.Loader(noise, 32, seed=1, threads=0, processes=processes)
            self.loader.sampler = self.loader
            return self.loader

        def training_step(self, batch, index):
            self.seen.append(batch["x"].tolist())
            return loss_of(self.layer, torch.as_tensor(batch["x"]), torch.as_tensor(batch["labels"]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    class Save(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.save_checkpoint(tmp_path / f"{trainer.global_step}.ckpt")

    def fit(*callbacks, **options):
        model = Model()
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(
            max_epochs=EPOCHS, accelerator="cpu", use_distributed_sampler=False, callbacks=list(callbacks),
            enable_checkpointing=False, **quiet,
        )  # fmt: skip
        trainer.fit(model, weights_only=False, **options)
        model.loader.close()
        return model.seen

    whole = fit(Save())
    assert whole == seen_by_a_loop(noise)
    for step in range(1, EPOCHS * STEPS):
        assert fit(ckpt_path=tmp_path / f"{step}.ckpt") == whole[step:], step


@pytest.mark.filterwarnings("ignore")  # of the library, about itself and this machine
def test_transformers_resume_at_every_step(noise, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(12, 10), []

        def forward(self, x, labels):
            self.seen.append(x.tolist())
            return {"loss": loss_of(self.layer, x, labels)}

    class Epochs(torch.utils.data.DataLoader):
        def set_epoch(self, epoch):
            self.batch_sampler.set_epoch(epoch)

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            sampler = tarmac.BatchSampler(self.train_dataset, self.args.train_batch_size, seed=self.args.seed)
            return Epochs(self.train_dataset, batch_sampler=sampler)

    def train(**options):
        arguments = transformers.TrainingArguments(
            str(tmp_path), per_device_train_batch_size=32, num_train_epochs=EPOCHS, seed=1, use_cpu=True,
            save_strategy="steps", save_steps=1, report_to=[], remove_unused_columns=False, disable_tqdm=True,
        )  # fmt: skip
        model = Model()
        Trainer(model, arguments, train_dataset=noise).train(**options)
        return model.seen

    whole = train()
    assert whole == seen_by_a_loop(noise)
    for step in range(1, EPOCHS * STEPS):
        rest = train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert rest == whole[step:], step


class StubTrainer:
    """What the recipe uses of transformers.Trainer: one epoch, with the batches before a checkpoint skipped."""

    def __init__(self, model, args, train_dataset):
        self.model, self.args, self.train_dataset = model, args, train_dataset

    def train(self, resume_from_checkpoint=0):
        loader = self.get_train_dataloader()
        loader.set_epoch(0)
        for step, batch in enumerate(loader):
            if step >= resume_from_checkpoint:
                self.model(**batch)


def test_the_recipe_for_transformers(tmp_path, monkeypatch):
    module = ModuleType("transformers")
    module.Trainer = StubTrainer
    monkeypatch.setitem(sys.modules, "transformers", module)
    text = (Path(__file__).resolve().parents[2] / "docs" / "exact.md").read_text()
    (recipe,) = re.findall(r"```python\n(import transformers\n.*?)```", text, re.DOTALL)
    with tarmac.TarWriter(tmp_path / "d.tar", index=True) as writer:
        for number in range(20):
            writer.write(
                {"__key__": f"{number:03d}", "cls": number, "npy": np.full(4, 100 * number, np.float32)}
            )
    names = {"tarmac": tarmac, "torch": torch, "np": np, "ds": tarmac.Dataset(tmp_path / "d.tar")}
    exec(recipe, names)
    args = SimpleNamespace(train_batch_size=5, seed=1, dataloader_num_workers=0)

    def seen(**options):
        batches = []

        def forward(x, labels):  # as a model, it takes nothing else
            assert x.shape == (5, 4)
            assert (x.mean(1) / 100).round().tolist() == labels.tolist()
            batches.append(x.tolist())

        names["train"](forward, args, **options)
        return batches

    whole = seen()
    assert len(whole) == 4
    assert seen(resume_from_checkpoint=2) == whole[2:]
