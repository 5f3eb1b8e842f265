"""Accelerators for tarmac, which gives the same results without them.

`jpeg` decodes parts of JPEGs. It is missing if the headers of libjpeg-turbo were not there at build time.
"""
