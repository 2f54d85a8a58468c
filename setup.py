"""Builds the native extension; everything else about the package is in pyproject.toml."""

from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

# -ffp-contract=off: an fma stands in the source where one is meant, or instruction sets would differ in their bits.
# Never -ffast-math, least of all when linking: it turns subnormals off for the whole Python process.
# -Wno-maybe-uninitialized: GCC 12's own AVX-512 headers trip it.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-pthread",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-g0",
    "-Wno-maybe-uninitialized",
]

native = Extension(
    "embed.cpu._native",
    # All of csrc/cpu/isa, whatever the machine: the compiler leaves out what isn't for the one it builds for.
    sources=["embed/cpu/_native.pyx", *sorted(glob("csrc/cpu/**/*.cc", recursive=True))],
    depends=glob("csrc/cpu/**/*.h", recursive=True),
    include_dirs=["csrc/cpu"],
    extra_compile_args=FLAGS,
    extra_link_args=["-pthread"],
    language="c++",
)

setup(ext_modules=cythonize([native]))
