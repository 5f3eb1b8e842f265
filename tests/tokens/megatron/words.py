"""Write the golden files of this directory with datatrove 0.10.1: `python words.py DIRECTORY`.

It needs `datatrove==0.10.1`, `tokenizers` and `numpy` in an environment of its own. The tests only read the files, and
make the same tokenizers and documents with the functions below.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCUMENTS = 120
WORDS = {"narrow": 1_000, "wide": 70_000}
"""The number of words of each tokenizer: 16 bits are enough for one, the other needs 32."""


def document(number: int, words: int) -> str:
    """Return a text that depends on the numbers alone; some have no words, some have unknown ones."""
    length = number * 7919 % 41 if number % 10 else 0
    chosen = [(number * 104_729 + position * 1_299_709) % (words + 5) for position in range(length)]
    return " ".join(f"w{each}" for each in chosen)


def save_tokenizer(path: Path, words: int) -> str:
    """Save a tokenizer of words, which ends each document with `</s>`."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {"<unk>": 0, "</s>": 1} | {f"w{number}": number + 2 for number in range(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(path))
    return str(path)


def write_golden(folder: Path) -> None:
    """Write NAME.bin and NAME.idx for each tokenizer."""
    from datatrove.data import Document
    from datatrove.pipeline.tokens.megatron_tokenizer import MegatronDocumentTokenizer

    for name, words in WORDS.items():
        tokenizer = save_tokenizer(folder / f"{name}.json", words)
        documents = [Document(text=document(number, words), id=str(number)) for number in range(DOCUMENTS)]
        step = MegatronDocumentTokenizer(
            str(folder), tokenizer_name_or_path=tokenizer, eos_token="</s>", batch_size=50
        )
        step.run(documents)
        for end in ("bin", "idx"):
            (folder / f"00000_tokens.{end}").rename(folder / f"{name}.{end}")
        Path(tokenizer).unlink()


if __name__ == "__main__":
    write_golden(Path(sys.argv[1]))
