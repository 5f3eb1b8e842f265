"""Keep the wording of messages in one file, tests/messages.txt.

Other tests match the class of an error and its location. After a change of wording, write the file again with
`python -m tests.test_messages` and read the difference.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tarmac
import tarmac.webdataset as wds
from tarmac.cli import main
from tarmac.codecs import Codec

GOLDEN = Path(__file__).parent / "messages.txt"
CASES: dict[str, Callable[[], object]] = {}


def case(function: Callable[[], object]) -> Callable[[], object]:
    CASES[function.__name__.replace("_", " ")] = function
    return function


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


command("copy", "x-*.tar", "-o", "z-{i}.tar", "--shuffle", "--interleave", "2")
command("copy", "x-*.tar", "-o", "z-{i}.tar", "--slice", "a")
command("copy", "x-*.tar", "-o", "z-{i}.tar", "--max-bytes", "many")
command("copy", "x-*.tar", "-o", "z-{i}.tar", "--fields", "jpg")
command("copy", "pipe:cat x-0.tar", "-o", "z-{i}.tar")
command("copy", "absent.tar", "-o", "z-{i}.tar")
command("show", "x-0.tar", "--at", "absent")
command("check", "x-0.tar", "--repair")
command("nope")


def messages() -> Iterator[str]:
    """Yield each case with the class and the text of its error, in an empty directory with three shards."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for shard in range(2):
            with tarmac.TarWriter(f"x-{shard}.tar") as writer:
                for number in range(3):
                    writer.write({"__key__": f"{shard}{number}", "cls": number, "txt": "some text"})
        with tarmac.TarWriter("y.tar") as writer:
            writer.write({"__key__": "a", "txt": "x"})
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
