"""Tokenizers for tests: one trained on the spot, one in pure Python, and a small VQ model in torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

WORDS = [
    "a",
    "red",
    "green",
    "blue",
    "small",
    "large",
    "old",
    "new",
    "car",
    "dog",
    "cat",
    "tree",
    "house",
    "stands",
    "runs",
]


def caption(number: int) -> str:
    """Return a text that depends on the number alone; some are long, and one in a thousand is empty."""
    if number % 1000 == 999:
        return ""
    rng = np.random.default_rng(number)
    return " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), rng.integers(1, 30)))


def train_tokenizer(path: Path) -> str:
    """Train a small BPE tokenizer on the captions and save it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(map(caption, range(500)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.save(str(path))
    return str(path)


class Letters:
    """Tokens are the codes of letters."""

    vocab_size = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class Wide(Letters):
    """A vocabulary that needs 32 bits."""

    vocab_size = 100_000

    def encode(self, text: str) -> list[int]:
        return [99_999, *text.encode()]


class Beyond(Letters):
    """A tokenizer that returns tokens outside its vocabulary."""

    vocab_size = 100


class Silent:
    """A tokenizer that does not tell the size of its vocabulary."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class VQ:
    """A vector-quantized model: the nearest of 32 colours for each patch of 16x16 pixels. Code 0 is black."""

    vocab_size = 32

    def setup(self, device: str) -> None:
        import torch

        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(7)
        self.book = torch.rand(32, 3, generator=generator).to(device)
        self.book[0] = 0
        self.device = device

    def encode(self, images: np.ndarray[Any, Any]) -> Any:
        import torch

        pixels = torch.from_numpy(images).to(self.device).float().permute(0, 3, 1, 2) / 255
        patches = torch.nn.functional.avg_pool2d(pixels, 16).permute(0, 2, 3, 1)
        return torch.cdist(patches.reshape(len(images), -1, 3), self.book.expand(len(images), -1, -1)).argmin(
            -1
        )
