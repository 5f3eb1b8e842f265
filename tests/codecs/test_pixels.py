"""Image bombs raise by their header, before memory is allocated."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tarmac.codecs import Decoder, imagehandler
from tarmac.codecs.pixels import check_pixels, peek_size
from tarmac.errors import DecompressionBomb
from tarmac.limits import Limits

MAX_PIXELS = 64_000_000


def png(width, height, extra=b""):
    def part(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    pixels = zlib.compress(bytes(1 << 20))
    header = part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + part(b"IDAT", pixels) + part(b"IEND", b"")


def jpeg(width, height):
    stream = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), "u1")).save(stream, "JPEG")
    data = bytearray(stream.getvalue())
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def webp(chunk_type, width, height):
    if chunk_type == b"VP8X":
        body = bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    elif chunk_type == b"VP8L":
        body = b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little") + bytes(20)
    else:
        body = bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height) + bytes(20)
    chunk = chunk_type + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def tiff(width, height):
    tags = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 1, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 1),
        (273, 4, 1, 200),
    ]
    tags += [(277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, 100)]
    body = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    return b"II*\x00" + struct.pack("<I", 8) + body + bytes(200)


def bmp(width, height):
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + 100, 0, 0, 54) + head + bytes(100)


def gif(width, height):
    return (
        b"GIF89a"
        + struct.pack("<HH", width, height)
        + b"\x00\x00\x00,\x00\x00\x00\x00"
        + struct.pack("<HH", width, height)
        + b"\x00\x02\x02\x44\x01\x00;"
    )


def ico(width, height):
    inner = png(width, height)
    return struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 0, 0, 0, 0, 1, 32, len(inner), 22) + inner


def icns(name, inner):
    block = name + struct.pack(">I", 8 + len(inner)) + inner
    return b"icns" + struct.pack(">I", 8 + len(block)) + block


J2K = b"\xff\x4f\xff\x51" + struct.pack(">HHII", 41, 0, 60000, 60000) + bytes(60)
BOMBS = {
    "png 50k": png(50_000, 50_000),
    "png 2^31": png(2**31 - 1, 2**31 - 1),
    "png 10k": png(10_000, 10_000),
    "png wide": png(2**31 - 1, 1),
    "apng": png(40_000, 40_000, struct.pack(">I", 8) + b"acTL" + struct.pack(">IIi", 9, 0, 0)),
    "jpeg": jpeg(65_500, 65_500),
    "jpeg 9k": jpeg(9_000, 9_000),
    "jpeg flat": jpeg(65_500, 1_000),
    "webp": webp(b"VP8X", 1 << 24, 1 << 24),
    "webp 16k": webp(b"VP8X", 16_000, 16_000),
    "webp lossless": webp(b"VP8L", 16_383, 16_383),
    "webp lossy": webp(b"VP8 ", 16_383, 16_383),
    "tiff": tiff(100_000, 100_000),
    "tiff 12k": tiff(12_000, 12_000),
    "bmp": bmp(60_000, 60_000),
    "bmp upside down": bmp(60_000, -60_000),
    "gif": gif(65_535, 65_535),
    "ppm": b"P6\n60000 60000\n255\n" + bytes(100),
    "pgm": b"P5\n60000 60000\n65535\n" + bytes(100),
    "pbm": b"P4\n90000 90000\n" + bytes(100),
    "icon": ico(12_000, 12_000),
    "icon 2^31": ico(2**31 - 1, 2**31 - 1),
    "icns png": icns(b"ic10", png(12_000, 12_000)),
    "icns j2k": icns(b"ic10", J2K),
    "j2k": J2K,
    "pcx": b"\x0a\x05\x01\x08" + struct.pack("<HHHH", 0, 0, 65_000, 65_000) + bytes(200),
    "psd": b"8BPS\x00\x01" + bytes(6) + struct.pack(">HIIHH", 3, 30_000, 30_000, 8, 3) + bytes(100),
    "sgi": b"\x01\xda\x00\x01" + struct.pack(">HHHH", 3, 60_000, 60_000, 3) + bytes(600),
    "dds": b"DDS " + struct.pack("<IIII", 124, 0x1007, 60_000, 60_000) + bytes(200),
    "xbm": b"#define x_width 60000\n#define x_height 60000\nstatic char x_bits[] = {\n0x00};",
    "qoi": b"qoif" + struct.pack(">IIBB", 60_000, 60_000, 3, 0) + bytes(50),
}

TESTS = Path(__file__).parent.parent
SCRIPT = """
import pathlib, resource, sys, warnings
sys.path.insert(0, sys.argv[2])
from harness.memory import peak
import numpy, PIL.Image, simplejpeg, torch
from tarmac.codecs import Decoder, imagehandler
from tarmac.errors import DecompressionBomb, DecodeFailed
warnings.simplefilter("ignore")
PIL.Image.init()
decoders = [Decoder([imagehandler(spec)]) for spec in ("rgb8", "l", "torchrgb", "pil")]
base = peak()
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    for decode in decoders:
        for field in ("jpg", "png"):
            try:
                decode({"__key__": path.name, field: path.read_bytes()})
            except DecompressionBomb:
                print("bomb", path.name)
            except DecodeFailed as error:
                print("failed", path.name, error)
            else:
                print("DECODED", path.name)
print("grown", (peak() - base) >> 20)
"""


def test_bombs_allocate_no_memory(tmp_path):
    for name, data in BOMBS.items():
        (tmp_path / name.replace(" ", "_")).write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(TESTS)],
        capture_output=True,
        text=True,
        check=True,
        timeout=1200,
    )
    lines = done.stdout.splitlines()
    assert not [line for line in lines if line.startswith("DECODED")]
    bombs = {line.split()[1] for line in lines if line.startswith("bomb")}
    others = [line for line in lines if line.startswith("failed")]
    assert len(bombs) >= 25, others
    assert int(lines[-1].split()[1]) < 64


def test_sizes_are_read_from_the_first_bytes():
    for name in (
        "png 10k",
        "png wide",
        "webp",
        "webp 16k",
        "webp lossless",
        "webp lossy",
        "icon",
        "icns png",
        "icns j2k",
    ):
        with pytest.raises(DecompressionBomb, match="pixels"):
            peek_size(BOMBS[name], MAX_PIXELS)
    for harmless in (
        b"",
        b"x",
        b"RIFF1234WEBP",
        b"RIFF1234WEBPVP8?" + bytes(30),
        b"\x89PNG\r\n\x1a\n",
        png(10, 10),
        ico(16, 16),
    ):
        peek_size(harmless, MAX_PIXELS)
    check_pixels(8000, 8000, MAX_PIXELS)
    with pytest.raises(DecompressionBomb):
        check_pixels(8000, 8001, MAX_PIXELS)


@pytest.mark.parametrize(
    ("mode", "lossless"), [("RGB", True), ("RGB", False), ("RGBA", False), ("RGBA", True)]
)
def test_sizes_of_real_webp(mode, lossless):
    from tarmac.codecs.pixels import _webp_size

    stream = io.BytesIO()
    shape = (77, 123, len(mode))
    Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, "u1")).save(
        stream, "WEBP", lossless=lossless
    )
    assert _webp_size(stream.getvalue()) == (123, 77)


def test_the_limit_of_pillow_still_applies():
    decode = Decoder([imagehandler("pil")], limits=Limits(pixels=10**12))
    with pytest.raises(DecompressionBomb, match=r'field "tif": Pillow: .*MAX_IMAGE_PIXELS'):
        decode({"tif": BOMBS["tiff"]})
