"""`show` and `stats` of combined tokens are about rows, not about the records that hold them."""

from __future__ import annotations

import pytest

import tarmac
from tarmac.errors import MissingField, UsageError
from tokens.datasets import write_tokens

ROWS = [[[1, 2, 3], [], [4]], [list(range(200)), [5, 6]]]
KEYS = [f"{number:06d}" for number in range(5)]


@pytest.fixture
def manifest(tmp_path):
    return f"{write_tokens(tmp_path / 't', ROWS, modality=True)}/tokens.json"


def test_rows_are_shown(manifest):
    shown = list(tarmac.show(manifest))
    assert [row.key for row in shown] == KEYS
    assert [row.sizes for row in shown[:2]] == [{"modality": 3, "tokens": 6}, {"modality": 0, "tokens": 0}]
    assert shown[0].describe() == {"tokens": "3 x uint16: 1 2 3", "modality": "3 x uint8: 1 0 1"}
    assert shown[3].describe()["tokens"].endswith(" 98 99 …")
    assert shown[2].field("tokens") == b"\4\0"
    with pytest.raises(MissingField, match="it has"):
        shown[0].field("txt")


def test_rows_are_chosen_as_samples_are(manifest):
    choices = [{"at": [-1, "000002"]}, {"n": 2}, {"slice": slice(-2, None)}, {"where": "tokens.length >= 3"}]
    keys = [[row.key for row in tarmac.show(manifest, **options)] for options in choices]
    assert keys == [["000004", "000002"], KEYS[:2], KEYS[3:], ["000000", "000003"]]
    assert [row.sizes for row in tarmac.show(manifest, 1, fields=["tokens"])] == [{"tokens": 6}]
    with pytest.raises(UsageError, match="none of the 5"):
        list(tarmac.show(manifest, at=["x"]))


def test_statistics_count_rows(manifest):
    for images in (False, True):
        facts = tarmac.stats(manifest, images=images).to_dict(images=False)
        assert (facts["samples"], facts["shards"], facts["fields"]["tokens"]["total"]) == (5, 2, 2 * 206)


def test_shards_of_records_are_samples_without_the_manifest(manifest):
    shards = manifest.replace("tokens.json", "*.tar")
    assert [list(sample.sizes) for sample in tarmac.show(shards)] == [["arrow"]] * 2
