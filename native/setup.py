"""Needs a C compiler; `jpeg` also needs the headers of libjpeg-turbo: `apt-get install libjpeg-dev`."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "tarmac_native.jpeg",
            ["jpeg.c", "huffman.c"],
            depends=["huffman.h"],
            libraries=["jpeg"],
            optional=True,
        ),
        Extension("tarmac_native.pixels", ["pixels.c"], optional=True),
        Extension("tarmac_native.tar", ["tar.c"], extra_compile_args=["-O3"], optional=True),
    ]
)
