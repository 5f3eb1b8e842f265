"""What programs ask the objects of the webdataset library: lengths, stages, loaders; compared with the library."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sized

import pytest
import webdataset as real
from torch.utils.data import DataLoader

import tarmac
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


# -- stages ------------------------------------------------------------------------------------------------------------

STAGES = {
    "_batched": lambda d: d.batched(4),
    "_map": lambda d: d.map(len),
    "_map_dict": lambda d: d.map_dict(txt=len),
    "_map_tuple": lambda d: d.map_tuple(len, len),
    "_rename": lambda d: d.rename(a="txt"),
    "_rename_keys": lambda d: d.rename_keys(a="*.txt"),
    "_rsample": lambda d: d.rsample(0.3),
    "_select": lambda d: d.select(len),
    "_shuffle": lambda d: d.shuffle(10, initial=5, seed=3),
    "_to_tuple": lambda d: d.to_tuple("cls", "txt"),
    "_extract_keys": lambda d: d.extract_keys("*.cls"),
    "_xdecode": lambda d: d.xdecode(must_decode=False),
    "_unbatched": lambda d: d.unbatched(),
    "_unlisted": lambda d: d.unlisted(),
    "_log_keys": lambda d: d.log_keys("log"),
}


@pytest.mark.parametrize("name", STAGES)
def test_stages_of_methods_have_the_attributes_of_the_library(name, shard):
    theirs, ours = (
        STAGES[name](lib.WebDataset(shard, shardshuffle=False)).pipeline[-1] for lib in (real, wds)
    )
    assert theirs.f.__name__ == name
    assert ours.f.__name__.removeprefix("_") == name[1:]
    assert ours.args == theirs.args
    same = {key: value for key, value in theirs.kw.items() if not callable(value)}
    assert same.items() <= ours.kw.items()
    assert theirs.kw.keys() <= ours.kw.keys()
    for stage, library in ((theirs, real), (ours, wds)):
        assert isinstance(stage, library.filters.FilterFunction)
        assert name[1:] in str(stage)


@libraries
@pytest.mark.parametrize("name", ["associate", "batched", "map", "rename", "select", "shuffle", "to_tuple"])
def test_stages_keep_their_arguments(name, library):
    args, kw = ((10, 5), {"seed": 3}) if name == "shuffle" else ((3,), {})
    kw = {"jpg": "png"} if name == "rename" else kw
    args = ("a",) if name == "to_tuple" else () if name == "rename" else args
    stage = getattr(library, name)(*args, **kw)
    assert (stage.args, stage.kw, repr(stage)) == (args, kw, f"<_{name} {args} {kw}>")
    copied = pickle.loads(pickle.dumps(stage))
    assert (type(copied), copied.args, copied.kw) == (type(stage), args, kw)


@libraries
def test_functions_of_stages_take_data(library, shard):
    stage = library.tarfile_to_samples(handler=library.reraise_exception)
    assert (stage.f.__name__, stage.args, list(stage.kw)) == ("tarfile_samples", (), ["handler"])
    assert (
        len(list(stage.f([{"url": shard}], *stage.args, **stage.kw)))
        == len(list(stage([{"url": shard}])))
        == 4
    )
    stage = library.map(str)
    assert list(stage.f([1, 2], *stage.args, **stage.kw)) == list(stage([1, 2])) == ["1", "2"]
    shuffle = library.shuffle(10, 5, seed=3)
    assert list(shuffle.f(iter(range(9)), *shuffle.args, **shuffle.kw)) == list(shuffle(iter(range(9))))


@libraries
def test_changed_arguments_have_an_effect(library):
    pipeline = library.DataPipeline(lambda: range(6), library.map(str), library.batched(2, collation_fn=None))
    assert list(pipeline) == [["0", "1"], ["2", "3"], ["4", "5"]]
    pipeline.stage(1).args = (float,)
    pipeline.stage(2).args = (3,)
    pipeline.stage(2).kw["collation_fn"] = sum
    assert list(pipeline) == [3, 12]


@libraries
def test_replaced_filters_have_an_effect(library, shard, monkeypatch):
    monkeypatch.setattr(library.filters, "shuffle", lambda size, **kw: lambda data: [size])
    assert list(library.WebDataset(shard, shardshuffle=False).shuffle(7)) == [7]


def test_stages_resume_and_report_as_those_of_tarmac(shard):
    def pipeline(library):
        return library.WebDataset(shard, shardshuffle=False).shuffle(10, seed=3).map(dict).batched(2)

    ours, native = pipeline(wds), pipeline(tarmac)
    items = iter(native)
    next(items)
    ours.load_state_dict(native.state_dict())
    assert list(ours) == list(items)
    assert repr(ours) == repr(native)
    assert list(ours.drops()) == list(native.drops())


# -- loaders -----------------------------------------------------------------------------------------------------------


@libraries
def test_the_first_stage_of_a_loader_is_a_data_loader(library, shard):
    dataset = library.WebDataset(shard, shardshuffle=False).to_tuple("cls")
    loader = library.WebLoader(dataset, batch_size=2, num_workers=0, drop_last=True, pin_memory=False)
    first = loader.pipeline[0]
    assert isinstance(first, DataLoader)
    assert (first.batch_size, first.num_workers, first.drop_last, first.pin_memory) == (2, 0, True, False)
    assert first.dataset is dataset
    assert callable(first.collate_fn)
    assert first.multiprocessing_context is None
    assert len(list(first)) == len(list(loader)) == 2
    assert len(list(loader.unbatched())) == 4
    with pytest.raises(ValueError, match="batch_size"):
        first.batch_size = 3
    assert not hasattr(first, "nothing")


def test_loaders_resume_and_can_be_copied(shard):
    def loader():
        return wds.WebLoader(wds.WebDataset(shard, shardshuffle=False).map(dict), batch_size=None)

    first, second = loader(), loader()
    items = iter(first)
    next(items)
    state = first.state_dict()
    second.load_state_dict(state)
    assert list(second) == list(items)
    native = tarmac.WebLoader(tarmac.WebDataset(shard, shardshuffle=False).map(dict), batch_size=None)
    native.load_state_dict(state)
    assert len(list(native)) == 3
    assert len(list(pickle.loads(pickle.dumps(loader())))) == len(list(copy.copy(loader()).pipeline[0])) == 4
    with pytest.raises(ValueError, match="num_workers"):
        first.pipeline[0].num_workers = 2


# -- what subclasses override ------------------------------------------------------------------------------------------


@libraries
def test_subclasses_create_the_list_of_shards(library, shard):
    seen = []

    class Mine(library.WebDataset):
        def update_cache_info(self, args):
            seen.append((args.urls, args.mode, args.cache_dir))

        def create_url_iterator(self, args):
            self.append(library.SimpleShardList([shard] * args.urls))

    class Changed(library.WebDataset):
        def create_url_iterator(self, args):
            args.urls = [shard] * args.urls
            super().create_url_iterator(args)

    for kind in (Mine, Changed):
        dataset = kind(3, shardshuffle=False)
        assert dataset.stage(0).urls == [shard] * 3
        assert len(list(dataset.map(len))) == 12
        assert len(list(kind(1, resampled=True, shardshuffle=False).slice(5))) == (4 if kind is Mine else 5)
    assert seen == [(3, None, None), (1, "resampled", None)]


@libraries
def test_a_missing_cache_directory_is_an_error(library, shard, tmp_path, monkeypatch):
    missing = str(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"cache directory .*missing does not exist"):
        library.WebDataset(shard, shardshuffle=False, cache_dir=missing)
    monkeypatch.setenv("WDS_CACHE", missing)
    with pytest.raises(ValueError, match=r"cache directory .*missing does not exist"):
        library.WebDataset(shard, shardshuffle=False)
