"""`tarmac embed`."""

from __future__ import annotations

from tarmac.cli.command import build_verb, flag
from tarmac.cli.flags import ACCESS, CHECKPOINTS, ERRORS, OVERWRITE, RUN, SHARDS, SPLITS, WHERE
from tarmac.cli.types import COUNT, NAMES, SLICE

_EMBED = [
    flag("-o", "--output", metavar="DIR", required=True, help="Directory for the vectors."),
    flag(
        "--model", metavar="NAME", required=True,
        help="open_clip:NAME/PRETRAINED, sentence:NAME_OR_DIR, module:Class or file.py:Class.",
    ),
    flag("--image", metavar="FIELD", help="The field of the image: jpg, or 'jpg;png' for the first of them."),
    flag("--text", metavar="FIELD", help="The field of the text: txt, or 'txt;caption'."),
    flag("--meta", type=NAMES, help="Fields whose values become columns of the metadata: json,cls."),
    flag("--score", metavar="NAME", help="Maps vectors to columns of the index: module:Class or file.py:Class."),
    flag("--batch-size", type=COUNT, help="Samples that go through the model together. [default: 64]"),
    flag("--keys", group="Select", metavar="FILE", help="Keep only the keys that this file lists, one per line."),
    flag("--slice", group="Select", type=SLICE, help="START:STOP[:STEP] of all samples."),
]  # fmt: skip

command = build_verb(
    "embed", SHARDS, _EMBED, [WHERE, *SPLITS], OVERWRITE, RUN, CHECKPOINTS, ERRORS, ACCESS,
    help="""Embed images and texts of samples: vectors for each shard, with keys and metadata beside them.

    The files are those of clip-retrieval, and tarmac.Embeddings reads them.
    """,
    example="tarmac embed 'train-*.tar' -o vectors/ --model sentence:all-MiniLM-L6-v2 --text txt",
)  # fmt: skip
