"""The output of a program with --help."""

import re
import subprocess
from pathlib import Path

from harness import BIN, PATIENCE

# A flag, its other names, and what it takes: `TEXT=127.0.0.1:7072`, `INT in [0 - 1024]=0`, `{token,block}`, `TEXT, required`, or nothing.
FLAG = re.compile(r"^ +(?:-\w,)?(--[\w-]+)(?:,\S+)?(?: (\S.*?))?(?: {2,}.*)?$", re.M)


def help_of(program: str, *command: str, folder: Path = BIN) -> str:
    """The help of a program, or of one of its commands."""
    done = subprocess.run([folder / program, *command, "--help"], check=True, capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout


def flags_of(program: str, *command: str, folder: Path = BIN) -> dict[str, str]:
    """What each flag takes, by the flag's first name."""
    return dict(FLAG.findall(help_of(program, *command, folder=folder)))


def takes_a_value(described: str) -> bool:
    return re.match(r"[A-Z{]", described) is not None


def default_of(described: str) -> str:
    return described.partition("=")[2]
