"""50,000 samples are tokenized by tasks of Slurm that are killed, pre-empted and cancelled, and by Dask, exactly.

All samples have texts. One in fifty also has an image, for which a model in torch has tokens, between two texts; more
would only repeat the same code. The reference is a loop in one process: a text or an image at a time.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tarmac
from harness.anywhere import Anywhere, anywhere
from harness.clusters import import_path
from harness.slurm import FINAL
from harness.waiting import until
from tarmac.tools.jobs import SlurmOptions, slurm_script
from tarmac.tools.mappers.records import FIELD, from_arrow
from tokens.models import VQ, caption, train_tokenizer
from tokens.test_tokenize import MODELS

SAMPLES, SHARDS, TASKS = 50_000, 16, 4
REPEATED = 50
"""Samples of the last shard that are those of the first."""
BLOCK, SHIFT, PAD = 24, 32_001, 3
MODEL = '''
"""A model that waits in the middle of the second shard of each task of Slurm."""
import importlib.util, os, time
from pathlib import Path

spec = importlib.util.spec_from_file_location("token_models", {models!r})
models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(models)
HERE = Path(__file__).parent

class Waiting(models.VQ):
    calls = 0

    def encode(self, images):
        self.calls += 1
        task = os.environ.get("SLURM_ARRAY_TASK_ID")
        if task is not None and self.calls == 20:
            (HERE / f"new-{{task}}").write_text(str(os.getpid()))
            os.replace(HERE / f"new-{{task}}", HERE / f"ready-{{task}}")
            while True:
                time.sleep(0.01)
        return super().encode(images)
'''


def number_of(row: int) -> int:
    """Return the number of the sample in a row of the input; the last rows repeat the first samples."""
    return row if row < SAMPLES - REPEATED else row - (SAMPLES - REPEATED)


def parts_of(number: int) -> list[str | np.ndarray]:
    """Return the texts and images of a sample: a caption, and sometimes a picture of one colour and a text."""
    text = caption(number)
    if number % 50:
        return [text]
    colour = np.random.default_rng(number).integers(0, 256, 3) if number else np.zeros(3)  # black is code 0
    return [text, np.broadcast_to(colour.astype(np.uint8), (32, 32, 3)), "end"]


def write_inputs(folder: Path) -> None:
    from PIL import Image

    for shard in range(SHARDS):
        with tarmac.TarWriter(folder / f"in-{shard:02d}.tar", encoder=False) as writer:
            for row in range(shard * SAMPLES // SHARDS, (shard + 1) * SAMPLES // SHARDS):
                number = number_of(row)
                parts, fields = parts_of(number), {}
                if len(parts) > 1:
                    stream = io.BytesIO()
                    Image.fromarray(np.ascontiguousarray(parts[1])).save(stream, "PNG")
                    fields["0.png"] = stream.getvalue()
                listed = [part if isinstance(part, str) else {"image": "0.png"} for part in parts]
                writer.write({"__key__": f"{number:06d}", "list.json": json.dumps(listed).encode(), **fields})


def reference(tokenizer: str) -> Iterator[tuple[str, list[int], list[int], int]]:
    """Yield the key, the tokens, their modality and how many were cut off, one sample after the other."""
    from tokenizers import Tokenizer

    encode, model = Tokenizer.from_file(tokenizer).encode, VQ()
    model.setup("cpu")
    for number in range(SAMPLES - REPEATED):
        tokens, modality = [], []
        for part in parts_of(number):
            is_text = isinstance(part, str)
            ids = encode(part).ids if is_text else model.encode(np.array(part)[None])[0].tolist()
            tokens, modality = tokens + ids, modality + [int(not is_text)] * len(ids)
        yield f"{number:06d}", tokens[:BLOCK], modality[:BLOCK], max(len(tokens) - BLOCK, 0)


def interrupt_tasks(clusters: Anywhere, command: list[str]) -> None:
    """Run the command in an array; kill a task, pre-empt another one, and cancel the others when all are busy."""
    slurm, folder = clusters.slurm, clusters.folder
    script = slurm_script([sys.executable, "-m", "tarmac", *command], SlurmOptions(tasks=TASKS))
    job = slurm.sbatch(script, cwd=folder)
    ready = [folder / f"ready-{task}" for task in range(TASKS)]
    assert until(lambda: all(path.exists() for path in ready), 300), logs(folder)
    os.killpg(os.getpgid(int(ready[0].read_text())), signal.SIGKILL)
    assert until(lambda: slurm.states(job)[0] in FINAL), slurm.states(job)
    slurm.run("scancel", "--signal=USR2", "--batch", f"{job}_1")
    assert until(lambda: slurm.restarts(job).get(1) == 1), logs(folder)
    slurm.cancel(str(job))
    assert "COMPLETED" not in slurm.wait(job).values()


def logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("*_*.log")))


def delivered(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield batches of the rows of combined tokens: keys, and an array for each column."""
    return iter(tarmac.Loader(tarmac.Tokens(folder), batch_size=(SAMPLES - REPEATED) // 10, shuffle=False))


def cut_off(folder: Path) -> dict[str, int]:
    """Return how many tokens each sample lost, as the parts record it."""
    records = [from_arrow(sample[FIELD]) for sample in tarmac.read(f"{folder}/*.tar")]
    return {
        key: int(lost)
        for each in records
        for key, lost in zip(each.keys, each.columns["truncated"], strict=True)
    }


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.heavy
def test_interrupted_tasks_and_another_engine_write_what_a_loop_computes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", import_path())
    write_inputs(tmp_path)
    tokenizer = train_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "waiting.py").write_text(MODEL.format(models=MODELS))
    command = [
        "tokenize", "in-*.tar", "-o", "tokens", "--interleave", "list.json", "--tokenizer", tokenizer,
        "--image-tokenizer", "waiting.py:Waiting", "--resolution", "32", "--block-size", str(BLOCK),
        "--image-token-shift", str(SHIFT), "--batch-size", "250", "--checkpoint-samples", "500",
    ]  # fmt: skip
    with anywhere(tmp_path) as clusters:
        interrupt_tasks(clusters, command)
        finished = len(list((tmp_path / "tokens").glob("in-*.tar")))
        assert finished == TASKS  # each had completed its first shard
        assert clusters.run("dask", command), clusters.logs
    assert len(list((tmp_path / "tokens").glob("in-*.tar"))) == SHARDS

    report = tarmac.combine(tmp_path / "tokens", tmp_path / "combined", jobs=1, progress=False)
    assert report.written == SAMPLES - REPEATED
    check(tmp_path / "combined", tokenizer, cut_off(tmp_path / "tokens"))
    records = from_arrow(next(iter(tarmac.read(f"{tmp_path}/tokens/in-00.tar")))[FIELD])
    assert records.columns["tokens"].values.dtype == np.uint16
    assert records.columns["tokens"].values.max() < SHIFT  # which is applied to what is loaded


def check(folder: Path, tokenizer: str, lost: dict[str, int]) -> None:
    """Compare all rows, in order."""
    expected, count = reference(tokenizer), 0
    for batch in delivered(folder):
        keys, tokens, modality, cut = zip(*(next(expected) for _ in batch["__key__"]), strict=True)
        count += len(keys)
        filled = np.full((len(keys), BLOCK), PAD)
        kinds, mask = np.zeros((len(keys), BLOCK), int), np.zeros((len(keys), BLOCK), bool)
        for row, values in enumerate(tokens):
            filled[row, : len(values)] = np.array(values, int) + SHIFT * np.array(modality[row], int)
            kinds[row, : len(values)], mask[row, : len(values)] = modality[row], True
        assert batch["__key__"] == list(keys)
        assert batch["tokens"].dtype == np.int64
        np.testing.assert_array_equal(batch["tokens"], filled)
        np.testing.assert_array_equal(batch["mask"], mask)
        np.testing.assert_array_equal(batch["modality"][mask], kinds[mask])
        assert [lost[key] for key in keys] == list(cut)
    assert count == SAMPLES - REPEATED
    assert next(expected, None) is None
