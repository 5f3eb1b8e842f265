"""Mixed extensions, alternatives, and names with dots."""

from __future__ import annotations

import pytest

import tarmac
from tarmac.errors import BadName, MissingField, TarmacError, UsageError
from tools.pack.trees import write_tree
from tools.shards import write

MIXED = {"a.jpg": b"1", "a.txt": b"x", "b.PNG": b"2", "b.txt": b"y", "c.webp": b"3", "c.txt": b"z"}


def pack(source, output, **options):
    return tarmac.pack(source, output, **({"jobs": 1, "progress": False} | options))


def fields(output, **options):
    return {
        sample["__key__"]: set(sample) - {"__key__", "__url__"}
        for sample in tarmac.read(str(output), **options)
    }


def test_alternatives_are_required_with_one_grammar(tmp_path):
    tree, output = write_tree(tmp_path / "in", MIXED), tmp_path / "o.tar"
    pack(tree, output, require=["jpg|png|webp", "txt"])
    assert fields(output) == {"a": {"jpg", "txt"}, "b": {"png", "txt"}, "c": {"webp", "txt"}}
    assert tarmac.check(str(output), require=["img=jpg|png|webp", "txt"], jobs=1, progress=False).ok
    assert not tarmac.check(str(output), require=["jpg|png"], jobs=1, progress=False).ok
    with pytest.raises(MissingField, match=r'sample "c".*no jpg\|png'):
        pack(tree, tmp_path / "p.tar", require=["img=jpg|png"])
    report = pack(tree, tmp_path / "p.tar", require=["jpg|png"], on_error="skip")
    assert (report.written, report.failed) == (2, 1)
    with pytest.raises(UsageError, match="`require`"):
        pack(tree, tmp_path / "q.tar", require="jpg")


def test_pack_selects_and_renames_fields(tmp_path):
    tree, output = write_tree(tmp_path / "in", MIXED | {"d.txt": b""}), tmp_path / "o.tar"
    report = pack(tree, output, fields={"img": "jpg|png|webp"}, missing="skip")
    assert fields(output) == {key: {"img"} for key in "abc"}
    assert (report.read, report.written, report.dropped) == (4, 3, 1)
    pack(tree, tmp_path / "p.tar", fields=["jpg|png|webp"], missing="skip")
    assert fields(tmp_path / "p.tar") == {"a": {"jpg"}, "b": {"png"}, "c": {"webp"}}
    pack(tree, tmp_path / "q.tar", drop_fields=["txt", "png"], on_error="skip")
    assert fields(tmp_path / "q.tar") == {"a": {"jpg"}, "c": {"webp"}}
    with pytest.raises(MissingField, match='sample "d"'):
        pack(tree, tmp_path / "r.tar", fields=["jpg|png|webp"])
    assert not (tmp_path / "r.tar").exists()
    report = pack([{"__key__": "a", "png": b"", "txt": ""}, {"__key__": "b", "txt": ""}], tmp_path / "s.tar",
                  fields=["jpg|png"], missing="skip")  # fmt: skip
    assert (fields(tmp_path / "s.tar"), report.dropped) == ({"a": {"png"}}, 1)


def test_other_verbs_keep_the_name_of_the_alternative(tmp_path):
    shard = write(tmp_path / "a.tar", [("a", {"jpg": b"1", "txt": b""}), ("b", {"png": b"2"})])
    tarmac.copy(shard, tmp_path / "o.tar", fields=["jpg|png"], jobs=1, progress=False)
    assert fields(tmp_path / "o.tar") == {"a": {"jpg"}, "b": {"png"}}
    tarmac.export(shard, tmp_path / "o.parquet", fields=["jpg|png"], jobs=1, progress=False)
    pack(tmp_path / "o.parquet", tmp_path / "p.tar")
    assert fields(tmp_path / "p.tar") == {"a": {"jpg"}, "b": {"png"}}


