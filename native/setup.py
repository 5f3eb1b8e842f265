"""Needs a C compiler and the headers of libjpeg-turbo: `apt-get install libjpeg-dev`."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("tarmac_jpeg", ["tarmac_jpeg.c"], libraries=["jpeg"])])
