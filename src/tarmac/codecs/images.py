"""Images to bytes through Pillow, and back through simplejpeg (JPEG) and Pillow (everything else).

A spec says what comes out: `rgb8` a NumPy array of bytes, `rgb` of floats from 0 to 1, `torchrgb` a
tensor with the channels first, `pil` an image of Pillow; `l` and `rgba` in place of `rgb`.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from tarmac.codecs.handlers import FieldHandler, Function, Settings, extension_of, words
from tarmac.codecs.pixels import check_pixels, peek_size
from tarmac.errors import DecodeFailed, DecompressionBomb, EncodeFailed, TarmacWarning
from tarmac.extras import import_extra

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    Array = np.ndarray[Any, Any]

__all__ = [
    "FORMATS",
    "IMAGE_EXTENSIONS",
    "UNMARKED",
    "decode_image",
    "ImageHandler",
    "image_encoder",
    "imagehandler",
    "imagespecs",
    "open_image",
]

_OPTIONS: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 100},
    "TIFF": {"compression": "raw"},
    "WEBP": {"lossless": True},
}
_TOLERANCE = 1e-3


def image_encoder(form: str, mode: str | None = None) -> Callable[[Any], bytes]:
    """Make an encoder for one image format.

    It takes Pillow images and arrays: HxW, HxWx1, HxWx3 or HxWx4, uint8, or floats from 0 to 1.
    """
    return partial(_encode, form=form, mode=mode)


def _encode(value: Any, form: str, mode: str | None) -> bytes:
    image = _image(value)
    if mode is not None:
        image = image.convert(mode)
    if form == "JPEG" and image.mode not in ("L", "RGB", "CMYK", "YCbCr"):
        raise EncodeFailed(f"JPEG cannot hold {image.mode} images.", hint='png, or image.convert("RGB").')
    stream = io.BytesIO()
    image.save(stream, format=form, **_OPTIONS.get(form, {}))
    return stream.getvalue()


def _image(value: Any) -> Image:
    import numpy as np
    from PIL import Image

    if isinstance(value, Image.Image):
        return value
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise EncodeFailed(f"an image is HxW, HxWx1, HxWx3 or HxWx4, got shape {array.shape}.")
    if array.dtype.kind == "f":
        low, high = float(array.min(initial=0)), float(array.max(initial=0))
        if not (low > -_TOLERANCE and high < 1 + _TOLERANCE):  # nor NaN, which compares with nothing
            raise EncodeFailed(f"float images range from 0 to 1, this one from {low:g} to {high:g}.")
        array = (np.clip(array, 0, 1) * 255).astype(np.uint8)
    if array.dtype != np.uint8 and not (array.dtype == np.uint16 and array.ndim == 2):
        raise EncodeFailed(f"an image is uint8 or float (or uint16 in grey), got {array.dtype}.")
    return Image.fromarray(np.ascontiguousarray(array))


IMAGE_EXTENSIONS = words(
    "bmp dib cur pcx dcx dds fli flc ftc ftu gbr gif png apng jp2 j2k jpc jpf jpx j2c icns ico im "
    "tif tiff jfif jpe jpg jpeg msp pcd pxr pbm pgm ppm pnm psd bw rgb rgba sgi ras tga icb vda vst "
    "webp xbm xpm"
)
"""Fields with these extensions are images to `decode("rgb")` and its like."""

# Pillow would try every format it knows, whatever the field is called. These are the ones that hold
# pixels and run no other program; those without a mark of their own only where the name asks for them.
FORMATS = (
    "PNG JPEG WEBP GIF BMP TIFF PPM JPEG2000 AVIF ICO ICNS CUR DIB PCX DCX DDS FLI FTEX GBR IM MSP PCD "
    "PIXAR PSD SGI SUN XBM XPM QOI"
)
UNMARKED = dict.fromkeys(("tga", "icb", "vda", "vst"), f"{FORMATS} TGA")

imagespecs: dict[str, tuple[str, str | None, str]] = {
    f"{prefix}{mode}{depth}": (prefix or "numpy", "uint8" if depth else "float", mode)
    for prefix in ("", "torch")
    for depth in ("8", "")
    for mode in ("l", "rgb", "rgba")
} | {
    "torch": ("torch", "float", "rgb"),
    "pill": ("pil", None, "l"),
    "pil": ("pil", None, "rgb"),
    "pilrgb": ("pil", None, "rgb"),
    "pilrgba": ("pil", None, "rgba"),
}
"""What each spec stands for: library, element type, colour mode."""

_KEEPS_DEPTH = ("pil", "pill")
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")


class ImageHandler(FieldHandler):
    """Decodes images as the spec says: see `imagespecs` for their names.

    With `fast`, JPEGs are decoded a little faster and a little less exactly: colours are not smoothed where
    the file has fewer of them than pixels, as most have.
    """

    def __init__(
        self, imagespec: str, extensions: str | Iterable[str] = IMAGE_EXTENSIONS, *, fast: bool = False
    ) -> None:
        self.imagespec = imagespec.lower()
        self.fast = fast
        if self.imagespec not in imagespecs:
            raise ValueError(f"no image spec is called {imagespec!r}; there are {', '.join(imagespecs)}")
        if fast and imagespecs[self.imagespec][0] == "pil":
            raise ValueError(
                f"Pillow decodes {imagespec}, and always exactly; fast is for arrays and tensors"
            )
        names = extensions.split() if isinstance(extensions, str) else extensions
        self.extensions = frozenset(name.lower() for name in names)

    def find(self, key: str, settings: Settings) -> Function | None:
        extension = extension_of(key)
        if extension not in self.extensions:
            return None
        formats = UNMARKED.get(extension, FORMATS)
        most = settings.limits.pixels
        return partial(decode_image, spec=self.imagespec, formats=formats, most=most, fast=self.fast)

    def __repr__(self) -> str:
        return f"ImageHandler({self.imagespec!r}{', fast=True' if self.fast else ''})"


def imagehandler(
    imagespec: str, extensions: str | Iterable[str] = IMAGE_EXTENSIONS, *, fast: bool = False
) -> ImageHandler:
    """Make a handler that decodes images as `imagespec` says."""
    return ImageHandler(imagespec, extensions, fast=fast)


def decode_image(data: bytes, spec: str, formats: str, most: int, fast: bool = False) -> Any:
    """Decode an image of one of these formats, of so many pixels at most, to what the spec says."""
    kind, element, mode = imagespecs[spec]
    mode = mode.upper()
    if kind == "pil":
        image = open_image(data, formats, most)
        if image.mode in _DEEP:
            if spec in _KEEPS_DEPTH:
                return image.copy()
            _warn_if_clipped(image, spec)
        return image.convert(mode)
    pixels = _pixels(data, spec, mode, formats, most, fast)
    import numpy as np

    if kind == "torch":
        torch = import_extra("torch", "torch", f"images as {spec}")
        if pixels.ndim == 3:
            pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    if element == "float":
        # The same values as dividing floats, without a first pass to make them floats.
        pixels = np.divide(pixels, np.float32(255), dtype=np.float32)
    elif not pixels.flags.writeable:
        pixels = pixels.copy()
    return torch.from_numpy(pixels) if kind == "torch" else pixels


def _pixels(data: bytes, spec: str, mode: str, formats: str, most: int, fast: bool) -> Array:
    """Return HxW or HxWxC bytes, as Pillow's `convert` gives them, or nearly so."""
    import numpy as np

    if data.startswith(b"\xff\xd8\xff"):
        pixels = _jpeg(data, mode, most, fast)
        if pixels is not None:
            return pixels
    image = open_image(data, formats, most)
    if image.mode in _DEEP:
        _warn_if_clipped(image, spec)
    return np.asarray(image.convert(mode))


