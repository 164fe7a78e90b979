"""Generates the package outrider.v1 from the protos while a wheel is built; nothing generated is kept in the tree."""

import shutil
import tempfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

INIT = '"""The messages and services of the protocol, generated from proto/outrider/v1."""\n'


def protos_of(root: Path) -> Path:
    """The folder of the protos: within a source distribution, beside the package in a clone."""
    for folder in (root / "proto", root.parent / "proto"):
        if (folder / "outrider" / "v1").is_dir():
            return folder
    raise FileNotFoundError(f"no outrider/v1/*.proto in {root / 'proto'} or {root.parent / 'proto'}")


def generate(protos: Path, out: Path) -> Path:
    """The package outrider.v1, made under `out`."""
    status_proto = find_spec("google.rpc.status_pb2")
    assert status_proto is not None
    assert status_proto.origin is not None
    names = sorted(str(path) for path in protos.rglob("outrider/**/*.proto"))
    # Without services there is nothing for gRPC to generate.
    services = [name for name in names if "\nservice " in Path(name).read_text()]
    includes = [f"-I{protos}", f"-I{Path(status_proto.origin).parents[2]}", f"-I{files('grpc_tools') / '_proto'}"]
    for arguments in ([f"--python_out={out}", f"--pyi_out={out}", *names], [f"--grpc_python_out={out}", *services]):
        if protoc.main(["protoc", *includes, *arguments]) != 0:
            raise RuntimeError("protoc failed; its complaint is above")
    package = out / "outrider" / "v1"
    (package / "__init__.py").write_text(INIT)
    return package


class CustomBuildHook(BuildHookInterface):
    """Called by hatchling around the build of a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds what is generated to the wheel; an editable installation needs it beside the sources."""
        self.scratch = Path(tempfile.mkdtemp(prefix="outrider-protos-"))
        package = generate(protos_of(Path(self.root)), self.scratch)
        if version == "editable":
            beside = Path(self.root) / "src" / "outrider" / "v1"
            shutil.rmtree(beside, ignore_errors=True)
            shutil.copytree(package, beside)
        else:
            build_data["force_include"][str(package)] = "outrider/v1"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what was generated."""
        shutil.rmtree(self.scratch)
