"""`wids.wids_index`: the command `widsindex`, which creates, updates and shows lists of shards in JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tarmac.compat.wids.wids import IndexedTarSamples, ShardListDataset, compute_file_md5sum
from tarmac.compat.wids.wids_dl import download_file
from tarmac.compat.wids.wids_specs import load_remote_dsdesc_raw
from tarmac.compat.wids.wids_specs import urldir as urldir
from tarmac.display import display_url, visible
from tarmac.storage import is_local, location, read_all, scheme_of, write_all
from tarmac.storage.urls import expand, parse_manifest

Spec = dict[str, Any]
TAB = "\t"


@contextlib.contextmanager
def AtomicJsonUpdate(filename: str) -> Iterator[Spec]:  # noqa: N802 (the name in wids)
    """Change a JSON file in a `with` block. The previous content is kept as `.bak`; an error changes nothing."""
    previous = read_all(filename)
    data = parse_manifest(previous)
    yield data
    write_all(f"{filename}.bak", previous)
    write_all(filename, json.dumps(data, indent=2).encode())


def format_with_suffix(num: float) -> str:
    """Format a number with a suffix: 1.5k, 2.0M."""
    for suffix in ("", "k", "M", "G", "T"):
        if num < 1000:
            return f"{num:.1f}{suffix}"
        num /= 1000
    return f"{num:.1f}E"


def shorten_name(s: str) -> str:
    """Return a dataset name made of the words in the name of its first shard, without numbers."""
    words = [word for word in re.split(r"\W+", s, flags=re.ASCII) if not re.fullmatch(r"\d*", word)]
    return "-".join(dict.fromkeys(words))


def urlfile(url: str) -> str:
    """Return the last part of a URL."""
    return os.path.basename(urlsplit(url).path) if scheme_of(url) else os.path.basename(url)


def urldirbase(url: str) -> str:
    """Return the directory of a URL or local file, as a URL."""
    parts = urlsplit(url)
    path = parts.path if scheme_of(url) else os.path.abspath(url)
    return urlunsplit((parts.scheme or "file", parts.netloc, os.path.dirname(path), "", ""))


def main_create(args: argparse.Namespace) -> None:
    """Create a list with the MD5 sum, number of samples and size of each shard."""
    files = [line.strip() for line in sys.stdin] if args.files == ["-"] else args.files
    urls = sorted(expand([name for name in files if name]))
    name = shorten_name(os.path.splitext(urls[0])[0]) if args.name is None else args.name
    spec: Spec = {"__kind__": "wids-shard-index-v1", "wids_version": 1}
    spec["shardlist"] = [_describe(url) for url in urls]
    spec |= {"name": name} if name else {}
    spec |= {"base": args.base} if args.base is not None else {}
    if args.info is not None:
        with open(args.info) as file:
            spec["info"] = file.read()
    write_all(args.output or "shardindex.json", json.dumps(spec, indent=2).encode())


def _describe(url: str) -> Spec:
    with tempfile.TemporaryDirectory() as directory:
        # An absolute path is not mistaken for a URL, whatever the file is called.
        path = location(url) if is_local(url) else download_file(url, os.path.join(directory, "shard"))
        return {
            "url": url,
            "md5sum": compute_file_md5sum(path),
            "nsamples": len(IndexedTarSamples(path=path)),
            "filesize": os.path.getsize(path),
        }


def main_update(args: argparse.Namespace) -> None:
    """Change the values of a list, or the directories of its shards."""
    with AtomicJsonUpdate(args.filename) as data:
        for key in ("name", "info", "base"):
            if getattr(args, key):
                data[key] = getattr(args, key)
        if args.keep or args.nokeep:
            data["keep"] = bool(args.keep)
        if args.rebase:
            bases = {urldirbase(shard["url"]) for shard in data["shardlist"]}
            if len(bases) != 1:
                raise SystemExit(
                    f"{args.filename}: expected all shards in one directory, got {len(bases)} directories"
                )
            data["base"] = bases.pop()
        if args.dir or args.nodir or args.rebase:
            for shard in data["shardlist"]:
                file = urlfile(shard["url"])
                shard["url"] = file if args.nodir else os.path.join(args.dir, file)
            data["shardlist"].sort(key=lambda shard: shard["url"])
        data.setdefault("name", os.path.splitext(urlfile(args.filename))[0])


def print_long_info(data: Spec, filename: str) -> None:
    """Print the values of a list, one per line."""
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
        "first shard": display_url(shards[0]["url"]) if shards else None,
        "last shard": display_url(shards[-1]["url"]) if shards else None,
    }
    for number, dataset in enumerate(data.get("datasets", [])):
        lines[f"dataset {number}"] = f"{dataset.get('name')} {display_url(dataset.get('source_url', ''))}"
    _print(*(f"{name:>16}: {value}" for name, value in lines.items()))


def main_info(args: argparse.Namespace) -> None:
    """Print the values of lists, in full or as a table."""
    if args.table:
        _print("file\tname\tnbytes\tnsamples\tbase\tlast\tdatasets")
    for filename in args.filenames:
        data = load_remote_dsdesc_raw(filename)
        if not args.table:
            _print(f"filename: {display_url(filename)}")
            print_long_info(data, filename)
            continue
        shards = data["shardlist"]
        size, samples = (sum(shard.get(key, 0) for shard in shards) for key in ("filesize", "nsamples"))
        last = display_url(shards[-1]["url"])
        row = display_url(filename), data.get("name"), size, samples, data.get("base"), last
        _print("\t".join(map(str, (*row, len(data.get("datasets", []))))))


def main_sample(args: argparse.Namespace) -> None:
    """Print one sample, or the bytes of one of its fields."""
    raw = args.raw or args.cat is not None
    sample = ShardListDataset(args.filename, transformations=[_read_files] if raw else "PIL")[args.index]
    if args.cat is not None:
        sys.stdout.buffer.write(sample[args.cat])
        return
    width = max(map(len, sample))
    _print(
        *(f"{key:{width}} {repr(value)[: args.width - width - 1]}" for key, value in sorted(sample.items()))
    )


def _read_files(sample: Spec) -> Spec:
    return {key: value.read() if hasattr(value, "read") else value for key, value in sample.items()}


def _print(*lines: str) -> None:
    sys.stdout.write("".join(f"{visible(line, keep=TAB)}\n" for line in lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="widsindex", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create", help="create a list of shards with sizes and numbers of samples")
    create.add_argument("files", nargs="+", help="shards or patterns; - reads names from standard input")
    update = commands.add_parser("update", help="change a list")
    update.add_argument("filename")
    update.add_argument("-n", "--name", default="")
    update.add_argument("-i", "--info", default="")
    update.add_argument("-b", "--base", default="")
    update.add_argument("-k", "--keep", action="store_true", help="keep downloads")
    update.add_argument("-K", "--nokeep", action="store_true", help="do not keep downloads")
    update.add_argument("-D", "--nodir", action="store_true", help="remove the directories from the names")
    update.add_argument("-d", "--dir", default="", help="replace the directories of the names")
    update.add_argument("-B", "--rebase", action="store_true", help="set the base to the common directory")
    for short, name in (("-o", "--output"), ("-n", "--name"), ("-i", "--info"), ("-b", "--base")):
        create.add_argument(short, name)
    info = commands.add_parser("info", help="show the values of lists")
    info.add_argument("filenames", nargs="*")
    info.add_argument("-t", "--table", action="store_true")
    sample = commands.add_parser("sample", help="show one sample")
    sample.add_argument("filename")
    sample.add_argument("index", type=int)
    sample.add_argument("-p", "--python", action="store_true", help="no effect")
    sample.add_argument("-r", "--raw", action="store_true", help="show fields as bytes")
    sample.add_argument("-c", "--cat", help="print the bytes of this field")
    sample.add_argument("-w", "--width", type=int, default=250)
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    args = _parser().parse_args(arguments)
    commands = {"create": main_create, "update": main_update, "info": main_info, "sample": main_sample}
    commands[args.command](args)


if __name__ == "__main__":
    main()
