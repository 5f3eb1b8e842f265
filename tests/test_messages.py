"""Keep the wording of messages in one file, tests/messages.txt.

Other tests match the class of an error and its location. After a change of wording, write the file again with
`python -m tests.test_messages` and read the difference.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import io
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tarmac
import tarmac.webdataset as wds
from harness.shards import plain
from tarmac.cli import main
from tarmac.codecs import Codec
from tarmac.codecs.unsafe import pickle_handler
from tarmac.extras import import_extra

GOLDEN = Path(__file__).parent / "messages.txt"
CASES: dict[str, Callable[[], object]] = {}


def case(function: Callable[[], object]) -> Callable[[], object]:
    CASES[function.__name__.replace("_", " ")] = function
    return function


def warning(function: Callable[[], object]) -> Callable[[], object]:
    """Add the first warning of a function as a case."""

    def run() -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function()
            gc.collect()
        return f"{caught[0].category.__name__}: {caught[0].message}"

    CASES[function.__name__.replace("_", " ")] = run
    return run


def command(*arguments: str) -> None:
    """Add the standard error of a command as a case."""

    def run() -> str:
        text = io.StringIO()
        with contextlib.redirect_stderr(text), contextlib.redirect_stdout(io.StringIO()):
            with contextlib.suppress(SystemExit):
                main(list(arguments))
        return text.getvalue().strip().splitlines()[-1]

    CASES[f"$ tarmac {' '.join(arguments)}"] = run


@case
def a_missing_file():
    list(tarmac.read("absent.tar"))


@case
def a_pattern_without_a_match():
    tarmac.read("absent-*.tar")


@case
def an_unknown_scheme():
    list(tarmac.read("nope://host/a.tar"))


@case
def a_truncated_shard():
    Path("cut.tar").write_bytes(Path("x-0.tar").read_bytes()[:2000])
    list(tarmac.read("cut.tar"))


@case
def a_damaged_header():
    data = bytearray(Path("x-0.tar").read_bytes())
    data[0] ^= 1
    Path("flipped.tar").write_bytes(data)
    list(tarmac.read("flipped.tar"))


@case
def a_file_that_is_not_a_tar():
    Path("page.tar").write_bytes(b"<html>" * 200)
    list(tarmac.read("page.tar"))


@case
def a_limit():
    list(tarmac.read("x-0.tar", limits=tarmac.Limits(member_bytes=1)))


@case
def an_undecodable_field():
    with tarmac.TarWriter("bad.tar", encoder=False) as writer:
        writer.write({"__key__": "a", "json": b"{"})
    list(tarmac.WebDataset("bad.tar", shardshuffle=False).decode())


@case
def a_model_of_an_unknown_kind():
    tarmac.embed("x-0.tar", "vectors", model="clip", text="txt", jobs=1)


@case
def vectors_of_another_length():
    class Wrong:
        dimension = 3

        def encode_texts(self, texts):
            return [[1.0, 2.0] for _ in texts]

    with tarmac.TarWriter("v.tar") as writer:
        writer.write({"__key__": "a", "txt": "x"})
    tarmac.embed("v.tar", "vectors", model=Wrong(), text="txt", jobs=1)


@case
def a_directory_without_vectors():
    tarmac.Embeddings("absent")


@case
def a_pickle():
    with tarmac.TarWriter("pickle.tar") as writer:
        writer.write({"__key__": "a", "pkl": 1})
    list(tarmac.WebDataset("pickle.tar", shardshuffle=False).decode())


@case
def a_value_that_cannot_be_encoded():
    with tarmac.TarWriter("w.tar") as writer:
        writer.write({"__key__": "a", "cls": 1.5})


@case
def an_invalid_key():
    with tarmac.TarWriter("w.tar") as writer:
        writer.write({"__key__": "a.b", "txt": "x"})


@case
def a_missing_field():
    list(tarmac.WebDataset("x-0.tar", shardshuffle=False).to_tuple("jpg"))


@case
def a_batch_of_different_shapes():
    wds.default_collation_fn([{"a": 1}, {"b": 2}])


@case
def a_misspelt_column():
    tarmac.Dataset("x-*.tar").where("widht > 1")


@case
def an_invalid_condition():
    tarmac.Dataset("x-*.tar").where("cls >")


@case
def a_stale_index():
    tarmac.index("y.tar", "y.json")
    Path("y.tar").unlink()
    with tarmac.TarWriter("y.tar") as writer:
        writer.write({"__key__": "other", "txt": "longer than before"})
    tarmac.Dataset("y.json")[0]


@case
def an_unknown_key():
    tarmac.Dataset("x-*.tar").get("absent")


@case
def a_batch_size_of_zero():
    tarmac.Loader(tarmac.Dataset("x-*.tar"), batch_size=0)


@case
def a_loader_without_batches():
    tarmac.Loader(tarmac.Dataset("x-*.tar"), batch_size=1000)


@case
def an_argument_of_torch():
    tarmac.Loader(tarmac.Dataset("x-*.tar"), batch_size=2, num_workers=2)


@case
def a_state_of_other_data():
    state = tarmac.Loader(tarmac.Dataset("x-0.tar"), batch_size=1, threads=0).state_dict()
    tarmac.Loader(tarmac.Dataset("x-*.tar"), batch_size=1, threads=0).load_state_dict(state)


@case
def shares_that_do_not_add_up():
    tarmac.copy("x-*.tar", "{split}-{i}.tar", split={"train": 0.9})


@case
def orders_that_exclude_each_other():
    tarmac.copy("x-*.tar", "z-{i}.tar", shuffle=True, interleave=2)


@case
def an_empty_selection():
    tarmac.copy("x-*.tar", "z-{i}.tar", where="cls > 99")


@case
def a_misspelt_argument():
    tarmac.copy("x-*.tar", "z-{i}.tar", max_sample=3)


@case
def an_output_that_is_an_input():
    tarmac.copy("x-*.tar", "x-{i}.tar", overwrite=True)


@case
def an_existing_output():
    Path("taken-0.tar").write_bytes(b"")
    tarmac.copy("x-*.tar", "taken-{i}.tar")


@case
def another_job_with_the_same_output():
    tarmac.copy("x-*.tar", "job-{i}.tar", max_samples=2)
    tarmac.copy("x-*.tar", "job-{i}.tar", max_samples=3)


@case
def a_failed_hook():
    tarmac.copy("x-0.tar", "hook.tar", post_cmd="exit 3")


@case
def a_function_that_fails():
    tarmac.map("x-0.tar", "m.tar", function=lambda sample: sample["jpg"], jobs=1)


@case
def too_many_errors():
    failing = {"function": lambda sample: 1 / 0, "on_error": "skip", "max_errors": 1}
    tarmac.map("x-0.tar", "m2.tar", jobs=1, **failing)


@case
def a_join_without_a_match():
    Path("t.csv").write_text("key,score\nabsent,1\n")
    tarmac.join("x-*.tar", "t.csv", "j-{i}.tar")


@case
def an_unknown_engine():
    tarmac.copy("x-*.tar", "e-{i}.tar", engine="nope")


@case
def an_unknown_format():
    tarmac.export("x-*.tar", "x.out", format="nope")


@case
def an_unknown_codec_argument():
    tarmac.register_codec(Codec("json", decode=bytes))


@case
def a_missing_library():
    import_extra("no_such_library", "video", "video fields")


@case
def a_command_in_secure_mode():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARMAC_SECURE", "1")
        list(tarmac.read("pipe:cat x-0.tar"))


@case
def a_pickle_in_secure_mode():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARMAC_SECURE", "1")
        list(tarmac.WebDataset("pickle.tar", shardshuffle=False).decode(pickle_handler))


@case
def a_local_file_of_gopen_in_secure_mode():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARMAC_SECURE", "1")
        wds.gopen("x-0.tar")


@case
def a_torch_file_of_the_webdataset_library_in_secure_mode():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARMAC_SECURE", "1")
        wds.torch_loads(b"")


@case
def a_missing_directory_of_a_writer_of_the_webdataset_library():
    wds.TarWriter("absent/x.tar")


@case
def a_missing_cache_directory_of_the_webdataset_library():
    wds.WebDataset("x-0.tar", shardshuffle=False, cache_dir="absent")


@case
def a_name_in_a_list_that_is_a_pattern():
    Path("list.txt").write_text("x-0.tar::d/x-1.tar\n")
    list(tarmac.read("@list.txt"))


@case
def a_repeated_sample():
    Path("repeated.tar").write_bytes(plain([("a.txt", b"1"), ("b.txt", b"2"), ("a.txt", b"3")]))
    list(tarmac.read("repeated.tar"))


@case
def a_repeated_sample_with_other_fields():
    files = [("a.txt", b"1"), ("b.txt", b"2"), ("a.txt", b"3"), ("a.cls", b"4")]
    Path("other.tar").write_bytes(plain(files))
    list(tarmac.read("other.tar", repeated="keep"))


@case
def a_duplicate_field():
    Path("twice.tar").write_bytes(plain([("a.txt", b"1"), ("a.txt", b"2")]))
    list(tarmac.read("twice.tar"))


@case
def a_split_sample():
    Path("split.tar").write_bytes(plain([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")]))
    list(tarmac.read("split.tar"))


@case
def a_second_writer():
    first, second = tarmac.TarWriter("both.tar"), tarmac.TarWriter("both.tar")
    first.write({"__key__": "a", "txt": "x"})
    second.write({"__key__": "b", "txt": "x"})
    first.close()
    second.close()


@warning
def an_unclosed_writer():
    tarmac.TarWriter("open.tar").write({"__key__": "a", "txt": "x"})


@warning
def an_epoch_without_batches():
    list(tarmac.WebDataset("x-0.tar", shardshuffle=False).batched(6, partial=False))


@case
def a_loader_of_an_empty_dataset():
    tarmac.Loader(tarmac.Dataset("x-*.tar")[:0], batch_size=4)


@case
def unknown_keys():
    tarmac.Dataset("x-*.tar").select_keys(["absent"])


@case
def a_condition_of_different_types():
    tarmac.Dataset("x-*.tar").where("has(txt) > 1")


@case
def a_misspelt_metadata_column():
    tarmac.index("x-0.tar", "meta.json", meta=["jpg.widht"])


@case
def a_manifest_that_is_another_file():
    tarmac.index("x-0.tar", "some.csv")


@case
def a_missing_index():
    tarmac.index("y.tar", "lost.json")
    Path("y.tar.arrow").unlink()
    tarmac.Dataset("lost.json")[0]


@case
def a_damaged_index():
    tarmac.index("y.tar", "damaged.json")
    Path("y.tar.arrow").write_bytes(b"")
    tarmac.Dataset("damaged.json")[0]


@case
def a_split_of_a_stream():
    Path("x.tar.gz").write_bytes(gzip.compress(Path("x-0.tar").read_bytes()))
    tarmac.copy("x.tar.gz", "{split}-{i}.tar", split={"a": 0.5, "b": 0.5})


@case
def a_directory_for_standard_input():
    tarmac.copy("-", "out/")


@case
def a_function_that_returns_a_number():
    tarmac.map("x-0.tar", "f1.tar", function=lambda sample: 7, jobs=1)


@case
def a_function_that_returns_a_number_among_samples():
    tarmac.map("x-0.tar", "f2.tar", function=lambda sample: [sample, 7], jobs=1)


@case
def a_function_that_returns_no_fields():
    tarmac.map("x-0.tar", "f3.tar", function=lambda sample: {"__key__": "a"}, jobs=1)


@case
def a_function_that_returns_equal_keys():
    tarmac.map("x-0.tar", "f4.tar", function=lambda sample: [{"__key__": "b", "txt": b""}] * 2, jobs=1)


@case
def an_extracted_file_that_exists():
    Path("files").mkdir()
    Path("files/00.txt").write_text("mine")
    tarmac.show("x-0.tar").extract("files")


@case
def an_extracted_directory_that_is_a_file():
    Path("plain").write_text("mine")
    tarmac.show("x-0.tar").extract("plain")


command("copy", "x-*.tar", "-o", "z-{i}.tar", "--shuffle", "--interleave", "2")
command("copy", "x-*.tar", "-o", "z-{i}.tar", "--slice", "a")
command("copy", "x-*.tar", "-o", "z-{i}.tar", "--slice", "10")
command("copy", "x-*.tar", "-o", "z-{i}.tar", "--max-bytes", "many")
command("copy", "x-*.tar", "-o", "z-{i}.tar", "--fields", "jpg")
command("copy", "pipe:cat x-0.tar", "-o", "z-{i}.tar")
command("copy", "absent.tar", "-o", "z-{i}.tar")
command("show", "x-0.tar", "--at", "absent")
command("check", "x-0.tar", "--repair")
command("jobs", "status", "nowhere")
command("nope")
command("copy", "x-*.tar", "-o", "c-{i}.tar", "--max-samples", "4", "--dry-run")
command("copy", "x-*.tar", "-o", "c-{i}.tar", "--max-samples", "4", "-j", "1")
command("copy", "x-*.tar", "-o", "c-{i}.tar", "--max-samples", "4", "-j", "1", "--dry-run")
command("copy", "x-*.tar", "-o", "c-{i}.tar", "-j", "1", "--max-samples", "4")
command("sort", "x-*.tar", "--by", "cls", "-o", "s-{i}.tar", "-j", "1")
command("join", "x-*.tar", "--with", "some.csv", "-o", "joined.tar", "-j", "1")
command("map", "x-0.tar", "-c", "true", "-o", "mapped.tar", "-j", "1")
command("export", "x-0.tar", "-o", "x.jsonl")
command("index", "x-*.tar", "-o", "all.json", "--dry-run")
command("index", "x-*.tar", "-o", "all.json", "-j", "1")
command("index", "all.json", "--stale")
command("check", "x-*.tar", "-j", "1")
command("check", "cut.tar", "--repair", "-o", "clean/", "--dry-run", "-j", "1")
command("show", "x-0.tar", "--extract", "all")
command("dedup", "x-0.tar", "-o", "keep.txt")
command("dedup", "x-*.tar", "--text", "cls", "-o", "keep.txt")
command("dedup", "--why", "nine", "-o", "keep.txt")
command("cache", "ls", "--cache", "cache")
command("cache", "verify", "--cache", "cache")
command("cache", "evict", "--all", "--cache", "cache")


def links(**columns: object) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({"URL": ["http://a", "http://b"], "WIDTH": [5, 2000], **columns}), "links.parquet"
    )
    return "links.parquet"


@case
def a_misspelt_column_of_a_condition():
    tarmac.select(links(), "selected", where="WIDTH > 3 AND WIDHT > 3")


@case
def text_in_double_quotes():
    tarmac.select(links(LANGUAGE=["en", "de"]), "selected", where='LANGUAGE = "en"')


@case
def numbers_that_are_text():
    tarmac.select(links(HEIGHT=["5", "x"]), "selected", where="HEIGHT > 3")


@case
def no_rows_left():
    tarmac.select(links(), "selected", where="WIDTH > 9999")


@case
def a_filter_without_a_column():
    tarmac.select(links(), "selected", min_similarity=0.28)


command("select", "links.parquet", "--stats", "--where", "WIDTH > 9")
command("select", "links.parquet", "-o", "selected", "--sample", "0")


def messages() -> Iterator[str]:
    """Yield each case with the class and the text of its error, in an empty directory with three shards."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for shard in range(2):
            with tarmac.TarWriter(f"x-{shard}.tar") as writer:
                for number in range(3):
                    writer.write({"__key__": f"{shard}{number}", "cls": number, "txt": "some text"})
        with tarmac.TarWriter("y.tar") as writer:
            writer.write({"__key__": "a", "txt": "x"})
        Path("some.csv").write_text("key,score\n00,1\n11,2\n99,3\n")
        for name, run in CASES.items():
            try:
                text = run() or "no error"
            except (Exception, SystemExit) as error:
                text = f"{type(error).__name__}: {error}"
            text = re.sub(r"(test_messages\.py):\d+", r"\1:N", str(text))
            yield f"{name}\n    {text.replace(os.path.realpath(folder), '.')}"


@pytest.mark.processes
def test_messages_are_those_of_the_file():
    assert "\n".join(messages()) + "\n" == GOLDEN.read_text()


if __name__ == "__main__":
    sys.stdout.write("\n".join(messages()) + "\n")
