"""Codecs for images: encoded by Pillow, decoded by simplejpeg (JPEG) and Pillow (everything else).

A spec selects the result of decoding: `rgb8` is a NumPy array of uint8, `rgb` one of floats from 0 to 1,
`torchrgb` a tensor with the channels first, `pil` a Pillow image. `l` and `rgba` replace `rgb`.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from tarmac.codecs.handlers import DecodeFunction, DecodeOptions, FieldHandler, extension_of
from tarmac.codecs.pixels import check_pixels, peek_size
from tarmac.codecs.registry import Codec, find_codec, register_codec
from tarmac.errors import DecodeFailed, DecompressionBomb, EncodeFailed, TarmacWarning
from tarmac.extras import import_extra
from tarmac.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    Array = np.ndarray[Any, Any]

_OPTIONS: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 100},
    "PNG": {"compress_level": 4},  # Pillow's default, 6, takes up to three times as long on smooth images
    "PNG RGB": {"compress_level": 2},  # photos are as small at this level, in half the time
    "TIFF": {"compression": "raw"},
    "WEBP": {"lossless": True},
}
_TOLERANCE = 1e-3


def image_encoder(format: str, mode: str | None = None) -> Callable[[Any], bytes]:
    """Return an encoder for one Pillow format.

    It takes Pillow images and arrays: HxW, HxWx1, HxWx3 or HxWx4, of uint8 or floats from 0 to 1.
    """
    return partial(_encode, format=format, mode=mode)


def _encode(value: Any, format: str, mode: str | None) -> bytes:
    image = _to_pillow(value)
    if mode is not None:
        image = image.convert(mode)
    if format == "JPEG" and image.mode not in ("L", "RGB", "CMYK", "YCbCr"):
        raise EncodeFailed(
            f"JPEG does not support {image.mode} images.", hint='png, or image.convert("RGB").'
        )
    stream = io.BytesIO()
    options = _OPTIONS.get(f"{format} {image.mode}") or _OPTIONS.get(format, {})
    image.save(stream, format=format, **options)
    return stream.getvalue()


def _to_pillow(value: Any) -> Image:
    import numpy as np
    from PIL import Image

    if isinstance(value, Image.Image):
        return value
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise EncodeFailed(f"expected an image of shape HxW, HxWx1, HxWx3 or HxWx4, got {array.shape}.")
    if array.dtype.kind == "f":
        low, high = float(array.min(initial=0)), float(array.max(initial=0))
        if not (low > -_TOLERANCE and high < 1 + _TOLERANCE):  # rejects NaN, too
            raise EncodeFailed(f"expected floats from 0 to 1, got {low:g} to {high:g}.")
        if low < 0 or high > 1:
            array = np.clip(array, 0, 1)
        # In pieces of numpy's buffer: a temporary array would take as long as the multiplication.
        array = np.multiply(array, 255, out=np.empty(array.shape, np.uint8), casting="unsafe")
    if array.dtype != np.uint8 and not (array.dtype == np.uint16 and array.ndim == 2):
        raise EncodeFailed(f"expected uint8 or floats (or uint16 in grey), got {array.dtype}.")
    return Image.fromarray(np.ascontiguousarray(array))


_TGA_EXTENSIONS = "tga icb vda vst"
_EXTENSIONS = (
    "bmp dib cur pcx dcx dds fli flc ftc ftu gbr gif png apng jp2 j2k jpc jpf jpx j2c icns ico im tif tiff jfif "
    f"jpe jpg jpeg msp pcd pxr pbm pgm ppm pnm psd bw rgb rgba sgi ras {_TGA_EXTENSIONS} webp xbm xpm"
)
IMAGE_EXTENSIONS = _EXTENSIONS.split()
"""The fields that `decode("rgb")` and its variants decode, as in the webdataset library."""

# Pillow would try every format it knows, whatever the extension. These contain pixels and run no other
# program. TGA has no signature, so it is tried only for its own extensions.
FORMATS = (
    "PNG JPEG WEBP GIF BMP TIFF PPM JPEG2000 AVIF ICO ICNS CUR DIB PCX DCX DDS FLI FTEX GBR IM MSP PCD "
    "PIXAR PSD SGI SUN XBM XPM QOI"
)
_FORMATS_BY_EXTENSION = dict.fromkeys(_TGA_EXTENSIONS.split(), f"{FORMATS} TGA")

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
"""Library, element type and colour mode of each spec."""

_KEEPS_DEPTH = ("pil", "pill")
DIRECT_COLOURS = ("YCbCr", "RGB", "Gray")
"""JPEGs that simplejpeg decodes. CMYK is left to Pillow, which handles the inverted values that some programs write."""
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")


class ImageHandler(FieldHandler):
    """Decodes images according to a spec; `imagespecs` lists them.

    With `fast`, JPEGs are decoded faster and less exactly: subsampled colours are not smoothed.
    """

    def __init__(
        self, imagespec: str, extensions: str | Iterable[str] = IMAGE_EXTENSIONS, *, fast: bool = False
    ) -> None:
        self.imagespec = imagespec.lower()
        self.fast = fast
        if self.imagespec not in imagespecs:
            raise ValueError(f"unknown image spec {imagespec!r}: expected one of {', '.join(imagespecs)}")
        if fast and imagespecs[self.imagespec][0] == "pil":
            raise ValueError(f"fast=True requires arrays or tensors, got the Pillow spec {imagespec!r}")
        names = extensions.split() if isinstance(extensions, str) else extensions
        self.extensions = frozenset(name.lower() for name in names)

    def find(self, key: str, options: DecodeOptions) -> DecodeFunction | None:
        extension = extension_of(key)
        if extension not in self.extensions:
            return None
        formats = _FORMATS_BY_EXTENSION.get(extension, FORMATS)
        max_pixels = options.limits.pixels
        return partial(
            decode_image, spec=self.imagespec, formats=formats, max_pixels=max_pixels, fast=self.fast
        )

    def __repr__(self) -> str:
        return f"ImageHandler({self.imagespec!r}{', fast=True' if self.fast else ''})"


imagehandler = ImageHandler
"""The name in the webdataset library."""


def decode_image(data: bytes, spec: str, formats: str, max_pixels: int, fast: bool = False) -> Any:
    """Decode an image of one of these Pillow formats and of at most `max_pixels` pixels."""
    package, _, mode = imagespecs[spec]
    mode = mode.upper()
    if package == "pil":
        image = open_image(data, formats, max_pixels)
        return image.copy() if image.mode in _DEEP and spec in _KEEPS_DEPTH else _convert(image, mode, spec)
    return convert_pixels(_pixels(data, spec, mode, formats, max_pixels, fast), spec)


def convert_pixels(pixels: Array, spec: str) -> Any:
    """Return what a spec says, made of bytes that have its colours: height x width, or with channels last."""
    import numpy as np

    package, element, _ = imagespecs[spec]
    if package == "pil":
        return _to_pillow(pixels)
    if package == "torch":
        torch = import_extra("torch", "torch", f"{spec} images")
        if pixels.ndim == 3:
            pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    if element == "float":
        # Gives the same values as dividing floats, without converting first.
        pixels = np.divide(pixels, np.float32(255), dtype=np.float32)
    elif not pixels.flags.writeable:
        pixels = pixels.copy()
    return torch.from_numpy(pixels) if package == "torch" else pixels


def _pixels(data: bytes, spec: str, mode: str, formats: str, max_pixels: int, fast: bool) -> Array:
    """Return HxW or HxWxC bytes as Pillow's `convert` does; `fast` differs slightly."""
    import numpy as np

    pixels = _jpeg(data, mode, max_pixels, fast)
    if pixels is not None:
        return pixels
    return np.asarray(_convert(open_image(data, formats, max_pixels), mode, spec))