def test_files_of_a_table_keep_their_extensions(tmp_path):
    write_tree(tmp_path, {**MIXED, "noext": b"", "t.csv": b"path,mask\na.jpg,b.PNG\nc.webp,a.jpg\n"})
    table = tmp_path / "t.csv"
    pack(table, tmp_path / "o.tar", files=["path"], columns={"mask": "txt"})
    assert list(fields(tmp_path / "o.tar").values()) == [{"jpg", "txt"}, {"webp", "txt"}]
    pack(table, tmp_path / "p.tar", files=["path", "mask"])
    assert list(fields(tmp_path / "p.tar").values()) == [{"path.jpg", "mask.png"}, {"path.webp", "mask.jpg"}]
    pack(table, tmp_path / "q.tar", files={"path": "*", "mask": "seg.*"})
    assert list(fields(tmp_path / "q.tar").values()) == [{"jpg", "seg.png"}, {"webp", "seg.jpg"}]
    table.write_text("path,mask\na.jpg,YWJj\n")
    with pytest.raises(TarmacError, match=r"row 1.*'jpg'.*path=path\.\*"):
        pack(table, tmp_path / "r.tar", files=["path"], columns={"mask": "jpg"})
    table.write_text("path\nnoext\n")
    with pytest.raises(BadName, match="noext"):
        pack(table, tmp_path / "r.tar", files=["path"])


@pytest.mark.parametrize(
    "names",
    [
        ["IMG.v1.1.png", "IMG.v1.2.png"],
        ["frame.1.jpg", "frame.2.jpg"],
        ["Screenshot 2024.01.01 at 10.11.12.png"],
    ],
)
def test_names_with_dots(tmp_path, names):
    tree = write_tree(tmp_path / "in", {f"d/{name}": b"" for name in names})
    with pytest.raises(BadName, match=rf"d/{names[-1].split('.')[0]}.*split_name=tarmac.last_dot"):
        pack(tree, tmp_path / "o.tar")
    assert not (tmp_path / "o.tar").exists()
    pack(tree, tmp_path / "o.tar", split_name=tarmac.last_dot)
    keys = {f"d/{name.rpartition('.')[0]}" for name in names}
    assert fields(tmp_path / "o.tar", split_name=tarmac.last_dot).keys() == keys
    if " " not in names[0]:
        pack(tree, tmp_path / "p.tar", split_name=tarmac.first_dot)
        assert len(fields(tmp_path / "p.tar")) == 1


def test_named_fields_with_dots_stay_together(tmp_path):
    names = ["1.left.png", "1.right.png", "1.png", "1.v2.txt", "1.0.cls"]
    pack(write_tree(tmp_path / "in", dict.fromkeys(names, b"")), tmp_path / "o.tar")
    assert fields(tmp_path / "o.tar") == {"1": {"left.png", "right.png", "png", "v2.txt", "0.cls"}}


def test_keys_with_dots_in_a_table(tmp_path):
    (tmp_path / "t.csv").write_text("key,txt\na.b,x\n")
    pack(tmp_path / "t.csv", tmp_path / "o.tar", split_name=tarmac.last_dot, on_error="skip")
    assert fields(tmp_path / "o.tar", split_name=tarmac.last_dot) == {"a.b": {"txt"}}


def test_a_directory_as_output(tmp_path):
    tree = write_tree(tmp_path / "in", MIXED)
    with pytest.raises(UsageError, match=r"packed\.tar or .*packed/x-"):
        pack(tree, tmp_path / "packed")
    pack(tree, f"{tmp_path}/packed/", max_samples=2)
    pack(tree, f"{tmp_path}/parts/", split={"train": 0.5, "val": 0.5})
    assert sorted(path.name for path in (tmp_path / "packed").glob("*.tar")) == ["000000.tar", "000001.tar"]
    assert {path.name[:-10] for path in (tmp_path / "parts").glob("*.tar")} <= {"train-", "val-"}


def test_upper_case_extensions_sort_like_lower_case(tmp_path):
    import tarfile

    pack(write_tree(tmp_path / "in", {"a.JPG": b"", "a.cls": b"1", "a.txt": b""}), tmp_path / "o.tar")
    with tarfile.open(tmp_path / "o.tar") as archive:
        assert archive.getnames() == ["a.cls", "a.JPG", "a.txt"]
