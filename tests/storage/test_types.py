"""Options and base classes of stores."""

from __future__ import annotations

import pickle
from dataclasses import fields

import pytest

import tarmac
from tarmac.errors import UsageError
from tarmac.storage import Cache, Source, StorageOptions, WriteOptions

NUMBERS = [each.name for each in fields(StorageOptions) if each.name not in ("retries", "config", "headers")]


@pytest.mark.parametrize(("name", "value"), [*((name, 0) for name in NUMBERS), ("retries", -1)])
def test_invalid_options_are_rejected(name, value):
    with pytest.raises(UsageError, match=name) as caught:
        StorageOptions(**{name: value})
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (StorageOptions(), "StorageOptions()"),
        (StorageOptions(retries=2, headers={"a": "b"}), "StorageOptions(retries=2, headers=…)"),
        (WriteOptions(overwrite=True), "WriteOptions(overwrite=True)"),
        (tarmac.Limits(shards=5), "Limits(shards=5)"),
        (tarmac.TarOptions(limits=tarmac.Limits(shards=5)), "TarOptions(limits=Limits(shards=5))"),
        (Cache("dir", max_bytes=7), "Cache('dir', max_bytes=7)"),
    ],
)
def test_reprs_show_the_changed_fields(options, text):
    assert repr(options) == text


def test_reprs_hide_secrets():
    options = StorageOptions(
        config={"secret_access_key": "hidden1"}, headers={"Authorization": "Bearer hidden2"}
    )
    assert "hidden" not in f"{options!r} {options}"


def test_options_are_picklable():
    options = StorageOptions(config={"a": "b"}, headers={"c": "d"})
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_source_must_implement_read():
    with pytest.raises(NotImplementedError):
        Source().read(1)
    assert Source().map() is None
