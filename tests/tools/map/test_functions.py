"""A function gets a decoded sample; changed fields are encoded, and others keep their bytes."""

from __future__ import annotations

import io
import json
import pickle
import sys

import numpy as np
import pytest
from PIL import Image

from tarmac.errors import BadName, CodecError, DecodeFailed, TransformFailed, UsageError
from tarmac.tools.map.functions import Function, load_function


def jpeg(value=100):
    stream = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(stream, "JPEG", quality=30)
    return stream.getvalue()


@pytest.fixture
def function(tmp_path):
    """Make a function of a body of code."""
    new = []

    def make(body, decode="", name="f"):
        path = tmp_path / f"m{len(new)}.py"
        new.append(path)
        path.write_text("def f(sample):\n" + "\n".join(f"    {line}" for line in body.splitlines()))
        return Function(f"{path}:{name}", decode)

    return make


SAMPLE = {"__key__": "a", "__url__": "x.tar", "cls": b"7\n", "json": b'{ "n": 1 }'}


def test_one_none_and_many(function):
    assert function("return sample")(SAMPLE) == [SAMPLE]
    assert function("return None")(SAMPLE) == []
    assert function("return []")(SAMPLE) == []
    new = function("for i in range(2): yield sample | {'n': str(i)}")(SAMPLE)
    assert [(one["__key__"], one["n"]) for one in new] == [("a/000000", b"0"), ("a/000001", b"1")]
    new = function("return [{'__key__': 'own', 'x': b''}, {'x': b'1'}]")(SAMPLE)
    assert [one["__key__"] for one in new] == ["own", "a/000001"]
    assert function("return {'__key__': 'new', 'x': b''}")(SAMPLE)[0]["__key__"] == "new"
    assert function("return {'x': b''}")(SAMPLE)[0]["__key__"] == "a"


def test_what_is_passed_on_keeps_its_key(function):
    def keys(body):
        return [one["__key__"] for one in function(body)(SAMPLE)]

    assert keys("yield sample") == ["a"]
    assert keys("yield sample; yield sample | {'__key__': 'a-m'}") == ["a", "a-m"]
    assert keys("yield sample | {'__key__': 'a-m'}; yield sample") == ["a-m", "a"]
    assert keys("yield sample; yield {'x': b''}; yield {'x': b''}") == ["a", "a/000001", "a/000002"]
    assert keys("yield sample; yield {'x': b''}; yield sample") == ["a/000000", "a/000001", "a/000002"]


def test_values_are_encoded_as_a_writer_does(function):
    (new,) = function(
        "return {'cls': 3, 'json': {'a': [1]}, 'txt': 'x', 'npy': __import__('numpy').ones(2)}"
    )(SAMPLE)
    assert new["cls"] == b"3"
    assert json.loads(new["json"]) == {"a": [1]}
    assert np.load(io.BytesIO(new["npy"])).tolist() == [1, 1]


def test_unchanged_fields_keep_their_bytes(function):
    sample = SAMPLE | {"jpg": jpeg(), "png": jpeg(), "txt": b"\xc3\xbc", "bin": b"\0"}
    (new,) = function("assert sample['jpg'].shape == (8, 8, 3); return sample", "rgb8")(sample)
    assert new == sample
    (new,) = function("return {**sample, 'cls': sample['cls'] + 1}", "pil")(sample)
    assert new == sample | {"cls": b"8"}


@pytest.mark.parametrize("spec", ["rgb8", "pil"])
def test_fields_changed_in_place_are_encoded(function, spec):
    body = {"rgb8": "sample['jpg'][:] = 0", "pil": "sample['jpg'].paste((0, 0, 0), (0, 0, 8, 8))"}[spec]
    sample = SAMPLE | {"jpg": jpeg()}
    (new,) = function(f"{body}; sample['json']['n'] = 2; return sample", spec)(sample)
    assert np.asarray(Image.open(io.BytesIO(new["jpg"]))).max() == 0
    assert json.loads(new["json"]) == {"n": 2}
    assert new["cls"] == b"7\n"


def test_compressed_fields(function):
    from tarmac.codecs.compression import gunzip, gzip

    sample = {"__key__": "a", "txt.gz": gzip(b"text"), "bin.gz": gzip(b"\0")}
    assert function("return sample")(sample)[0]["txt.gz"] == sample["txt.gz"]
    (new,) = function("return sample | {'txt.gz': sample['txt.gz'].upper()}", "basic")(sample)
    assert gunzip(new["txt.gz"]) == b"TEXT"
    assert gunzip(new["bin.gz"]) == b"\0"


