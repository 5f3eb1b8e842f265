"""`tarmac tokenize`."""

from __future__ import annotations

from tarmac.cli.command import build_verb, flag
from tarmac.cli.flags import ACCESS, CHECKPOINTS, ERRORS, OVERWRITE, RUN, SHARDS, SPLITS, WHERE
from tarmac.cli.types import COUNT, NAMES, NUMBER, SLICE

_TOKENIZE = [
    flag("-o", "--output", metavar="DIR", required=True, help="Directory for the tokens of each shard."),
    flag("--text", metavar="FIELD", help="The field of the text: txt, or 'txt;caption' for the first of them."),
    flag("--tokenizer", metavar="NAME", help="File of the tokenizers library, module:Class or file.py:Class."),
    flag("--image", metavar="FIELD", help="The field of the image: jpg, or 'jpg;png'."),
    flag("--image-tokenizer", metavar="NAME", help="A model: module:Class or file.py:Class."),
    flag("--resolution", type=COUNT, help="Width and height of the images for the model. [default: 256]"),
    flag(
        "--interleave", metavar="FIELDS",
        help="Fields that become one sequence, in this order: 0.txt,0.jpg,1.txt; JSON lists texts and images.",
    ),
    flag("--mapper", metavar="NAME", help="A mapper in the place of tokenizers: module:Class, or a function."),
    flag("--block-size", type=COUNT, help="Largest number of tokens of a sample."),
    flag("--vocab-size", type=COUNT, help="Size of the vocabulary, if the tokenizer does not tell it."),
    flag("--image-vocab-size", type=COUNT, help="The same for the image tokenizer."),
    flag("--image-token-shift", type=NUMBER, help="Added to image tokens when they are loaded. [default: 0]"),
    flag("--pad-token", type=NUMBER, help="The token that fills samples up when they are loaded."),
    flag("--add-tokens", type=NAMES, help="Special tokens to add to the tokenizer: '<image>'."),
    flag("--batch-size", type=COUNT, help="Samples to tokenize together. [default: 1024, with images 64]"),
    flag("--limit", group="Select", type=COUNT, help="Take the first samples."),
    flag("--keys", group="Select", metavar="FILE", help="Keep only the keys that this file lists, one per line."),
    flag("--slice", group="Select", type=SLICE, help="START:STOP[:STEP] of all samples."),
]  # fmt: skip

command = build_verb(
    "tokenize", SHARDS, _TOKENIZE, [WHERE, *SPLITS], OVERWRITE, RUN, CHECKPOINTS, ERRORS, ACCESS,
    help="""Tokenize texts and images of samples: a part of tokens for each shard.

    Images go through a model; texts and images can become one sequence.
    """,
    example="tarmac tokenize 'train-*.tar' -o tokens/ --text txt --tokenizer tokenizer.json --block-size 128",
)  # fmt: skip
