"""Read all shards of a directory and say what is in them."""

import argparse
import glob
import os

import webdataset as wds

parser = argparse.ArgumentParser()
parser.add_argument("--path", required=True)
args = parser.parse_args()

urls = sorted(glob.glob(os.path.join(args.path, "shard-*.tar")))
dataset = wds.WebDataset(urls, shardshuffle=False)
for sample in dataset:
    text = sample["txt"].decode("utf-8")
    print(sample["__key__"], len(sample["jpg"]), text, sep="\t")
