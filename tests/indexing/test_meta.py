"""Metadata columns: how names are interpreted, which bytes they need, and damaged fields."""

from __future__ import annotations

import io
import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from tarmac.errors import DecodeFailed, DecompressionBomb, IndexingError, UsageError
from tarmac.indexing.meta import Columns, MetaPlan, meta_plan
from tarmac.limits import Limits


def image(form="JPEG", size=(30, 20)):
    stream = io.BytesIO()
    Image.new("RGB", size).save(stream, form)
    return stream.getvalue()


JPEG, PNG = image(), image("PNG", (8, 9))
NPY = io.BytesIO()
np.save(NPY, np.zeros((3, 4), np.float32))
SAMPLE = {
    "jpg": JPEG,
    "seg.png": PNG,
    "json": json.dumps({"caption": "a cat", "size": "big", "a": {"b": [1, 2]}, "x.y": 3}).encode(),
    "cls": b"7",
    "txt": b"hello",
    "npy": NPY.getvalue(),
    "mp4": bytes(99),
}


def gather(names, *samples, **options):
    columns = Columns(meta_plan(names.split(",") if isinstance(names, str) else names, **options))
    for number, sample in enumerate(samples):
        columns.add(sample, f"k{number}")
    return {name: array.to_pylist() for name, array in columns.arrays().items()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jpg.width", 30),
        ("jpg.height", 20),
        ("jpg.channels", 3),
        ("jpg.size", len(JPEG)),
        ("seg.png.width", 8),
        ("seg.png.size", len(PNG)),
        ("mp4.size", 99),
        ("txt.size", 5),
        ("cls", 7),
        ("txt", "hello"),
        ("npy.shape", "3x4"),
        ("npy.dtype", "float32"),
        ("json.caption", "a cat"),
        ("json.size", "big"),
        ("json.a.b.1", 2),
        ("json.a.b", "[1, 2]"),
        ("json.x.y", 3),
        ("json.nothing", None),
        ("png.width", None),
        ("png;jpg.width", 30),
        ("jpg;seg.png.height", 20),
        ("seg.png;jpg.height", 9),
        ("png;webp.height", None),
        ("text;txt", "hello"),
        ("jsn;json.a.b.0", 1),
        ("webp;mp4.size", 99),
    ],
)
def test_what_a_name_means(name, value):
    assert gather(name, SAMPLE) == {name: [value]}


def test_the_json_as_a_whole():
    (text,) = gather("json", SAMPLE)["json"]
    assert json.loads(text) == json.loads(SAMPLE["json"])


def test_the_longest_field_of_the_sample_decides():
    inner = {"json": b'{"a": {"txt": "in json", "json": {"b": 1}}}'}
    names = ["json.a.txt", "json.a.json.b"]
    assert gather(names, inner, inner | {"json.a.txt": b"own", "json.a.json": b'{"b": 2}'}) == {
        "json.a.txt": ["in json", "own"],
        "json.a.json.b": [1, 2],
    }


def test_names_are_a_list():
    plan = meta_plan([" jpg.width", "cls ", "json.caption", "jpg.width"])
    assert [column.name for column in plan.columns] == ["jpg.width", "cls", "json.caption"]
    assert meta_plan(["jpg.width", "cls", " json.caption"]) == plan
    assert meta_plan(["json.a, b"]).columns[0].name == "json.a, b"
    with pytest.raises(UsageError, match=r"\['jpg.width', 'cls'\]") as caught:
        meta_plan("jpg.width, cls")
    assert caught.value.field == "meta"
    assert meta_plan([]) == MetaPlan()
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jpg", "jpg.width, jpg.height, jpg.channels, jpg.size"),
        ("jpg.widht", r"jpg\.width\?"),
        ("seg.png.mode", "seg.png.width"),
        ("txt.width", ": txt, txt.size"),
        ("npy", "npy.shape, npy.dtype"),
        ("mp4.duration", ": mp4.size"),
        ("txt;jpg.width", '"txt.width" .*"txt;jpg.width"'),
        ("jpg.", '"jpg."'),
        (".width", '".width"'),
        ("jpg;;png.width", '"jpg;;png.width"'),
        ("json." + "a" * 2000, "json.aaa"),
    ],
)
def test_invalid_names_are_rejected_before_any_sample(name, message):
    with pytest.raises(IndexingError, match=message) as caught:
        meta_plan(["cls", name])
    assert "`meta`" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_only_needed_fields_are_read():
    plan = meta_plan(["jpg.width", "png.size", "a.json.b", "x.txt;y.txt"])
    fields = ["jpg", "png", "a.json", "x.txt", "y.txt", "a", "json", "txt", "mp4"]
    assert [field for field in fields if plan.needs(field)] == ["jpg", "a.json", "x.txt", "y.txt"]


