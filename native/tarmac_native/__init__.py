"""Accelerators for tarmac, which gives the same results without them.

`tar` reads runs of ordinary samples, `jpeg` decodes parts of JPEGs, `pixels` resizes images. `jpeg` is missing if the
headers of libjpeg-turbo were not there at build time.
"""
