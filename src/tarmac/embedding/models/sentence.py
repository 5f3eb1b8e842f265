"""Models of sentence-transformers: vectors of texts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tarmac import environment
from tarmac.embedding.models.contract import EmbeddingModel
from tarmac.embedding.models.faster import use_onednn
from tarmac.embedding.models.load import FIELD, check_installed
from tarmac.errors import UsageError


class SentenceModel(EmbeddingModel):
    """A model of sentence-transformers, by the name that the library knows or by its directory.

    Texts are tokenized by the tokenizers library itself, many at once, where the model has such a tokenizer.
    """

    def __init__(self, name: str) -> None:
        if not name:
            raise UsageError("expected sentence:NAME or sentence:DIR, got no name.", field=FIELD)
        if name.startswith((".", "/", "~")) and not os.path.isdir(os.path.expanduser(name)):
            raise UsageError("no such directory.", field=FIELD, url=name)
        check_installed(sentence_transformers="sentence-transformers")
        self._name = os.path.expanduser(name) if name.startswith("~") else name

    def setup(self, device: str) -> None:
        environment.keep_tokenizers_single()
        import torch
        from sentence_transformers import SentenceTransformer

        try:
            with _quietly() if os.path.isdir(self._name) else contextlib.nullcontext():
                self._model = SentenceTransformer(self._name, device=device).train(mode=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"sentence_transformers: {str(error)[:300]}", field=FIELD) from error
        if device == "cpu":
            use_onednn(self._model)
        self._torch, self._device = torch, device
        self._tokenizer = _fast_tokenizer(self._model)
        self.dimension = int(self._model.get_embedding_dimension() or 0)

    def prepare_texts(self, texts: list[str]) -> Sequence[Any]:
        if self._tokenizer is None:
            return texts
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]

    def encode_texts(self, texts: list[Any]) -> Any:
        if self._tokenizer is None:
            return self._model.encode(texts, batch_size=len(texts), show_progress_bar=False)
        lengths = np.array(list(map(len, texts)))
        longest = int(lengths.max())
        inside = np.arange(longest) < lengths[:, None]
        tokens = np.full(inside.shape, self._model.tokenizer.pad_token_id or 0, np.int64)
        tokens[inside] = np.concatenate([np.array(each, np.int64) for each in texts])
        torch, device = self._torch, self._device
        features = {
            "input_ids": torch.from_numpy(tokens).to(device),
            "attention_mask": torch.from_numpy(inside.astype(np.int64)).to(device),
        }
        if "token_type_ids" in self._model.tokenizer.model_input_names:
            features["token_type_ids"] = torch.zeros_like(features["input_ids"])
        with torch.inference_mode():
            return self._model(features)["sentence_embedding"]

    def close(self) -> None:
        del self._model


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Load without a progress bar: from a directory it takes a moment, and each process would show one."""
    from transformers import utils

    logging: Any = utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _fast_tokenizer(model: Any) -> Any:
    """Return a copy of the model's tokenizer that cuts texts and does not pad; None if the model does more to texts."""
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    first = model[0]
    changes = getattr(model, "default_prompt_name", None) or getattr(first, "do_lower_case", False)
    left = getattr(model.tokenizer, "padding_side", "right") != "right"
    if type(first).__name__ != "Transformer" or backend is None or changes or left:
        return None
    copy = type(backend).from_str(backend.to_str())
    copy.no_padding()
    copy.no_truncation()
    longest = model.max_seq_length
    if longest and longest < 1 << 30:  # models without a limit have a huge number
        copy.enable_truncation(int(longest))
    return copy
