"""Pack one shard out of many: the pairs of image and text whose turn it is. Several run at the same time."""

import argparse
from pathlib import Path

import webdataset as wds

parser = argparse.ArgumentParser()
parser.add_argument("--source", default="source_data")
parser.add_argument("--output", default="webdataset_output")
parser.add_argument("--shard-id", type=int, required=True)
parser.add_argument("--total-shards", type=int, required=True)
args = parser.parse_args()

Path(args.output).mkdir(exist_ok=True)
images = sorted(Path(args.source).glob("*.jpg"))
with wds.TarWriter(f"{args.output}/shard-{args.shard_id:06d}.tar") as sink:
    for image in images[args.shard_id :: args.total_shards]:
        text = image.with_suffix(".txt").read_text().strip()
        sink.write({"__key__": image.stem, "jpg": image.read_bytes(), "txt": text})
