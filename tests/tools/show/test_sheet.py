"""Contact sheets."""

from __future__ import annotations

import io

import pytest
from PIL import Image, ImageFont

from tarmac.errors import NoSamples, UsageError
from tarmac.tools.show.sheet import GAP, SIDE, contact_sheet, readable, write_sheet
from tarmac.tools.show.verb import SampleView

RED = (250, 10, 10)


def image(size=(400, 100), kind="PNG", mode="RGB"):
    stream = io.BytesIO()
    Image.new(mode, size, RED if mode == "RGB" else 128).save(stream, kind)
    return stream.getvalue()


def samples(*images):
    for number, (name, data) in enumerate(images):
        caption = "a caption – é\x1b[31m\nmore".encode() * 20
        yield SampleView(f"k{number}", "", {name: data, "txt": caption})


def test_images_are_drawn():
    page, count = contact_sheet(samples(("png", image()), ("jpg", image(kind="JPEG")), ("png", b"no image")))
    assert count == 3
    assert page is not None
    middle = GAP + SIDE // 2
    assert page.getpixel((middle, middle)) == RED
    assert page.getpixel((middle, GAP + 2)) == (255, 255, 255)  # wider than high, so white above
    assert all(abs(a - b) < 9 for a, b in zip(page.getpixel((middle + SIDE + GAP, middle)), RED, strict=True))
    grey = page.getpixel((GAP + 2, page.height // 2 + GAP + 10))
    assert grey == (211, 211, 211)


def test_the_number_of_images_is_bounded():
    endless = (sample for sample in samples(*[("png", image((9, 9)))] * 50))
    page, count = contact_sheet(endless, 5)
    assert (count, page is None) == (5, False)
    assert len(list(endless)) == 45


def test_files(tmp_path):
    for name, kind in (("a.png", "PNG"), ("a.JPG", "JPEG"), ("a.webp", "WEBP")):
        path = tmp_path / name
        assert write_sheet(samples(("png", image(mode="L"))), str(path)) == 1
        with Image.open(path) as page:
            assert page.format == kind
    with pytest.raises(NoSamples):
        write_sheet(samples(("txt", b"")), str(tmp_path / "b.png"))
    with pytest.raises(UsageError, match=r"b\.gif"):
        write_sheet(samples(), str(tmp_path / "b.gif"))
    assert not (tmp_path / "b.png").exists()


def test_letters_that_the_font_lacks_are_no_boxes():
    font = ImageFont.load_default()
    box = bytes(font.getmask("\uffff"))
    shown = readable("größe – Ünï 日本\x1b", font)
    assert len(shown) == len("größe – Ünï 日本\x1b")
    assert not [letter for letter in shown if letter != " " and bytes(font.getmask(letter)) == box]
    assert readable("plain text, 100 %?", font) == "plain text, 100 %?"
