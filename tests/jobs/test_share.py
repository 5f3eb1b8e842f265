"""The shares of all tasks are the whole, without overlap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarmac.errors import BadSetting, UsageError
from tarmac.jobs.share import Share, parse_share, share_of_slurm

COUNTS = st.integers(1, 200)


def array(*ids: int, step: int = 1) -> list[dict[str, str]]:
    """Return the variables of each task of an array, as Slurm sets them."""
    same = {
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": "0",
        "SLURM_ARRAY_TASK_COUNT": str(len(ids)),
        "SLURM_ARRAY_TASK_MIN": str(min(ids)),
        "SLURM_ARRAY_TASK_MAX": str(max(ids)),
        "SLURM_ARRAY_TASK_STEP": str(step),
    }
    return [same | {"SLURM_ARRAY_TASK_ID": str(each)} for each in ids]


@given(COUNTS, st.lists(st.integers()))
def test_shares_partition_the_units(count, units):
    shares = [Share(index, count).of(units) for index in range(count)]
    assert sorted(unit for share in shares for unit in share) == sorted(units)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(COUNTS, st.data())
def test_text_gives_the_share_back(count, data):
    share = Share(data.draw(st.integers(0, count - 1)), count)
    assert parse_share(str(share)) == share


@pytest.mark.parametrize(
    "text", ["8/8", "1", "", "-1/2", "a/b", "1/2/3", " 1/2", "1 /2", "0/0", "²/4", "1/4\n"]
)
def test_invalid_tasks(text):
    with pytest.raises(UsageError, match="0 <= INDEX < COUNT") as error:
        parse_share(text)
    assert error.value.field == "task"


def test_a_share_is_inside_its_range():
    for index, count in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(UsageError):
            Share(index, count)


@given(COUNTS, st.integers(0, 1000), st.integers(1, 50))
def test_regular_arrays_have_every_share_once(count, first, step):
    ids = range(first, first + step * count, step)
    shares = [share_of_slurm(environ) for environ in array(*ids, step=step)]
    assert shares == [Share(index, count) for index in range(count)]


@given(st.lists(st.integers(0, 1000), min_size=1, unique=True))
def test_arrays_with_gaps_have_valid_shares(ids):
    for environ in array(*ids):
        assert share_of_slurm(environ).count == len(ids)


@given(st.integers(1, 20), st.integers(1, 20))
def test_steps_in_an_array_divide_its_shares(arrays, ntasks):
    step = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": str(ntasks)}
    shares = [
        share_of_slurm(environ | step | {"SLURM_PROCID": str(rank)})
        for environ in array(*range(arrays))
        for rank in range(ntasks)
    ]
    assert shares == [Share(index, arrays * ntasks) for index in range(arrays * ntasks)]


def test_a_batch_script_is_not_a_step():
    (environ,) = array(5)
    assert share_of_slurm(environ | {"SLURM_NTASKS": "4"}) == Share(0, 1)
    assert share_of_slurm({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) == Share(0, 1)


def test_steps_without_an_array():
    environ = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_NTASKS": "4"}
    assert share_of_slurm(environ) == Share(2, 4)


def test_outside_of_slurm():
    with pytest.raises(UsageError, match="Slurm") as error:
        share_of_slurm({"PATH": "/bin"})
    assert error.value.field == "engine"


@pytest.mark.parametrize(
    "setting", [{"SLURM_ARRAY_TASK_ID": "x"}, {"SLURM_ARRAY_TASK_COUNT": "0"}, {"SLURM_ARRAY_TASK_MIN": "-1"}]
)
def test_invalid_variables_are_named(setting):
    (environ,) = array(5)
    with pytest.raises(BadSetting, match=next(iter(setting))):
        share_of_slurm(environ | setting)
