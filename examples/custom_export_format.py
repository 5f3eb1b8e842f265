"""Export samples to a format of your own: a writer and one registration."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import tarmac
from tarmac.samples.grouping import Sample
from tarmac.tools.export import Format, RowOptions, SinkFile, Writer, payload, register_format


class MarkdownWriter(Writer):
    """Write one section for each sample."""

    def __init__(self, file: SinkFile, row: RowOptions) -> None:
        self._file, self._row = file, row

    def add(self, sample: Sample) -> int:
        """Write a sample and return its payload in bytes, or raise and change nothing."""
        values = self._row.values(sample)
        section = [f"# {values.pop('__key__')}", *(f"- {name}: {value}" for name, value in values.items())]
        self._file.write("\n".join([*section, "", ""]).encode())
        return payload(sample)


# At the top level of the module, so that spawned worker processes register it, too.
register_format(Format("markdown", MarkdownWriter, (".markdown",), text=True))


def main() -> None:
    """Export a shard."""
    with TemporaryDirectory() as folder:
        with tarmac.TarWriter(f"{folder}/a.tar") as writer:
            writer.write({"__key__": "one", "txt": "hello", "cls": 3})
        report = tarmac.export(f"{folder}/a.tar", f"{folder}/a.markdown")  # the extension tells the format
        print(report)
        print(Path(folder, "a.markdown").read_text())


if __name__ == "__main__":
    main()
