"""`tarmac map`."""

from __future__ import annotations

from tarmac.cli.command import build_verb, flag
from tarmac.cli.flags import ACCESS, CHECKPOINTS, ERRORS, RUN, SELECT, SHARDS, WRITE
from tarmac.cli.types import SECONDS

_MAP = [
    flag(
        "-c", "--command", metavar="COMMAND",
        help="Shell command; the fields are files: sample.jpg, sample.cls.",
    ),
    flag("--script", metavar="FILE", help="Script to run instead of a command."),
    flag("--interpreter", metavar="COMMAND", help="Program that runs the script. [default: bash]"),
    flag("--py", "function", metavar="NAME", help="A Python function: module:function or file.py:function."),
    flag("--decode", metavar="SPEC", help="Decode fields for --py, images as rgb8, pil, torchrgb and so on."),
    flag("--multi", is_flag=True, help="The command writes several samples: sample-0.jpg, sample-1.jpg."),
    flag("--unordered", "ordered", flag_value=False, help="Write samples as they complete, not in order."),
    flag("--timeout", type=SECONDS, help="Timeout of the command, per sample."),
    flag("--log-field", metavar="FIELD", help="Field for the output of the command."),
    flag("--keep-dir", metavar="DIR", help="Directory for the files of failed samples."),
]  # fmt: skip

command = build_verb(
    "map", SHARDS, _MAP, SELECT, WRITE, RUN, CHECKPOINTS, ERRORS, ACCESS,
    help="""Transform samples with a command or a Python function, in parallel.

    A command that removes all sample.* files drops the sample.
    """,
    example="tarmac map 'in-*.tar' -c 'convert sample.jpg -resize 256 sample.jpg' -o out/",
)  # fmt: skip
