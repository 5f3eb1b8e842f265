"""`wids.wids_bench`: print the keys of a dataset, read by number (`wids`) or from start to end (`wds`).

python -m wids.wids_bench wids dataset.json
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from tarmac.compat.webdataset.compat import WebDataset
from tarmac.compat.wids.wids import ShardListDataset


def main_wids(args: argparse.Namespace) -> None:
    """Print the number of samples, and the number and key of each, read by number."""
    dataset = ShardListDataset(_files(args.dataset), transformations=[])
    print(len(dataset))  # noqa: T201 - the purpose of this command
    for number in range(len(dataset)):
        print(number, dataset[number]["__key__"])  # noqa: T201
    dataset.close()


def main_wds(args: argparse.Namespace) -> None:
    """Print the number and key of each sample, read from start to end."""
    urls = [file["url"] for file in _files(args.dataset)]
    for number, sample in enumerate(WebDataset(urls, shardshuffle=False)):
        print(number, sample["__key__"])  # noqa: T201


def _files(path: str) -> list[dict[str, Any]]:
    """Return the shards of a list: `files` in those that this command was written for, or `shardlist`."""
    with open(path, encoding="utf-8") as stream:
        description = json.load(stream)
    files: list[dict[str, Any]] = description.get("files") or description["shardlist"]
    return files


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=main_wids.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run in (("wids", main_wids), ("wds", main_wds)):
        command = commands.add_parser(name, help=run.__doc__)
        command.add_argument("dataset", help="a list of shards in JSON")
        command.set_defaults(run=run)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
