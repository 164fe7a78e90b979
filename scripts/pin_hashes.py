#!/usr/bin/env python3
"""Writes the wheels' hashes after each requirement of the given files, as the package index has them today.

    .venv/bin/python scripts/pin_hashes.py scripts/requirements*.txt

scripts/install makes pip check these (--require-hashes). Only wheels that run on Linux with glibc, on x86-64 or ARM64, with
CPython 3.11 or newer count. Run it after a version in such a file has changed.
"""

import json
import re
import sys
import urllib.request
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

INDEX = "https://pypi.org/simple"
OLDEST = 11  # the oldest minor version of CPython 3
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)==([^\s\\]+)")


def runs_here(file: str, version: Version) -> bool:
    """Whether the file is a wheel of that version that may be installed."""
    try:
        _, found, _, tags = parse_wheel_filename(file)
    except InvalidWheelFilename:  # a very old name, or not a wheel
        return False
    for tag in tags if found == version else ():
        machine = tag.platform == "any" or re.fullmatch(r"(many)?linux.*(x86_64|aarch64)", tag.platform)
        python = re.fullmatch(r"(py|cp)(\d)(\d*)", tag.interpreter)
        minor = int(python[3] or 0) if python else -1
        fits = python and python[2] == "3" and (tag.abi in ("none", "abi3") or (tag.abi == tag.interpreter and minor >= OLDEST))
        if machine and fits:
            return True
    return False


def hashes_of(name: str, version: str) -> list[str]:
    asked = urllib.request.Request(f"{INDEX}/{re.sub(r'[-_.]+', '-', name).lower()}/", headers={
        "Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(asked) as answer:
        files = json.load(answer)["files"]
    wheels = [file["hashes"]["sha256"] for file in files if runs_here(file["filename"], Version(version))]
    sources = [file["hashes"]["sha256"] for file in files if file["filename"].endswith(".tar.gz")
               and not wheels and parse_sdist_filename(file["filename"])[1] == Version(version)]
    if not wheels and not sources:
        sys.exit(f"pin_hashes: the index has no {name} {version} for these machines")
    return sorted({*wheels, *sources})


def pin(file: Path) -> None:
    lines = []
    for line in file.read_text().splitlines():
        if line.lstrip().startswith("--hash="):
            continue
        requirement = REQUIREMENT.match(line)
        if requirement is None:
            lines.append(line)
            continue
        hashes = hashes_of(*requirement.groups())
        lines += [f"{requirement[0]} \\", *(f"    --hash=sha256:{each} \\" for each in hashes[:-1]), f"    --hash=sha256:{hashes[-1]}"]
    file.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    for path in sys.argv[1:]:
        pin(Path(path))
