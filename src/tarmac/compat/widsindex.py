"""The command `widsindex`: make lists of shards in JSON, change them, and look into them."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tarmac.compat.indexedtar import compute_file_md5sum
from tarmac.compat.shardlist import CacheLocalname, LRUShards, ShardListDataset
from tarmac.compat.shardlist_spec import load_remote_dsdesc_raw, urldir
from tarmac.storage import scheme_of, write_all
from tarmac.storage.urls import expand, parse_manifest

__all__ = [
    "AtomicJsonUpdate",
    "format_with_suffix",
    "main",
    "main_create",
    "main_info",
    "main_sample",
    "main_update",
    "print_long_info",
    "shorten_name",
    "urldir",
    "urldirbase",
    "urlfile",
]

Spec = dict[str, Any]


class AtomicJsonUpdate:
    """Change a JSON file in a `with` block; what it was is kept as `.bak`, an error changes nothing."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.backup_filename = f"{filename}.bak"

    def __enter__(self) -> Spec:
        with open(self.filename, "rb") as file:
            self._before = file.read()
        self.data = parse_manifest(self._before)
        return self.data

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            write_all(self.backup_filename, self._before)
            write_all(self.filename, json.dumps(self.data, indent=2).encode())


def format_with_suffix(num: float) -> str:
    """A large number for people: 1.5k, 2.0M."""
    for suffix in ("", "k", "M", "G", "T"):
        if num < 1000:
            return f"{num:.1f}{suffix}"
        num /= 1000
    return f"{num:.1f}E"


def shorten_name(s: str) -> str:
    """A name for a dataset from the name of its first shard: its words, without numbers."""
    words = [word for word in re.split(r"\W+", s, flags=re.ASCII) if not re.fullmatch(r"\d*", word)]
    return "-".join(dict.fromkeys(words))


def urlfile(url: str) -> str:
    """The last part of a URL."""
    return os.path.basename(urlsplit(url).path) if scheme_of(url) else os.path.basename(url)


def urldirbase(url: str) -> str:
    """The directory of a URL as a URL, of a local file too."""
    parts = urlsplit(url)
    path = parts.path if scheme_of(url) else os.path.abspath(url)
    return urlunsplit((parts.scheme or "file", parts.netloc, os.path.dirname(path), "", ""))


def main_create(args: argparse.Namespace) -> None:
    """Make a list: MD5 sum, number of samples and size of each shard."""
    files = [line.strip() for line in sys.stdin] if args.files == ["-"] else args.files
    urls = sorted(expand([name for name in files if name]))
    name = shorten_name(os.path.splitext(urls[0])[0]) if args.name is None else args.name
    found: Spec = {"__kind__": "wids-shard-index-v1", "wids_version": 1}
    with tempfile.TemporaryDirectory() as directory:
        found["shardlist"] = [_described(url, directory) for url in urls]
    found |= {"name": name} if name else {}
    found |= {"base": args.base} if args.base is not None else {}
    if args.info is not None:
        with open(args.info) as file:
            found["info"] = file.read()
    write_all(args.output or "shardindex.json", json.dumps(found, indent=2).encode())


def _described(url: str, directory: str) -> Spec:
    # Each shard in a cache of its own size: nothing of it has to stay.
    shard = LRUShards(1, localname=CacheLocalname(directory), cache_size=1 << 40).get_shard(url)
    path = str(shard.path)
    found = {"url": url, "md5sum": compute_file_md5sum(path), "nsamples": len(shard)}
    found["filesize"] = os.path.getsize(path)
    if os.path.dirname(os.path.abspath(path)) == os.path.abspath(directory):
        os.unlink(path)
    return found


def main_update(args: argparse.Namespace) -> None:
    """Change what a list says, or the directories of its shards."""
    with AtomicJsonUpdate(args.filename) as data:
        for key in ("name", "info", "base"):
            if getattr(args, key):
                data[key] = getattr(args, key)
        if args.keep or args.nokeep:
            data["keep"] = bool(args.keep)
        if args.rebase:
            bases = {urldirbase(shard["url"]) for shard in data["shardlist"]}
            if len(bases) != 1:
                raise SystemExit(f"{args.filename}: the shards lie in {len(bases)} directories, not in one")
            data["base"] = bases.pop()
        if args.dir or args.nodir or args.rebase:
            for shard in data["shardlist"]:
                file = urlfile(shard["url"])
                shard["url"] = file if args.nodir else os.path.join(args.dir, file)
            data["shardlist"].sort(key=lambda shard: shard["url"])
        data.setdefault("name", os.path.splitext(urlfile(args.filename))[0])


