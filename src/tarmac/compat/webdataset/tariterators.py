"""`webdataset.tariterators`: from shards to samples in single steps."""

from __future__ import annotations

from tarmac.compat.helpers import shardlist
from tarmac.compat.opening import (
    base_plus_ext,
    group_by_keys,
    tar_file_expander,
    tar_file_iterator,
    url_opener,
    valid_sample,
)
from tarmac.stream.read_shards import tarfile_samples, tarfile_to_samples

__all__ = [
    "base_plus_ext",
    "group_by_keys",
    "meta_prefix",
    "meta_suffix",
    "shardlist",
    "tar_file_expander",
    "tar_file_iterator",
    "tarfile_samples",
    "tarfile_to_samples",
    "url_opener",
    "valid_sample",
]

meta_prefix = meta_suffix = "__"
