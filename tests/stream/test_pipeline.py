"""Stages in order, epochs, lengths, states, and the stage contract."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import random
from collections.abc import Sized

import pytest

import tarmac
from harness.resume import assert_resumes
from tarmac.errors import NoBatches, NotResumable, StateMismatch, UsageError
from tarmac.steps.fields import Map, Select
from tarmac.steps.stage import PipelineStage
from tarmac.stream.batch import Batched, unbatched
from tarmac.stream.pipeline import DataPipeline
from tarmac.stream.shuffle import Shuffle


def double(x):
    return 2 * x


def is_even(x):
    return x % 2 == 0


def none_for_threes(x):
    return None if x % 3 == 0 else x


def add_all(source, amount=0):
    for item in source:
        yield item + amount


def fail_on_five(x):
    if x == 5:
        raise ValueError("five")
    return x


def test_stages_lists_callables_and_none():
    pipeline = DataPipeline(
        [1, 2, 3][:0] or range(3), None, [Map(double), None], functools.partial(add_all, amount=1)
    )
    assert list(pipeline) == [1, 3, 5]
    assert list(DataPipeline(lambda: iter("ab"))) == ["a", "b"]
    assert list(DataPipeline(DataPipeline(range(3)), Map(double))) == [0, 2, 4]


def test_a_list_is_flattened_into_stages():
    assert list(DataPipeline([range(3), Map(double)])) == [0, 2, 4]


def test_class_stages():
    class Reverse(PipelineStage):
        def run(self, source):
            return reversed(list(source))

    assert list(DataPipeline(range(3), Reverse())) == [2, 1, 0]


def test_invalid_stages():
    with pytest.raises(ValueError, match="5"):
        list(DataPipeline(range(3), 5))
    with pytest.raises(UsageError):
        list(DataPipeline())
    with pytest.raises(TypeError):
        DataPipeline(range(3), name=1)


def test_editing():
    pipeline = DataPipeline(range(4))
    pipeline.append(Map(double))
    longer = pipeline.compose(Select(is_even), Batched(2, None))
    assert list(pipeline) == [0, 2, 4, 6]
    assert list(longer) == [[0, 2], [4, 6]]
    assert pipeline.stage(1).function is double
    assert len(pipeline.pipeline) == 2
    longer.close()
    assert longer.pipeline == []


def test_with_epoch_and_repeat():
    assert list(DataPipeline(range(3)).with_epoch(7)) == [0, 1, 2, 0, 1, 2, 0]
    assert list(DataPipeline(range(10)).with_epoch(4)) == [0, 1, 2, 3]
    assert list(DataPipeline(range(3)).repeat(2)) == [0, 1, 2, 0, 1, 2]
    assert list(DataPipeline(range(3)).repeat(nbatches=5)) == [0, 1, 2, 0, 1]
    assert list(DataPipeline(range(3)).repeat(1, nbatches=2)) == [0, 1]
    assert list(itertools.islice(DataPipeline(range(3)).repeat(), 8)) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert list(DataPipeline(range(0)).repeat()) == []


def test_length_is_picklable_and_off_by_default():
    pipeline = DataPipeline(range(3))
    assert not hasattr(pipeline, "__len__")
    assert not isinstance(pipeline, Sized)
    assert pipeline
    with pytest.warns(UserWarning, match="len"):
        pipeline.with_length(7)
    assert len(pickle.loads(pickle.dumps(pipeline))) == 7
    assert isinstance(pipeline, Sized)
    assert type(pipeline).__name__ == "DataPipeline"
    for copied in (copy.copy(pipeline), copy.deepcopy(pipeline), pipeline.compose(list)):
        assert len(copied.with_length(8, silent=True)) == 8
    assert not DataPipeline(range(3)).with_length(0, silent=True)
    assert not hasattr(DataPipeline(range(3)), "__len__")


class Named(DataPipeline):
    """A subclass that can be pickled by name."""


@pytest.mark.processes
def test_lengths_of_subclasses_in_loaders():
    from torch.utils.data import DataLoader

    dataset = Named(range(6)).with_length(6, silent=True)
    assert isinstance(pickle.loads(pickle.dumps(dataset)), Named)
    loader = DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context="spawn")
    assert (len(loader), len(list(loader))) == (3, 3)
    with pytest.raises(TypeError):
        len(DataLoader(Named(range(6))))


def test_torch_sees_an_iterable_dataset():
    from torch.utils.data import DataLoader, IterableDataset

    pipeline = DataPipeline(range(4))
    assert isinstance(pipeline, IterableDataset)
    assert type(pipeline) is DataPipeline
    assert pipeline.__class__ is DataPipeline
    assert list(DataLoader(pipeline, batch_size=None)) == [0, 1, 2, 3]


def test_epochs_shuffle_differently_and_reproducibly():
    first, second = DataPipeline(range(50), Shuffle(20, seed=3)), DataPipeline(range(50), Shuffle(20, seed=3))
    epochs = [list(first) for _ in range(3)]
    assert epochs == [list(second) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    first.set_epoch(1)
    assert list(first) == epochs[1]


def test_copies_count_their_own_epochs():
    base = DataPipeline(range(50), Shuffle(20, seed=3))
    one, other = base.compose(Map(double)), base.compose(Map(double))
    assert list(one) == list(other)


@pytest.mark.parametrize(
    "stages",
    [
        [],
        [Map(double)],
        [Select(is_even), Map(double), Batched(3, None)],
        [Shuffle(7, initial=3, seed=1)],
        [Shuffle(7, seed=1), Map(none_for_threes), Batched(4, None)],
        [Map(double), Shuffle(7, seed=1), Batched(4, None)],
        [Batched(4, None), functools.partial(add_all, amount=[0])],
        [Map(lambda x: (x, x)), Batched(5), unbatched(), Batched(2, None)],
        [functools.partial(add_all, amount=3), Map(double)],
        [Map(fail_on_five, handler=lambda exn: True), Batched(4, None)],
        [Map(double, threads=3)],
        [Select(is_even), Map(double, threads=2), Map(none_for_threes, threads=2), Batched(4, None)],
        [Shuffle(7, seed=1), Map(fail_on_five, handler=lambda exn: True, threads=2), Batched(3, None)],
    ],
)
@pytest.mark.parametrize("ending", ["once", "epoch", "repeat"])
def test_resume_at_every_step(stages, ending):
    def make():
        pipeline = DataPipeline(range(30), *stages)
        return {
            "once": lambda: pipeline,
            "epoch": lambda: pipeline.with_epoch(17),
            "repeat": lambda: pipeline.repeat(2),
        }[ending]()

    assert assert_resumes(make) > 3


def test_resume_continues_into_the_next_epochs():
    def make():
        return DataPipeline(range(20), Shuffle(5, seed=2), Batched(3, None))

    whole = make()
    epochs = [list(whole) for _ in range(3)]
    started = make()
    list(started)
    items = iter(started)
    head = [next(items) for _ in range(2)]
    resumed = make()
    resumed.load_state_dict(started.state_dict())
    assert head + list(resumed) == epochs[1]
    assert list(resumed) == epochs[2]


def test_resume_does_not_decode_skipped_samples():
    decoded = []

    def record(x):
        decoded.append(x)
        return x

    pipeline = DataPipeline(range(100), Shuffle(10, seed=1), Map(record), Batched(10, None))
    items = iter(pipeline)
    for _ in range(7):
        next(items)
    state = pipeline.state_dict()
    decoded.clear()
    resumed = DataPipeline(range(100), Shuffle(10, seed=1), Map(record), Batched(10, None))
    resumed.load_state_dict(state)
    next(iter(resumed))
    assert len(decoded) == 10


def test_states_of_other_pipelines_raise():
    pipeline = DataPipeline(range(5), Map(double))
    state = pipeline.state_dict()
    with pytest.raises(StateMismatch, match="version"):
        pipeline.load_state_dict({**state, "version": 99})
    with pytest.raises(StateMismatch, match="stages"):
        DataPipeline(range(5)).load_state_dict(state)
    with pytest.raises(StateMismatch, match="ranks"):
        pipeline.load_state_dict({**state, "reader": [0, 8, 0, 2]})
    earlier = {name: value for name, value in state.items() if name != "reader"}
    pipeline.load_state_dict(earlier | {"place": state["reader"]})  # as earlier versions called it
    shorter = DataPipeline(range(2), Map(double))
    shorter.load_state_dict({**state, "consumed": 4})
    with pytest.raises(StateMismatch, match="only 2"):
        list(shorter)


def test_drops_are_reported():
    pipeline = DataPipeline(range(10), Map(fail_on_five, handler=lambda exn: True))
    assert len(list(pipeline)) == 9
    (drops,) = pipeline.drops().values()
    assert drops.count == 1
    assert drops.examples == ["five"]


# -- the contract of a stage ----------------------------------------------------------------------


class Offset(PipelineStage):
    """Add the epoch and a random number."""

    def __init__(self):
        self.drawn, self.epoch, self.closed = random.randrange(1 << 32), None, False

    def begin_epoch(self, epoch):
        self.epoch = epoch.number

    def run(self, source):
        return (item + self.drawn + self.epoch for item in source)

    def seeds(self):
        return self.drawn

    def load_seeds(self, seeds):
        self.drawn = seeds

    def close(self):
        self.closed = True


def test_a_custom_stage_resumes():
    pipeline = DataPipeline(range(9), Offset())
    first, second = list(pipeline), list(pipeline)
    assert [item + 1 for item in first] == second
    items = iter(pipeline)
    next(items)
    resumed = DataPipeline(range(9), Offset())
    resumed.load_state_dict(pipeline.state_dict())
    assert list(resumed) == list(items)
    stage = resumed.stage(1)
    resumed.close()
    assert stage.closed


def test_a_stateless_custom_stage_is_not_rerun():
    class Recorded(PipelineStage):
        stateless = True
        items = []

        def run(self, source):
            for item in source:
                self.items.append(item)
                yield item

    pipeline = DataPipeline(range(9), Recorded())
    assert list(itertools.islice(pipeline, 4)) == [0, 1, 2, 3]
    resumed = DataPipeline(range(9), Recorded())
    resumed.load_state_dict(pipeline.state_dict())
    Recorded.items.clear()
    assert list(resumed) == Recorded.items == [4, 5, 6, 7, 8]


def test_objects_with_parts_of_the_contract_need_no_base_class():
    class Counted:
        not_resumable = "it counts"
        epochs = []

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

        def __call__(self, source):
            return source

    pipeline = DataPipeline(range(3), Counted())
    assert list(pipeline) == list(pipeline) == [0, 1, 2]
    assert Counted.epochs == [0, 1]
    with pytest.raises(NotResumable, match="Counted: it counts"):
        pipeline.state_dict()


def test_seeds_of_a_stage_without_seeds():
    pipeline = DataPipeline(range(3), Shuffle(3))
    state = pipeline.state_dict()
    with pytest.raises(StateMismatch, match="range"):
        pipeline.load_state_dict({**state, "stages": [1, None]})


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_without_batches_warns(tmp_path, workers):
    with tarmac.TarWriter(tmp_path / "x.tar") as writer:
        for number in range(5):
            writer.write({"__key__": str(number), "cls": number})
    dataset = tarmac.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False)
    with pytest.warns(NoBatches, match=r"^5 .*\b6\b"):
        assert list(dataset.batched(6, partial=False)) == []
    pytest.importorskip("torch")
    loader = tarmac.WebLoader(dataset, batch_size=6, drop_last=True, num_workers=workers, collate_fn=list)
    with pytest.warns(NoBatches, match=r"\b6\b"):
        assert list(loader) == []
