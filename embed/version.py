"""The version, alone in a module that imports nothing, for setuptools to read."""

__version__ = "0.1.0"
