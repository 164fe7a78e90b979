"""The libraries and the exports of the plug-in on libtorch: nothing that could conflict with the programs beside it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

BIN = Path(os.environ["OUTRIDER_BIN"])
PLUGIN = BIN / "liboutrider_torch.so"

pytestmark = pytest.mark.skipif(not PLUGIN.exists(), reason="built without libtorch")


def needed(file):
    dynamic = subprocess.run(["readelf", "--wide", "--dynamic", file], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(\S+?)\.so", dynamic))


def symbols(file, *options):
    listed = subprocess.run(["nm", "-DC", *options, file], check=True, capture_output=True, text=True).stdout
    return [line.split(maxsplit=2)[-1] for line in listed.splitlines()]


def libraries():
    """The plug-in's libraries, and where the loader finds them."""
    listed = subprocess.run(["ldd", PLUGIN], check=True, capture_output=True, text=True).stdout
    return dict(re.findall(r"(\S+?)\.so\S* => (\S+)", listed))


def test_it_exports_one_function():
    assert symbols(PLUGIN, "--defined-only") == ["outrider_create_torch_model"]


def test_so_does_its_part_that_calls_cuda():
    part = BIN / "liboutrider_torch_cuda.so"
    if not part.exists():
        pytest.skip("built without CUDA")
    assert symbols(part, "--defined-only") == ["outrider_create_torch_cuda_runner"]
    assert {"libtorch_cuda", "libc10_cuda", "libcudart"} <= needed(part)


def test_it_links_to_the_parts_of_libtorch_that_need_no_gpu():
    assert {"libtorch_cpu", "libc10"} <= needed(PLUGIN)
    assert not needed(PLUGIN) & {"libtorch", "libtorch_cuda", "libc10_cuda", "libprotobuf", "libgrpc", "libgrpc++"}


@pytest.mark.parametrize("program", ["outrider", "outrider-coordinator", "outrider-draft", "outrider-target",
                                     "outrider-pair"])
def test_no_program_links_to_it(program):
    assert not [name for name in needed(BIN / program) if re.search("torch|c10|outrider", name)]


def test_protobuf_and_libtorch_do_not_meet():
    """libtorch has a protobuf of its own inside. It must neither export it nor use that of others: functions of the same name
    would be bound across the two versions."""
    own = re.compile(r"(typeinfo|typeinfo name|vtable|guard variable) for google::protobuf::|google::protobuf::")
    for library in ("libtorch_cpu", "libc10"):
        for options in (["--defined-only"], ["--undefined-only"]):
            assert [name for name in symbols(libraries()[library], *options) if own.match(name)] == []
