"""Go through CC3M once, shuffled."""

import braceexpand
import webdataset as wds
from tqdm import tqdm

shards = braceexpand.braceexpand(SHARDS)  # noqa: F821
dataset = wds.WebDataset(shards, shardshuffle=True).shuffle(5000)

keys = []
for b in tqdm(dataset):
    keys.append(b["__key__"])
