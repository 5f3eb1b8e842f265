"""Add a verb to the command line: a function, its flags, and one registration.

An installed package adds the verb to the command `tarmac` with this entry point, which names its module:

    [project.entry-points."tarmac.plugins"]
    tag = "custom_verb"
"""

from __future__ import annotations

import contextlib
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import tarmac
from tarmac.cli import main, register_command
from tarmac.cli.command import build, flag
from tarmac.cli.flags import ACCESS, RUN, SELECT, SHARDS, WRITE


def tag(sources: list[str], output: str, *, text: str, **options: Any) -> tarmac.Report:
    """Add the field `tag` to every sample."""
    return tarmac.map(sources, output, partial(_add, text=text), **options)


def _add(sample: dict[str, Any], text: str) -> dict[str, Any]:
    return sample | {"tag": text.encode()}


@build(
    SHARDS,
    [flag("--text", required=True, help="The content of the field.")],
    *(SELECT, WRITE, RUN, ACCESS),  # the flags that verbs share
    example="tarmac tag a.tar --text train -o b.tar",
)
def command(sources: tuple[str, ...], **options: Any) -> tarmac.Report:
    """Add a field to every sample: tag."""
    return tag(list(sources), **options)


register_command("tag", command)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        with tarmac.TarWriter(f"{folder}/a.tar") as writer:
            writer.write({"__key__": "one", "txt": "hello"})
        with contextlib.suppress(SystemExit):
            main(["tag", f"{folder}/a.tar", "--text", "train", "-o", f"{folder}/b.tar", "-j", "1"])
        for sample in tarmac.read(f"{folder}/b.tar"):
            print(sample["__key__"], sample["tag"].decode())