def test_errors_name_the_cause(function):
    with pytest.raises(TransformFailed, match=r"ZeroDivisionError: .*\(m0\.py:2\)"):
        function("return 1 / 0")(SAMPLE)
    with pytest.raises(TransformFailed, match=r"\bint\b"):
        function("return 7")(SAMPLE)
    with pytest.raises(TransformFailed, match=r"\bbytes\b"):
        function("return b'x'")(SAMPLE)
    with pytest.raises(TransformFailed, match=r"\bint\b.*samples"):
        function("return [1]")(SAMPLE)
    with pytest.raises(TransformFailed, match="fields"):
        function("return {'__key__': 'b'}")(SAMPLE)
    with pytest.raises(TransformFailed, match="key"):
        function("return [{'__key__': 'b', 'x': b''}] * 2")(SAMPLE)
    with pytest.raises(TransformFailed, match="ModuleNotFoundError"):
        function("import no_such_module_here")(SAMPLE)
    with pytest.raises(BadName):
        function("return {'a b': b''}")(SAMPLE)
    with pytest.raises(CodecError):
        function("return {'jpg': object()}")(SAMPLE)
    with pytest.raises(DecodeFailed):
        function("return sample", "rgb8")({"__key__": "a", "cls": b"x"})


def test_where_functions_are_found(tmp_path, monkeypatch):
    (tmp_path / "my_functions.py").write_text("class Box:\n    @staticmethod\n    def g(s): return s\nx = 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    assert load_function("my_functions:Box.g")(3) == 3
    assert load_function("my_functions.py:Box.g")(3) == 3
    for spec in (
        "nothing",
        "my_functions:",
        ":f",
        "my_functions:x",
        "my_functions:nope",
        "no.such:f",
        "no.py:f",
    ):
        with pytest.raises(UsageError, match="function"):
            load_function(spec)
    (tmp_path / "broken.py").write_text("1 / 0")
    for spec in ("broken.py:f", "broken:f"):
        with pytest.raises(UsageError, match="ZeroDivisionError"):
            load_function(spec)
    with pytest.raises(UsageError, match="rgb9"):
        Function("my_functions:Box.g", "rgb9")


def test_it_travels_and_its_code_counts(function, tmp_path):
    one = function("return {'x': b'1'}")
    assert pickle.loads(pickle.dumps(one))(SAMPLE)[0]["x"] == b"1"
    before = one.options()
    path = tmp_path / "m0.py"
    path.write_text(path.read_text().replace("1", "2"))
    assert one.options() != before


@pytest.mark.parametrize(
    "code",
    [
        "from functools import partial\ndef g(n, s): return {'x': b'%d' % (n + 1)}\nf = partial(g, 3)\n",
        "from wrapping import wrapped\n@wrapped\ndef f(s): return {'x': b'1'}\n",
    ],
)
@pytest.mark.parametrize("spec", ["mine_{}:f", "mine_{}.py:f"])
def test_the_file_that_is_named_counts_whatever_wraps_the_function(tmp_path, monkeypatch, code, spec):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "wrapping.py").write_text("def wrapped(f):\n    return lambda sample: f(sample)\n")
    path = tmp_path / f"mine_{len(code)}.py"
    path.write_text(code)
    try:
        one = Function(spec.format(len(code)))
        before = one.options()
        path.write_text(code.replace("1", "2"))
        assert one.options() != before
    finally:
        for name in ("wrapping", path.stem):
            sys.modules.pop(name, None)


def test_a_partial_of_a_function_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "inner_of_partial.py").write_text("def g(n, s): return s\n")
    (tmp_path / "outer.py").write_text(
        "from functools import *\nimport inner_of_partial as i\nf = partial(i.g, 1)"
    )
    one = Function(f"{tmp_path}/outer.py:f")
    before = one.options()
    (tmp_path / "inner_of_partial.py").write_text("def g(n, s): return None\n")
    assert one.options() != before
    del sys.modules["inner_of_partial"]


def test_a_function_cannot_end_the_command(function, tmp_path):
    with pytest.raises(TransformFailed, match=r"SystemExit: 0 \(m0\.py:2\)"):
        function("__import__('sys').exit(0)")(SAMPLE)
    with pytest.raises(TransformFailed, match="SystemExit: enough"):
        function("yield sample\nraise SystemExit('enough')")(SAMPLE)
    (tmp_path / "script.py").write_text("raise SystemExit(0)")
    with pytest.raises(UsageError, match="SystemExit"):
        load_function(f"{tmp_path}/script.py:f")


def test_modules_beside_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside/__init__.py").write_text("")
    (tmp_path / "beside/deep.py").write_text("from . import deepest\n")
    (tmp_path / "beside/deepest.py").write_text("X = b'1'\n")
    (tmp_path / "beside_helper.py").write_text(
        "def x():\n    import beside.deep as d\n    return d.deepest.X\n"
    )
    (tmp_path / "unrelated.py").write_text("")
    (tmp_path / "main_function.py").write_text(
        "import json\nfrom beside_helper import x\ndef f(sample):\n    return sample | {'x': x()}\n"
    )
    work = Function(f"{tmp_path}/main_function.py:f")
    assert work(SAMPLE)[0]["x"] == b"1"
    before = work.options()
    (tmp_path / "unrelated.py").write_text("1")
    assert work.options() == before
    for name in ("beside_helper.py", "beside/deep.py", "beside/deepest.py", "main_function.py"):
        before = work.options()
        with open(tmp_path / name, "a") as file:
            file.write("\n")
        assert work.options() != before, name