def _jpeg(data: bytes, mode: str, max_pixels: int, fast: bool) -> Array | None:
    """Decode a JPEG with the same result as Pillow, unless `fast`; None leaves it to Pillow."""
    header = jpeg_header(data)
    if header is None:
        return None
    import simplejpeg

    width, height, colours = header
    check_pixels(width, height, max_pixels)
    if colours not in DIRECT_COLOURS:
        return None
    if mode == "L" and colours != "Gray":
        return None  # simplejpeg rounds grey differently from Pillow
    wanted = "GRAY" if mode == "L" else mode
    try:
        pixels: Array = simplejpeg.decode_jpeg(data, wanted, fastdct=fast, fastupsample=fast)
    except ValueError:
        return None  # damaged: Pillow decides whether it is still readable
    return pixels[:, :, 0] if mode == "L" else pixels


def jpeg_header(data: bytes) -> tuple[int, int, str] | None:
    """Return width, height and colours of a JPEG; None leaves the image to Pillow."""
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    import simplejpeg

    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    return width, height, colours


@lru_cache
def _supported(formats: str) -> list[str]:
    """Return the formats that the installed Pillow supports."""
    from PIL import Image

    Image.init()
    return [name for name in formats.split() if name in Image.OPEN]


def open_image(data: bytes, formats: str, max_pixels: int) -> Image:
    """Open an image without decoding it; raise if it has too many pixels."""
    from PIL import Image, UnidentifiedImageError

    peek_size(data, max_pixels)
    try:
        image = Image.open(io.BytesIO(data), formats=_supported(formats))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        what = f"Pillow: {error}".rstrip(".") + "."
        raise DecompressionBomb(
            what, hint="raise PIL.Image.MAX_IMAGE_PIXELS if you trust the data."
        ) from error
    except UnidentifiedImageError as error:
        raise DecodeFailed(f"{len(data)} bytes are not an image in a known format.") from error
    check_pixels(*image.size, max_pixels)
    return image


