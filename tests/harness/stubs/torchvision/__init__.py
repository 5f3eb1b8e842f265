"""The names of torchvision that open_clip imports, without what they do: the tests need none of it.

torchvision itself has no build for the torch that the tests install.
"""

__version__ = "0.0"
