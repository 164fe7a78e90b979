"""The plug-in as a file, and the pack that takes it to another machine."""

import ctypes
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("OUTRIDER_BIN", ROOT / "build" / "release" / "bin"))
PLUGIN = BIN / "liboutrider_cuda.so"
needs_plugin = pytest.mark.skipif(not PLUGIN.is_file(), reason="the plug-in is not built: no CUDA compiler in .venv")


def output(*command: str | Path, **variables: str) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True,
                          env=os.environ | variables).stdout


@needs_plugin
def test_the_plugin_exports_one_function():
    symbols = re.findall(r"^\S* [A-Za-z] (\S+)$", output("nm", "-D", "--defined-only", PLUGIN), re.M)
    assert symbols == ["outrider_create_cuda_model"]


@needs_plugin
def test_the_plugin_links_no_driver_and_looks_beside_itself_first():
    dynamic = output("readelf", "-d", PLUGIN)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert {"libcudart.so.13", "libcublasLt.so.13"} <= set(needed)
    assert not [name for name in needed if name.startswith("libcuda.")]
    assert re.search(r"\(RUNPATH\).*\[\$ORIGIN:", dynamic)


@needs_plugin
def test_the_plugin_loads_where_there_is_no_gpu():
    assert ctypes.CDLL(str(PLUGIN)).outrider_create_cuda_model is not None


RUN = runpy.run_path(str(ROOT / "bench" / "gpu" / "run"))
PACKED = [*RUN["PROGRAMS"], RUN["GTEST"], RUN["PLUGIN"]]


@pytest.fixture(scope="module")
def pack(tmp_path_factory) -> Path:
    if not all((BIN / name).is_file() for name in PACKED):
        pytest.skip("the plug-in or its tests are not built")
    folder = tmp_path_factory.mktemp("packed") / "pack"
    said = output(ROOT / "bench" / "gpu" / "pack", folder, OUTRIDER_BIN=str(BIN))
    assert re.match(rf"pack: \S+ in {folder}, \S+ in {folder}\.tar\.xz$", said)
    return folder


def test_a_pack_has_what_its_programs_link_to(pack):
    assert {file.name for file in (pack / "programs").iterdir()} >= set(PACKED)
    system = re.compile(r"(libc|libm|libdl|librt|libpthread|libutil|libstdc\+\+|libgcc_s|ld-linux-x86-64|ld-linux-aarch64)\.so")
    wheels = re.compile(r"lib(cudart|cublasLt|nccl|torch|c10)")
    for file in [*(pack / "programs").iterdir(), *(pack / "lib").iterdir()]:
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", file)):
            assert (pack / "lib" / name).is_file() or system.match(name) or wheels.match(name), (file.name, name)


def test_a_pack_is_small_enough_to_be_sent(pack):
    assert pack.with_name("pack.tar.xz").stat().st_size < 20 << 20


def test_its_modules_bring_their_protobuf_and_run_with_the_oldest_grpc_that_the_sdk_takes(pack):
    wanted = "import outrider, grpc_health.v1.health_pb2_grpc, google.rpc.status_pb2, google.protobuf as p; print(p.__file__)"
    assert output(sys.executable, "-c", wanted, PYTHONPATH=str(pack / "site")).startswith(str(pack / "site"))
    for name in ("outrider", "protobuf"):
        assert len(list((pack / "site").glob(f"{name}-*.dist-info"))) == 1
    assert len(list((pack / "site" / "google" / "_upb").glob("*.abi3.so"))) == 1
    generated = [file.read_text() for file in (pack / "site").rglob("*_pb2_grpc.py")]
    assert {re.search(r"GRPC_GENERATED_VERSION = '(.*)'", text)[1] for text in generated} == {"1.76.0"}