def test_needs_covers_every_alternative():
    plan = meta_plan(["json;meta.jsn.a", "text;txt"])
    assert all(map(plan.needs, ["json", "meta.jsn", "text", "txt"]))


def test_sizes_may_be_known_without_the_bytes():
    columns = Columns(meta_plan(["mp4.size", "webm;mp4.size", "cls"]))
    columns.add({"cls": b"1"}, "a", sizes={"mp4": 1 << 40, "cls": 1})
    columns.add({"cls": b"2"}, "b", sizes={"cls": 1})
    arrays = columns.arrays()
    assert [array.to_pylist() for array in arrays.values()] == [[1 << 40, None], [1 << 40, None], [1, 2]]


@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        ("jpg.width", {"jpg": b"not an image"}),
        ("png.height", {"png": PNG[:20]}),
        ("json.caption", {"json": b"{"}),
        ("json.caption", {"json": b"[" * 200_000}),
        ("json", {"json": b"\xff\xfe\xfd"}),
        ("cls", {"cls": b"cat"}),
        ("cls", {"cls": b"9" * 5000}),
        ("txt", {"txt": b"\xff"}),
        ("npy.shape", {"npy": b"\x93NUMPY\x01\0"}),
    ],
)
def test_damage_is_an_error_with_its_location_or_a_counted_null(name, damaged):
    (field,) = damaged
    columns = Columns(meta_plan([name]))
    with pytest.raises(DecodeFailed, match=f'^sample "k7": field "{field}", .*"{name}": ') as caught:
        columns.add(damaged, "k7")
    assert caught.value.field == field
    assert "--on-bad-meta" in str(caught.value)
    assert len(str(caught.value)) < 500
    assert len(columns.arrays()[name]) == 0

    columns = Columns(meta_plan([name], on_bad="null"))
    columns.add(damaged, "k7")
    columns.add({}, "k8")
    assert columns.arrays()[name].to_pylist() == [None, None]


def test_decompression_bombs_keep_their_type():
    with pytest.raises(DecompressionBomb, match=r'sample "k0".*30x20.*Limits\.pixels'):
        gather("jpg.width", SAMPLE, limits=Limits(pixels=599))
    assert gather("jpg.width", SAMPLE, limits=Limits(pixels=599), on_bad="null") == {"jpg.width": [None]}


def test_a_failed_sample_leaves_the_columns_unchanged():
    columns = Columns(meta_plan(["cls", "json.a"]))
    columns.add({"cls": b"1", "json": b'{"a": 1}'}, "a")
    with pytest.raises(DecodeFailed):
        columns.add({"cls": b"2", "json": b"{"}, "b")
    columns.add({"cls": b"3", "json": b'{"a": 3}'}, "c")
    assert [array.to_pylist() for array in columns.arrays().values()] == [[1, 3], [1, 3]]


def test_a_field_is_read_once_for_all_its_columns(monkeypatch):
    from tarmac.indexing import meta

    seen = []
    read = meta.read_field
    monkeypatch.setattr(meta, "read_field", lambda field, *rest: seen.append(field) or read(field, *rest))
    gather("jpg.width, jpg.height, json.caption, json.a", SAMPLE)
    assert seen == ["jpg", "json"]


def test_types_are_inferred_per_column():
    columns = Columns(meta_plan(["json.a", "json.b", "json.c", "json.d", "json.e", "json.f"]))
    columns.add({"json": b'{"a": 1, "b": 1, "c": true, "d": "x", "e": 18446744073709551615}'}, "1")
    columns.add({"json": b'{"a": 2, "b": 0.5, "c": null, "d": {"z": 1, "y": 2}, "e": 1}'}, "2")
    arrays = columns.arrays()
    assert [array.type for array in arrays.values()] == [
        pa.int64(),
        pa.float64(),
        pa.bool_(),
        pa.string(),
        pa.string(),
        pa.string(),
    ]
    assert arrays["json.d"].to_pylist() == ["x", '{"y": 2, "z": 1}']
    assert arrays["json.e"].to_pylist() == ["18446744073709551615", "1"]
    assert arrays["json.f"].null_count == 2


def test_a_plan_checks_itself():
    with pytest.raises(ValueError, match="on_bad"):
        meta_plan(["cls"], on_bad="ignore")
