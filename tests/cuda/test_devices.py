"""The probe for CUDA devices, on stand-ins for the few names of CuPy that it uses."""

import sys
import types

from embed.cuda import devices


class FakeError(RuntimeError):
    pass


def fake_cupy(monkeypatch, **runtime):
    module = types.ModuleType("cupy.cuda")
    module.runtime = types.SimpleNamespace(CUDARuntimeError=FakeError, **runtime)
    cupy = types.ModuleType("cupy")
    cupy.__spec__ = types.SimpleNamespace(name="cupy")
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", module)


def test_cuda_devices_are_named(monkeypatch):
    properties = {"name": b"NVIDIA H200", "totalGlobalMem": 150_000_000_000, "major": 9, "minor": 0}
    fake_cupy(monkeypatch, getDeviceCount=lambda: 2, getDeviceProperties=lambda i: properties)
    assert devices.cuda_devices() == devices.Cuda([devices.CudaDevice("NVIDIA H200", 150_000_000_000, "9.0")] * 2, None)


def test_no_driver_is_a_reason_not_an_error(monkeypatch):
    def fail():
        raise FakeError("cudaErrorInsufficientDriver:\n CUDA driver version is insufficient")

    fake_cupy(monkeypatch, getDeviceCount=fail)
    assert devices.cuda_devices() == devices.Cuda(
        [], "cudaErrorInsufficientDriver: CUDA driver version is insufficient"
    )


def test_no_device_is_a_reason(monkeypatch):
    fake_cupy(monkeypatch, getDeviceCount=lambda: 0)
    assert devices.cuda_devices() == devices.Cuda([], "the CUDA driver shows no device")


def test_a_broken_or_missing_cupy_is_a_reason(monkeypatch):
    fake_cupy(monkeypatch)
    monkeypatch.setitem(sys.modules, "cupy.cuda", types.ModuleType("cupy.cuda"))  # without `runtime`
    assert devices.cuda_devices().missing.startswith("CuPy can't be imported: cannot import name 'runtime'")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert devices.cuda_devices() == devices.Cuda([], "CuPy is not installed")
