"""Turn samples into columns with a model or a tokenizer, in batches, as a job."""

from tarmac.tools.mappers.contract import Column, Mapper

__all__ = ["Column", "Mapper"]
