"""The types that all storage leaves share."""

from __future__ import annotations

import pickle

import pytest

from tarmac.storage import Source, StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE


def test_options_validate_themselves():
    for name in ("connect", "idle", "total", "retry_time", "backoff", "max_backoff", "command_idle"):
        with pytest.raises(ValueError, match=name):
            StorageOptions(**{name: 0})
    with pytest.raises(ValueError, match="retries"):
        StorageOptions(retries=-1)
    assert StorageOptions() == DEFAULT_STORAGE


def test_options_do_not_print_what_is_secret():
    options = StorageOptions(
        config={"secret_access_key": "hidden1"}, headers={"Authorization": "Bearer hidden2"}
    )
    assert "hidden" not in repr(options)
    assert "hidden" not in str(options)


def test_options_travel_to_workers():
    options = StorageOptions(config={"a": "b"}, headers={"c": "d"})
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_source_must_say_how_it_reads():
    with pytest.raises(NotImplementedError):
        Source().read(1)
    assert Source().map() is None
