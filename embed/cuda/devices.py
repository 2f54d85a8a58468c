"""Which CUDA devices there are, or why none."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class CudaDevice:
    name: str
    memory_bytes: int
    capability: str  # e.g. "9.0"


@dataclass(frozen=True)
class Cuda:
    """CUDA devices, or the reason why there are none."""

    devices: list[CudaDevice]
    missing: str | None


def cuda_devices() -> Cuda:
    """Ask CuPy for the CUDA devices. Takes a second where CuPy is installed, and leaves no context on a device."""
    if importlib.util.find_spec("cupy") is None:
        return Cuda([], "CuPy is not installed")
    try:
        from cupy.cuda import runtime  # type: ignore[import-not-found,unused-ignore]
    except ImportError as ex:
        return Cuda([], f"CuPy can't be imported: {_one_line(ex)}")
    try:
        count = runtime.getDeviceCount()
        devices = [_cuda_device(runtime.getDeviceProperties(i)) for i in range(count)]
    except runtime.CUDARuntimeError as ex:
        return Cuda([], _one_line(ex))
    return Cuda(devices, None if devices else "the CUDA driver shows no device")


def _cuda_device(properties: dict[str, object]) -> CudaDevice:
    name, memory_bytes = properties["name"], properties["totalGlobalMem"]
    assert isinstance(name, bytes)
    assert isinstance(memory_bytes, int)
    return CudaDevice(name.decode(), memory_bytes, f"{properties['major']}.{properties['minor']}")


def _one_line(ex: Exception) -> str:
    return " ".join(str(ex).split())[:300]
