#!/usr/bin/env python3
"""Checks the protos with buf: their style, and their compatibility with the landed protos.

  .venv/bin/python scripts/protos.py check              style, compatibility, and whether landed.binpb is up to date
  .venv/bin/python scripts/protos.py land [--breaking]  checks style and compatibility, then writes landed.binpb for the
                                                        commit that changes the protos; --breaking for an intended
                                                        breaking change

proto/landed.binpb is the protos of the last commit that changed them, as a google.protobuf.FileDescriptorSet. Since
each change renews it, a field is protected from its first commit on.
"""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
PROTO, LANDED = ROOT / "proto", ROOT / "proto" / "landed.binpb"
BUF = Path(sys.executable).parent / "buf"


def build(proto: Path, out: Path, *, comments: bool = False) -> Path:
    """Writes the descriptors of all protos in the folder, with what they import, to `out`."""
    google_rpc = Path(importlib.util.find_spec("google.rpc.status_pb2").origin).parents[2]
    well_known = Path(protoc.__file__).parent / "_proto"
    files = sorted(str(path.relative_to(proto)) for path in proto.rglob("*.proto"))
    arguments = [f"-I{proto}", f"-I{google_rpc}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={out}"]
    if comments:
        arguments.append("--include_source_info")
    if protoc.main(["protoc", *arguments, *files]) != 0:
        raise SystemExit("protos: protoc failed")
    return out


def buf(*arguments: str | Path) -> list[str]:
    """buf's complaints, a line each."""
    done = subprocess.run([BUF, *arguments, "--config", ROOT / "buf.yaml", "--path", "outrider"], capture_output=True,
                          text=True)
    complaints = (done.stdout + done.stderr).splitlines()
    assert bool(complaints) == (done.returncode != 0), f"buf: exit code {done.returncode}, {complaints}"
    return complaints


def wrong_style(proto: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as scratch:
        return buf("lint", build(proto, Path(scratch) / "image.binpb", comments=True))


def broken(proto: Path, landed: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as scratch:
        return buf("breaking", build(proto, Path(scratch) / "image.binpb"), "--against", landed)


def own_files(image: Path) -> dict[str, bytes]:
    """The descriptors of this project's files by name, without imported ones."""
    files = FileDescriptorSet.FromString(image.read_bytes()).file
    return {file.name: file.SerializeToString(deterministic=True)
            for file in files if file.name.startswith("outrider/")}


def outdated(proto: Path, landed: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as scratch:
        now, then = own_files(build(proto, Path(scratch) / "image.binpb")), own_files(landed)
    return [f"{name}: has changed since proto/landed.binpb was made; scripts/protos.py land renews it"
            for name in sorted(now.keys() | then.keys()) if now.get(name) != then.get(name)]


def land(proto: Path, landed: Path, *, breaking: bool) -> list[str]:
    """Renews `landed`, or returns why not."""
    wrong = wrong_style(proto) + (broken(proto, landed) if landed.exists() and not breaking else [])
    if not wrong:
        build(proto, landed)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="check style, compatibility and landed.binpb")
    land_command = commands.add_parser("land", help="check style and compatibility, then write landed.binpb")
    land_command.add_argument("--breaking", action="store_true", help="skip the compatibility check")
    arguments = parser.parse_args()
    if arguments.command == "land":
        wrong = land(PROTO, LANDED, breaking=arguments.breaking)
    else:
        wrong = wrong_style(PROTO) + broken(PROTO, LANDED) + outdated(PROTO, LANDED)
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
