"""Store vectors as 16-bit floats: a codec for fields that end in `.fp16`.

One registration makes the extension known everywhere: writers encode it, `decode` reads it, an index can store its
`length`, and the shard tools treat it as an array.
"""

from __future__ import annotations

import numpy as np

import tarmac
from tarmac.codecs import Codec


def encode_vector(value: object) -> bytes:
    """Encode a sequence of numbers."""
    return np.asarray(value, "<f2").tobytes()


def decode_vector(data: bytes) -> np.ndarray:
    """Decode a vector."""
    return np.frombuffer(data, "<f2").astype(np.float32)


# At the top level of the module, so that spawned worker processes register it, too.
tarmac.register_codec(
    Codec(
        "fp16",
        decode=decode_vector,
        encode=encode_vector,
        kind="array",
        attributes=("length",),
        read_attributes=lambda data, limits: {"length": len(data) // 2},
    )
)


def main() -> None:
    """Write a shard, stream it, and load batches from it in a worker process."""
    with tarmac.ShardWriter("vectors-{i:04d}.tar", max_samples=50, index="vectors.json") as shards:
        for number in range(100):
            shards.write(
                {"__key__": f"{number:06d}", "embedding.fp16": [number, 0.5, -1], "cls": number % 10}
            )

    for sample in tarmac.WebDataset("vectors-{0000..0001}.tar", shardshuffle=False).decode():
        print(sample["__key__"], sample["embedding.fp16"], sample["cls"])
        break

    dataset = tarmac.Dataset("vectors.json").decode().to_tuple("embedding.fp16", "cls")
    loader = tarmac.Loader(dataset, batch_size=25, seed=1, processes=1, start_method="spawn")
    for vectors, labels in loader:
        print(vectors.shape, vectors.dtype, labels.shape)


if __name__ == "__main__":
    main()
