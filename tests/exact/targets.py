"""Compare the tensors of a framework with arrays: `python -m exact.targets FRAMEWORK SHARD`."""

from __future__ import annotations

import sys

import numpy as np

import tarmac

MEAN, STD = (0.5, 0.25, 0.1), (0.2, 0.3, 0.4)


def both(dataset, to, **options):
    """The batches without and with a target."""
    plain = list(tarmac.Loader(dataset, 4, **options))
    with tarmac.Loader(dataset, 4, to=to, **options) as loader:
        return zip(plain, list(loader), strict=True)


def check(framework, convert, dataset):
    """Compare with the arrays; `convert` turns a tensor into an array."""
    for plain, batch in both(dataset, framework):
        assert batch["__key__"] == plain["__key__"]
        assert batch["txt"] == plain["txt"]
        for name in ("png", "cls", "npy"):
            assert not isinstance(batch[name], np.ndarray)
            assert convert(batch[name]).dtype == plain[name].dtype or framework == "jax"  # which has 32 bits
            np.testing.assert_array_equal(convert(batch[name]), plain[name])
    to = tarmac.To(framework, channels_first=True, normalize=(MEAN, STD))
    for plain, (pictures, labels) in both(dataset.to_tuple("png", "cls"), to):
        expected = ((plain[0] / 255 - np.array(MEAN)) / np.array(STD)).transpose(0, 3, 1, 2)
        assert convert(pictures).shape == (4, 3, 6, 5)
        np.testing.assert_allclose(convert(pictures), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(convert(labels), plain[1])
    for plain, batch in both(dataset, tarmac.To(framework, normalize=True)):
        np.testing.assert_allclose(convert(batch["png"]), plain["png"] / 255, rtol=1e-5)


if __name__ == "__main__":
    sys.modules["torch"] = None  # importing it fails, as where it is not installed
    check(sys.argv[1], np.asarray, tarmac.Dataset(sys.argv[2]).decode("rgb8"))
