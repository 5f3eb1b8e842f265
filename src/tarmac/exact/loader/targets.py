"""Hand batches over as tensors of a framework, on the device that computes.

Pixels travel as bytes: images are transposed and normalised where the tensors are, which for an accelerator is a
quarter of the bytes to copy. A batch is converted while the training loop works on the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np

from tarmac.errors import UsageError
from tarmac.exact.loader.builder import Result
from tarmac.extras import import_extra
from tarmac.limits import Options
from tarmac.runtime.lookahead import look_ahead

Framework = Literal["torch", "jax", "tensorflow"]
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of each channel, for pixels from 0 to 1."""


@dataclass(frozen=True, repr=False)
class To(Options):
    """What becomes of the arrays of a batch: `Loader(ds, 64, to=To("torch", device="cuda"))`.

    Everything else in a batch, such as keys and texts, stays as it is. An image is an array of uint8 with four
    dimensions whose last one has 1, 3 or 4 channels, as `decode("rgb8")` makes them. A batch without one is an
    error if images are to be transposed or normalised.
    """

    framework: Framework
    """The library whose tensors the training loop gets."""
    device: Any = None
    """Where they are, such as "cuda" or a device of the framework; None for its default, in torch the processor."""
    channels_first: bool = False
    """Transpose images from N x H x W x C to N x C x H x W."""
    normalize: tuple[Sequence[float], Sequence[float]] | bool = False
    """Convert images to floats: from 0 to 1 (True), or with a mean and a standard deviation for each channel."""

    def __post_init__(self) -> None:
        if self.framework not in get_args(Framework):
            expected = ", ".join(get_args(Framework))
            raise UsageError(f"expected one of {expected}, got {self.framework!r}.", field="to")
        if not isinstance(self.channels_first, bool):
            raise UsageError(f"expected True or False, got {self.channels_first!r}.", field="channels_first")
        if not isinstance(self.normalize, bool) and not _are_moments(self.normalize):
            what = "expected True, or as many means as standard deviations, none of these 0, one for each channel"
            raise UsageError(f"{what}, got {self.normalize!r}.", field="normalize")

    def __call__(self, batch: Any) -> Any:
        """Convert a batch; tuples, lists and dictionaries keep their structure."""
        arrays: list[np.ndarray[Any, Any]] = []
        result = self._convert(batch, arrays)
        if (self.normalize or self.channels_first) and not any(map(_is_image, arrays)):
            option = "normalize" if self.normalize else "channels_first"
            shapes = ", ".join(f"{array.dtype} {'x'.join(map(str, array.shape))}" for array in arrays)
            what = f"the batch has no images of uint8, N x H x W x C; its arrays are {shapes or 'none'}."
            raise UsageError(what, field=option, hint='decode("rgb8")')
        return result

    def _convert(self, batch: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
        """Convert a batch or a part of it, and list its arrays."""
        convert = partial(self._convert, arrays=arrays)
        if isinstance(batch, np.ndarray):
            arrays.append(batch)
            return self._tensor(batch) if batch.dtype.kind in "biufc" else batch
        if isinstance(batch, Mapping):
            return {name: convert(value) for name, value in batch.items()}
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple
            return type(batch)(*map(convert, batch))
        if isinstance(batch, tuple | list) and any(isinstance(each, np.ndarray) for each in batch):
            return type(batch)(map(convert, batch))
        return batch

    def _tensor(self, array: np.ndarray[Any, Any]) -> Any:
        tensor = self._library.put(array, self.device)
        if not _is_image(array):
            return tensor
        if self.normalize:
            tensor = self._library.floats(tensor) / 255
            if not isinstance(self.normalize, bool):
                mean, std = (np.array(each, np.float32) for each in self.normalize)
                if len(mean) != array.shape[3]:
                    what = f"has {len(mean)} channels, but the images have {array.shape[3]}."
                    raise UsageError(what, field="normalize")
                tensor = (tensor - self._library.put(mean, self.device)) / self._library.put(std, self.device)
        return self._library.transpose(tensor) if self.channels_first else tensor

    @cached_property
    def _library(self) -> Any:
        library: Any = {"torch": _Torch, "jax": _Jax, "tensorflow": _TensorFlow}[self.framework]()
        try:
            library.put(np.zeros(1, np.float32), self.device)
        except (RuntimeError, ValueError, TypeError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise UsageError(
                f"{self.framework} cannot use {self.device!r}: {reason}.", field="device"
            ) from None
        return library


def _is_image(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] in (1, 3, 4)


def _are_moments(normalize: Any) -> bool:
    """Return whether these are means and standard deviations of channels."""
    try:
        mean, std = (tuple(map(float, each)) for each in normalize)
    except (TypeError, ValueError):
        return False
    return len(mean) == len(std) > 0 and all(std)


def as_target(to: Any) -> To | None:
    """Return the target of an argument `to`."""
    return to if to is None or isinstance(to, To) else To(to)


class _Torch:
    """Tensors of torch. Copies to an accelerator go through pinned memory, so that they need not be waited for."""

    def __init__(self) -> None:
        self._torch = import_extra("torch", "torch", 'to="torch"')

    def put(self, array: np.ndarray[Any, Any], device: Any) -> Any:
        # Tensors may be changed in place, so they need memory of their own if the array is read-only.
        tensor = self._torch.from_numpy(array if array.flags.writeable else array.copy())
        if device is None or self._torch.device(device).type in ("cpu", "meta"):
            return tensor if device is None else tensor.to(device)
        return tensor.pin_memory().to(device, non_blocking=True)

    def floats(self, tensor: Any) -> Any:
        return tensor.float()

    def transpose(self, tensor: Any) -> Any:
        return tensor.permute(0, 3, 1, 2).contiguous()


class _Jax:
    """Arrays of JAX, which copies and computes asynchronously by itself."""

    def __init__(self) -> None:
        self._jax = import_extra("jax", "jax", 'to="jax"')

    def put(self, array: np.ndarray[Any, Any], device: Any) -> Any:
        if isinstance(device, str):
            device = self._jax.devices(device)[0]
        if array.dtype in (np.int64, np.uint64) and not self._jax.config.jax_enable_x64:
            limits = np.iinfo(np.int32 if array.dtype == np.int64 else np.uint32)
            if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
                what = "an integer of the batch needs 64 bits, which JAX would cut to 32."
                raise UsageError(what, field="to", hint='jax.config.update("jax_enable_x64", True)')
        return self._jax.device_put(array, device)

    def floats(self, tensor: Any) -> Any:
        return tensor.astype("float32")

    def transpose(self, tensor: Any) -> Any:
        return tensor.transpose(0, 3, 1, 2)


class _TensorFlow:
    """Tensors of TensorFlow."""

    def __init__(self) -> None:
        self._tensorflow = import_extra("tensorflow", "tensorflow", 'to="tensorflow"')

    def put(self, array: np.ndarray[Any, Any], device: Any) -> Any:
        with self._tensorflow.device(device):
            return self._tensorflow.convert_to_tensor(array)

    def floats(self, tensor: Any) -> Any:
        return self._tensorflow.cast(tensor, self._tensorflow.float32)

    def transpose(self, tensor: Any) -> Any:
        return self._tensorflow.transpose(tensor, (0, 3, 1, 2))


def converted(
    results: Generator[Result, None, None], convert: Callable[[Any], Any]
) -> Generator[Result, None, None]:
    """Yield results with converted batches; the next one is converted before each is yielded."""

    def converting(result: Result) -> Result:
        result.batch = convert(result.batch)
        return result

    with closing(results):
        yield from look_ahead(converting, results, 2)
