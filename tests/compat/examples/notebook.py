"""The code cells of the webdataset notebook, in their order, over small shards on this machine.

Changed are only the addresses (a command that prints local files, as the notebook's prints remote ones) and
the cells for the shell. SHARDS and FIRST are set by the caller.
"""

# ruff: noqa
# fmt: off

# cell 4: list a shard
import subprocess

subprocess.run(f"cat {FIRST} | tar tf - | sed 10q", shell=True, check=True)

# cell 5: what the others need
from itertools import islice

import torch
import webdataset as wds
from pylab import *
from torch.utils.data import IterableDataset
from torchvision import transforms

url = SHARDS
url = f"pipe:cat {url} || true"

# cell 7: a list of shards
dataset = wds.SimpleShardList(url)
cell_7 = list(islice(dataset, 3))

# cell 9: shards to samples
dataset = wds.DataPipeline(
    wds.SimpleShardList(url),
    wds.tarfile_to_samples(),
)

for sample in islice(dataset, 0, 3):
    for key, value in sample.items():
        print(key, repr(value)[:50])
    print()
cell_9 = sample

# cell 11: decoding, tuples
dataset = wds.DataPipeline(
    wds.SimpleShardList(url),
    wds.tarfile_to_samples(),
    wds.decode("rgb"),
    wds.to_tuple("jpg;png", "json"),
)

for image, data in islice(dataset, 0, 3):
    print(image.shape, image.dtype, type(image))
cell_11 = image


# cell 13: augmentation
def identity(x):
    return x


normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])

preproc = transforms.Compose(
    [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        normalize,
    ]
)

dataset = wds.DataPipeline(
    wds.SimpleShardList(url),
    wds.tarfile_to_samples(),
    wds.decode("pil"),
    wds.to_tuple("jpg;png", "json"),
    wds.map_tuple(preproc, None),
)

for image, data in islice(dataset, 0, 3):
    print(image.shape, image.dtype, type(data))
cell_13 = image, data


# cell 15: a custom stage
def add_noise(source, noise=0.01):
    for inputs, targets in source:
        inputs = inputs + noise * torch.randn_like(inputs)
        yield inputs, targets


# cell 17
dataset = wds.DataPipeline(
    wds.SimpleShardList(url),
    wds.tarfile_to_samples(),
    wds.shuffle(100),
    wds.decode("torchrgb"),
    wds.to_tuple("jpg;png", "json"),
    add_noise,
)

image, cls = next(iter(dataset))
cell_17 = image.shape

# cell 19: with a parameter
from functools import partial

dataset = wds.DataPipeline(
    wds.SimpleShardList(url),
    wds.tarfile_to_samples(),
    wds.shuffle(100),
    wds.decode("torchrgb"),
    wds.to_tuple("jpg;png", "json"),
    partial(add_noise, noise=0.1),
)

image, cls = next(iter(dataset))
cell_19 = image.shape

# cell 21: shards for each worker
dataset = wds.DataPipeline(
    wds.SimpleShardList(url),
    wds.split_by_worker,
    wds.shuffle(50),
    wds.tarfile_to_samples(),
    wds.shuffle(100),
    wds.decode("torchrgb"),
    wds.to_tuple("jpg;png", "json"),
)
x, y = next(iter(dataset))
print(x.shape, str(y)[:50])
cell_21 = x.shape

# cell 23: batches from four workers
bs = 20

dataset = wds.DataPipeline(
    wds.SimpleShardList(url),
    wds.split_by_worker,
    wds.shuffle(50),
    wds.tarfile_to_samples(),
    wds.shuffle(100),
    wds.decode("pil"),
    wds.to_tuple("jpg;png", "json"),
    wds.map_tuple(preproc, None),
    wds.batched(bs),
)
dataloader = torch.utils.data.DataLoader(dataset, num_workers=4, batch_size=None)
images, targets = next(iter(dataloader))
cell_23 = images.shape

# cell 25: batched again behind the workers
dataloader = wds.DataPipeline(
    torch.utils.data.DataLoader(dataset, num_workers=4, batch_size=None),
    wds.unbatched(),
    wds.shuffle(500),
    wds.batched(bs),
)
images, targets = next(iter(dataloader))
cell_25 = images.shape

# cell 29: drawn shards, epochs of n batches
dataset = wds.DataPipeline(
    wds.ResampledShards(url),
    wds.tarfile_to_samples(),
    wds.shuffle(100),
    wds.decode("pil"),
    wds.to_tuple("jpg;png", "json"),
    wds.map_tuple(preproc, None),
    wds.batched(8),
)
dataloader = wds.WebLoader(dataset, num_workers=7, batch_size=None).with_epoch(20)
one_epoch = list(iter(dataloader))
cell_29 = len(one_epoch), one_epoch[0][0].shape

# cell 31: the fluent way
dataset = (
    wds.WebDataset(url, shardshuffle=100)
    .shuffle(1000)
    .decode("pil")
    .to_tuple("jpg;png", "json")
    .map_tuple(preproc, None)
    .batched(8)
)
sample = next(iter(dataset))
cell_31 = sample[0].shape

# cell 36: a copy
subprocess.run(f"cat {FIRST} > copy-000000.tar", shell=True, check=True)

# cell 37
dataset = wds.DataPipeline(
    wds.SimpleShardList("copy-000000.tar"),
    wds.tarfile_to_samples(),
)
cell_37 = repr(next(iter(dataset)))[:200]


# cell 43: from samples to a new shard
def extract_class(data):
    # mock implementation
    return 0


def augment_wds(input, output, maxcount=999999999):
    src = wds.DataPipeline(
        wds.SimpleShardList(input),
        wds.tarfile_to_samples(),
        wds.decode("pil"),
        wds.to_tuple("__key__", "jpg;png", "json"),
        wds.map_tuple(None, preproc, None),
    )
    with wds.TarWriter(output) as dst:
        for key, image, data in islice(src, 0, maxcount):
            print(key)
            image = image.numpy().transpose(1, 2, 0)
            image -= amin(image)
            image /= amax(image)
            sample = {"__key__": key, "png": image, "cls": extract_class(data)}
            dst.write(sample)


# cell 45
url = FIRST
url = f"pipe:cat {url} || true"
augment_wds(url, "_temp.tar", maxcount=5)

# cell 47
cell_47 = subprocess.run(
    ["tar", "tf", "_temp.tar"], capture_output=True, text=True, check=True
).stdout.split()
