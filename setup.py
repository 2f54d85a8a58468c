"""Builds the native extension; everything else about the package is in pyproject.toml."""

from glob import glob
from platform import machine

from Cython.Build import cythonize
from setuptools import Extension, setup

# What each machine can run; any other builds the scalar kernels alone.
INSTRUCTION_SETS = {
    "x86_64": ["avx2", "avx512"],
    "aarch64": ["neon"],
}

# -ffp-contract=off: an fma stands in the source where one is meant, or instruction sets would differ in their bits.
# Never -ffast-math, least of all when linking: it turns subnormals off for the whole Python process.
# -Wno-maybe-uninitialized: GCC 12's own AVX-512 headers trip it.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fopenmp",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-g0",
    "-Wno-maybe-uninitialized",
]

native = Extension(
    "embed.cpu._native",
    sources=[
        "embed/cpu/_native.pyx",
        *(f"csrc/cpu/{name}.cc" for name in ("arena", "dispatch", "encoder", "single")),
        *(f"csrc/cpu/isa/{name}.cc" for name in ["scalar", *INSTRUCTION_SETS.get(machine(), [])]),
    ],
    depends=glob("csrc/cpu/**/*.h", recursive=True),
    include_dirs=["csrc/cpu"],
    extra_compile_args=FLAGS,
    extra_link_args=["-fopenmp"],
    language="c++",
)

setup(ext_modules=cythonize([native]))
