"""`wids.wids_bench`: print the keys of a list of shards, read by number (`wids`) or from start to end (`wds`).

    python -m wids.wids_bench wids list.json

The list is one that `ShardListDataset` reads; as there, it cannot name commands.
"""

from __future__ import annotations

import argparse
import sys

from tarmac.compat.webdataset.compat import WebDataset
from tarmac.compat.wids.wids import ShardListDataset
from tarmac.display import visible


def main_wids(args: argparse.Namespace) -> None:
    """Print the number of samples, and the number and key of each, read by number."""
    dataset = ShardListDataset(args.dataset, transformations=[])
    sys.stdout.write(f"{len(dataset)}\n")
    for number in range(len(dataset)):
        _write(number, dataset[number]["__key__"])
    dataset.close()


def main_wds(args: argparse.Namespace) -> None:
    """Print the number and key of each sample, read from start to end."""
    urls = [shard["url"] for shard in ShardListDataset(args.dataset).shards]
    for number, sample in enumerate(WebDataset(urls, shardshuffle=False)):
        _write(number, sample["__key__"])


def _write(number: int, key: str) -> None:
    sys.stdout.write(f"{number} {visible(key)}\n")


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(prog="wids_bench", description="Print the keys of a list of shards.")
    commands = parser.add_subparsers(required=True)
    for name, run in (("wids", main_wids), ("wds", main_wds)):
        command = commands.add_parser(name, help=run.__doc__)
        command.add_argument("dataset", help="a list of shards in JSON")
        command.set_defaults(run=run)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