def print_long_info(data: Spec, filename: str) -> None:
    """Print what a list says, a line for each."""
    shards = data["shardlist"]
    size = sum(shard.get("filesize", 0) for shard in shards)
    samples = sum(shard["nsamples"] for shard in shards)
    lines = {
        "name": data.get("name"),
        "info": data.get("info"),
        "base": f"{data.get('base')} (assumed: {urldir(filename)})",
        "total size": format_with_suffix(size),
        "total samples": format_with_suffix(samples),
        "avg sample size": format_with_suffix(size // max(samples, 1)),
        "avg shard size": format_with_suffix(size // max(len(shards), 1)),
        "first shard": shards[0]["url"] if shards else None,
        "last shard": shards[-1]["url"] if shards else None,
    }
    for number, dataset in enumerate(data.get("datasets", [])):
        lines[f"dataset {number}"] = f"{dataset.get('name')} {dataset.get('source_url', '')}"
    _say(*(f"{name:>16}: {value}" for name, value in lines.items()))


def main_info(args: argparse.Namespace) -> None:
    """Print what lists say, in full or as a table."""
    if args.table:
        _say("file\tname\tnbytes\tnsamples\tbase\tlast\tdatasets")
    for filename in args.filenames:
        data = load_remote_dsdesc_raw(filename)
        if not args.table:
            _say(f"filename: {filename}")
            print_long_info(data, filename)
            continue
        shards = data["shardlist"]
        size, samples = (sum(shard.get(key, 0) for shard in shards) for key in ("filesize", "nsamples"))
        row = filename, data.get("name"), size, samples, data.get("base"), shards[-1]["url"]
        _say("\t".join(map(str, (*row, len(data.get("datasets", []))))))


def main_sample(args: argparse.Namespace) -> None:
    """Print one sample, or the bytes of one of its fields."""
    raw = args.raw or args.cat is not None
    sample = ShardListDataset(args.filename, transformations=[_contents] if raw else "PIL")[args.index]
    if args.cat is not None:
        sys.stdout.buffer.write(sample[args.cat])
        return
    width = max(map(len, sample))
    _say(*(f"{key:{width}} {repr(value)[: args.width - width - 1]}" for key, value in sorted(sample.items())))


def _contents(sample: Spec) -> Spec:
    return {key: value.read() if hasattr(value, "read") else value for key, value in sample.items()}


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="widsindex", description=__doc__)
    verbs = parser.add_subparsers(dest="command", required=True)
    create = verbs.add_parser("create", help="list shards with their sizes and numbers of samples")
    create.add_argument("files", nargs="+", help="shards or patterns; - for a list on standard input")
    update = verbs.add_parser("update", help="change a list")
    update.add_argument("filename")
    update.add_argument("-n", "--name", default="")
    update.add_argument("-i", "--info", default="")
    update.add_argument("-b", "--base", default="")
    update.add_argument("-k", "--keep", action="store_true", help="downloads are kept")
    update.add_argument("-K", "--nokeep", action="store_true", help="downloads need not be kept")
    update.add_argument("-D", "--nodir", action="store_true", help="take the directories off the names")
    update.add_argument("-d", "--dir", default="", help="put another directory before the names")
    update.add_argument("-B", "--rebase", action="store_true", help="make the directory of all the base")
    for short, name in (("-o", "--output"), ("-n", "--name"), ("-i", "--info"), ("-b", "--base")):
        create.add_argument(short, name)
    info = verbs.add_parser("info", help="say what lists hold")
    info.add_argument("filenames", nargs="*")
    info.add_argument("-t", "--table", action="store_true")
    sample = verbs.add_parser("sample", help="show one sample")
    sample.add_argument("filename")
    sample.add_argument("index", type=int)
    sample.add_argument("-p", "--python", action="store_true", help="without effect")
    sample.add_argument("-r", "--raw", action="store_true", help="show fields as bytes")
    sample.add_argument("-c", "--cat", help="print the bytes of this field")
    sample.add_argument("-w", "--width", type=int, default=250)
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    args = _parser().parse_args(arguments)
    verbs = {"create": main_create, "update": main_update, "info": main_info, "sample": main_sample}
    verbs[args.command](args)