def _convert(image: Image, mode: str, spec: str) -> Image:
    """Convert to 8 bits; warn if they cannot represent its values, which are large, negative or fractional."""
    if image.mode in _DEEP:
        extrema: Any = image.getextrema()
        low, high = extrema
        if low < 0 or high > 255 or image.mode == "F":
            warnings.warn(
                f"{spec} clips an image with values from {low:g} to {high:g} to integers from 0 to 255; "
                "decode it as pil, or with a custom handler",
                TarmacWarning,
                stacklevel=2,
            )
    return image.convert(mode)


def open_image_field(field: str, data: bytes, limits: Limits = DEFAULT_LIMITS) -> Image:
    """Open an image field as a Pillow image, through its registered codec if that can decode."""
    codec = find_codec(field)
    if codec is not None and codec.decode is not None:
        return _to_pillow(codec.decode(data))
    return open_image(data, _FORMATS_BY_EXTENSION.get(extension_of(field), FORMATS), limits.pixels)


_CHANNELS = {"Gray": 1, "CMYK": 4, "YCCK": 4}  # 3 for all others


def _image_attributes(data: bytes, limits: Limits, formats: str = FORMATS) -> dict[str, int]:
    if header := jpeg_header(data):
        width, height, colours = header
        check_pixels(width, height, limits.pixels)
        return {"width": width, "height": height, "channels": _CHANNELS.get(colours, 3)}
    image = open_image(data, formats, limits.pixels)
    return {"width": image.width, "height": image.height, "channels": len(image.getbands())}


_ENCODERS = {
    **dict.fromkeys(("jpg", "jpeg", "img", "image"), image_encoder("JPEG")),
    "ppm": image_encoder("PPM"),
    "pgm": image_encoder("PPM", mode="L"),
    "pbm": image_encoder("PPM", mode="1"),
    "png": image_encoder("PNG"),
    "webp": image_encoder("WEBP"),
    "bmp": image_encoder("BMP"),
    **dict.fromkeys(("tiff", "tif"), image_encoder("TIFF")),
}
# Images have no default decoder: only a spec such as `decode("rgb8")` selects their type.
for _extension in dict.fromkeys((*IMAGE_EXTENSIONS, *_ENCODERS)):
    register_codec(
        Codec(
            _extension,
            encode=_ENCODERS.get(_extension),
            kind="image",
            attributes=("width", "height", "channels"),
            read_attributes=partial(
                _image_attributes, formats=_FORMATS_BY_EXTENSION.get(_extension, FORMATS)
            ),
        )
    )
