"""Models of open_clip: images and texts in one space."""

from __future__ import annotations

from functools import cached_property
from random import Random
from typing import Any

import numpy as np

from tarmac.embedding.models.contract import EmbeddingModel
from tarmac.embedding.models.faster import use_onednn
from tarmac.embedding.models.load import FIELD, OPEN_CLIP, check_installed
from tarmac.errors import UsageError
from tarmac.steps.pictures import PictureStep, Resize, ResizeCenterCrop

_WHOLE = ("hf-hub:", "local-dir:")
"""Names that include the weights."""


class OpenClip(EmbeddingModel):
    """A model of open_clip, by `NAME/PRETRAINED`; `NAME/` has random weights, always the same.

    Images are decoded and resized by tarmac, and normalised on the device.
    """

    def __init__(self, name: str) -> None:
        if name.startswith(_WHOLE):
            self._name, self._pretrained = name, ""
        else:
            self._name, slash, self._pretrained = name.partition("/")
            if not slash:
                what = f"expected open_clip:NAME/PRETRAINED, got {OPEN_CLIP}{name}."
                hint = f"{OPEN_CLIP}{name}/laion2b_s34b_b79k; nothing behind the slash is a model with random weights."
                raise UsageError(what, field=FIELD, hint=hint)
        check_installed(open_clip="open_clip_torch", torchvision="torchvision")

    @property
    def random(self) -> bool:
        """Whether the weights are random, for tests."""
        return not self._pretrained and not self._name.startswith(_WHOLE)

    def setup(self, device: str) -> None:
        import open_clip
        import torch

        precision = "fp32" if device == "cpu" else "fp16"
        options: dict[str, Any] = {"precision": precision, "device": device}
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = open_clip.create_model(self._name, pretrained=self._pretrained or None, **options)
        except (RuntimeError, ValueError, FileNotFoundError) as error:
            raise UsageError(f"open_clip: {error}", field=FIELD) from error
        if device == "cpu":
            use_onednn(model)
        self._torch, self._device = torch, device
        self._model = model.train(mode=False)
        self._tokenizer = open_clip.get_tokenizer(self._name)
        self._picture(open_clip.get_model_preprocess_cfg(model))
        with torch.inference_mode():
            self.dimension = int(self._model.encode_text(self._tokens(self.prepare_texts(["a"]))).shape[-1])

    def _picture(self, config: dict[str, Any]) -> None:
        """Take the size, the colours and the way of resizing from the model."""
        size = config["size"]
        width, height = reversed(size) if isinstance(size, tuple | list) else (size, size)
        mode = config.get("resize_mode", "shortest")
        if mode not in ("shortest", "squash") or (mode == "shortest" and width != height):
            raise UsageError(f"images that are resized by {mode!r} are not supported.", field=FIELD)
        self.resolution = width
        self._resize: PictureStep = (
            Resize((width, height)) if mode == "squash" else ResizeCenterCrop(width, shorter=width)
        )
        self._colours = config["mean"], config["std"]

    @cached_property
    def _scale(self) -> tuple[Any, Any]:
        """The factor and the offset that turn a pixel from 0 to 255 into a number for the model."""
        torch = self._torch
        kind = next(self._model.parameters()).dtype
        mean, std = (torch.tensor(values, device=self._device).view(1, 3, 1, 1) for values in self._colours)
        return (1 / (255 * std)).to(kind), (-mean / std).to(kind)

    def prepare_image(self, data: bytes) -> Any:
        return self._resize.transform(data, Random(0))

    def prepare_texts(self, texts: list[str]) -> list[Any]:
        return list(self._tokenizer(texts).numpy())

    def encode_images(self, images: list[Any]) -> Any:
        factor, offset = self._scale
        pixels = self._torch.from_numpy(np.stack(images)).to(self._device).permute(0, 3, 1, 2)
        with self._torch.inference_mode():
            return self._model.encode_image(pixels.to(factor.dtype) * factor + offset)

    def encode_texts(self, texts: list[Any]) -> Any:
        with self._torch.inference_mode():
            return self._model.encode_text(self._tokens(texts))

    def _tokens(self, texts: list[Any]) -> Any:
        return self._torch.from_numpy(np.stack(texts)).to(self._device)

    def close(self) -> None:
        del self._model