def _jpeg(data: bytes, mode: str, most: int, fast: bool) -> Array | None:
    """Decode a JPEG, as Pillow does bit by bit unless `fast`; None leaves it to Pillow."""
    import simplejpeg

    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        check_pixels(width, height, most)
        if colours not in ("YCbCr", "RGB", "Gray"):
            return None  # CMYK: Pillow knows the inversions that programs make
        if mode == "L" and colours != "Gray":
            return None  # the luma channel of the file is rounded differently from Pillow's grey
        wanted = "GRAY" if mode == "L" else mode
        pixels: Array = simplejpeg.decode_jpeg(data, wanted, fastdct=fast, fastupsample=fast)
    except DecompressionBomb:
        raise
    except ValueError:
        return None  # damaged: Pillow decides whether it can still be read
    return pixels[:, :, 0] if mode == "L" else pixels


@lru_cache
def _known(formats: str) -> list[str]:
    """Return the formats that the installed Pillow has."""
    from PIL import Image

    Image.init()
    return [name for name in words(formats) if name in Image.OPEN]


def open_image(data: bytes, formats: str, most: int) -> Image:
    """Open an image without decoding it, and refuse it if it has too many pixels."""
    from PIL import Image, UnidentifiedImageError

    peek_size(data, most)
    try:
        image = Image.open(io.BytesIO(data), formats=_known(formats))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        what = f"Pillow: {error}".rstrip(".") + "."
        raise DecompressionBomb(what, hint="PIL.Image.MAX_IMAGE_PIXELS, if the data is trusted.") from error
    except UnidentifiedImageError as error:
        raise DecodeFailed(f"{len(data)} bytes are no image of a known format.") from error
    check_pixels(*image.size, most)
    return image


def _warn_if_clipped(image: Image, spec: str) -> None:
    """Say so when an image has values that the 8 bits of the spec cannot hold: large, negative, fractions."""
    extrema: Any = image.getextrema()
    low, high = extrema
    if low < 0 or high > 255 or image.mode == "F":
        warnings.warn(
            f"an image with values from {low:g} to {high:g} is clipped to whole numbers up to 255 by {spec}; "
            "decode it as pil, or with a handler of your own",
            TarmacWarning,
            stacklevel=2,
        )
