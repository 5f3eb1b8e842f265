"""Train an image classifier in torch: pack, augment, evaluate, save checkpoints, and resume on any number of processes.

    python image_classification.py                                       # one process
    torchrun --nproc-per-node 2 image_classification.py                  # two processes, one per GPU if there are GPUs
    torchrun --nproc-per-node 2 image_classification.py --stop-after 10  # stops in the middle of an epoch
    python image_classification.py                                       # resumes there, on one process

`--images` is a directory with one subdirectory of pictures per class. Without it, the script draws some.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image, ImageDraw, ImageOps
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tarmac

SIZE = 32
CHECKPOINT = Path("checkpoint.pt")


def draw_images(folder: Path) -> None:
    """Draw circles and squares: `circle/000.jpg`, …"""
    rng = np.random.default_rng(0)
    for name in ("circle", "square"):
        (folder / name).mkdir(parents=True)
        for number in range(120):
            image = Image.new("RGB", (64, 48), tuple(rng.integers(0, 100, 3).tolist()))
            x, y = rng.integers(0, 24), rng.integers(0, 12)
            draw = ImageDraw.Draw(image)
            shape = draw.ellipse if name == "circle" else draw.rectangle
            shape((x, y, x + 32, y + 32), fill=tuple(rng.integers(155, 255, 3).tolist()))
            image.save(folder / name / f"{number:03d}.jpg")


def pack(images: Path | None) -> None:
    """Pack the images into shards of both splits, with an index; what exists already is not packed again."""
    if images is None:
        images = Path("drawn")
        if not images.exists():
            draw_images(images)
    tarmac.pack(
        images,
        "shards/{split}-{i:04d}.tar",
        format="imagefolder",  # the field `cls` is the number of the class; shards/classes.txt lists the names
        split={"train": 0.8, "val": 0.2},  # by a hash of the key: stable when images are added
        shuffle=True,
        max_samples=50,  # for real data, shards of 100 MB to 1 GB
        index=True,
    )


def evaluation_crop(sample: dict[str, Any]) -> tuple[np.ndarray, int]:
    """Resize the image and crop its centre."""
    return np.asarray(ImageOps.fit(sample["jpg"], (SIZE, SIZE), Image.Resampling.BILINEAR)), sample["cls"]


def datasets() -> tuple[tarmac.Dataset[Any], tarmac.Dataset[Any]]:
    """Return the samples for training, randomly cropped and mirrored, and those for evaluation."""
    crop = tarmac.RandomResizedCrop(SIZE, scale=(0.5, 1.0))
    train = (
        tarmac.Dataset("shards/train-*.tar").decode(only="cls").map(crop, random=True).to_tuple("jpg", "cls")
    )
    val = tarmac.Dataset("shards/val-*.tar").decode("pil").map(evaluation_crop)
    return train, val


def to_device(
    images: np.ndarray, labels: np.ndarray, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Move a batch to the device as bytes, and normalise it there."""
    tensor = torch.from_numpy(images).to(device, non_blocking=True).permute(0, 3, 1, 2).float()
    return tensor.div_(127.5).sub_(1), torch.from_numpy(labels).to(device, non_blocking=True)


def network(classes: int) -> nn.Module:
    """Return a small convolutional network."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def evaluate(model: nn.Module, loader: tarmac.Loader[Any], device: torch.device) -> float:
    """Return the accuracy over the samples of all ranks, each counted once."""
    counts = torch.zeros(2, device=device)
    model.eval()
    with torch.no_grad():
        for batch in loader:
            images, labels = to_device(*batch, device)
            right = (model(images).argmax(1) == labels).sum()
            counts += torch.stack([right, torch.tensor(len(labels), device=device)])
    model.train()
    if dist.is_initialized():
        dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def save(**state: Any) -> None:
    """Replace the checkpoint by a complete one, on the first rank."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(state, CHECKPOINT.with_suffix(".part"))
        CHECKPOINT.with_suffix(".part").replace(CHECKPOINT)


def main() -> None:
    """Train for some epochs, from the checkpoint on if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="of all ranks together")
    parser.add_argument("--save-every", type=int, default=5, help="steps")
    parser.add_argument("--stop-after", type=int, help="steps, as if the time of the job were up")
    options = parser.parse_args()

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if gpu else torch.device("cpu")
    ranks, rank = 1, 0
    if gpu:
        torch.cuda.set_device(device)
    if "RANK" in os.environ:  # set by torchrun
        dist.init_process_group("nccl" if gpu else "gloo")
        ranks, rank = dist.get_world_size(), dist.get_rank()
    if rank == 0:
        pack(options.images)
    if ranks > 1:
        dist.barrier()

    train, val = datasets()
    loader = tarmac.Loader(train, options.batch_size // ranks, seed=1)
    held_out = tarmac.Loader(val, 64, shuffle=False, tail="short")

    torch.manual_seed(0)
    model = network(len(Path("shards/classes.txt").read_text().splitlines())).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 0.003)
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    parallel = DistributedDataParallel(model) if ranks > 1 else model

    def checkpoint() -> None:
        save(model=model.state_dict(), optimizer=optimizer.state_dict(), loader=loader.state_dict())

    steps = 0
    while loader.epoch < options.epochs:
        epoch, first = loader.epoch, loader.position
        for batch in loader:
            images, labels = to_device(*batch, device)
            loss = nn.functional.cross_entropy(parallel(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % options.save_every == 0 or steps == options.stop_after:
                checkpoint()
            if steps == options.stop_after:
                break
        if steps == options.stop_after:
            break
        accuracy = evaluate(model, held_out, device)
        checkpoint()
        if rank == 0:
            last = len(train) // options.batch_size * options.batch_size
            print(
                f"epoch {epoch}: trained on samples {first} to {last}; {accuracy:.0%} of {len(val)} are right"
            )
    if rank == 0:
        print(f"stopped in epoch {loader.epoch} after {loader.position} samples")
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
