"""Models that turn images and texts into vectors: a contract, and a file for each library."""

from tarmac.embedding.models.contract import EmbeddingModel
from tarmac.embedding.models.load import load_model

__all__ = ["EmbeddingModel", "load_model"]
