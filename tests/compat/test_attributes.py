"""What programs ask the objects of the webdataset library: lengths, stages, loaders; compared with the library."""

from __future__ import annotations

import pickle
from collections.abc import Sized

import pytest
import webdataset as real

import tarmac.webdataset as wds
from harness.shards import plain

# The library does not close the files that it opens.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
libraries = pytest.mark.parametrize("library", [real, wds], ids=["webdataset", "tarmac"])


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(plain([(f"{i}.{field}", b"%d" % i) for i in range(4) for field in ("cls", "txt")]))
    return str(path)


# -- lengths -----------------------------------------------------------------------------------------------------------


@libraries
def test_only_with_length_adds_a_length(library, shard):
    def dataset():
        return library.WebDataset(shard, shardshuffle=False)

    for make in (dataset, lambda: library.WebLoader(dataset()), lambda: library.DataPipeline([1, 2])):
        pipeline = make()
        assert not hasattr(pipeline, "__len__")
        assert not isinstance(pipeline, Sized)
        assert pipeline
        with pytest.raises(TypeError):
            len(pipeline)
        pipeline = pipeline.with_length(3, silent=True)
        assert isinstance(pipeline, Sized)
        assert len(pipeline) == 3
        assert isinstance(pipeline, type(make()))
        assert not make().with_length(0, silent=True)
    assert len(dataset().with_length(3, silent=True).map(len)) == 3


def test_lengths_are_picklable(shard):
    loader = wds.WebLoader(wds.WebDataset(shard, shardshuffle=False), batch_size=None)
    dataset = wds.WebDataset(shard, shardshuffle=False).with_length(3, silent=True)
    assert len(pickle.loads(pickle.dumps(dataset))) == 3
    assert len(list(loader.with_length(9, silent=True))) == 4
