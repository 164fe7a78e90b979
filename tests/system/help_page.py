"""What --help of a program says."""

import re
import subprocess
from pathlib import Path

from harness import BIN, PATIENCE

# A flag, other names of it, and what it takes: `TEXT=127.0.0.1:7072`, `INT in [0 - 1024]=0`, `{token,block}`, `TEXT, required`, or nothing.
FLAG = re.compile(r"^ +(?:-\w,)?(--[\w-]+)(?:,\S+)?(?: (\S.*?))?(?: {2,}.*)?$", re.M)


def help_of(program: str, *command: str, folder: Path = BIN) -> str:
    """Of a program, or of one of its commands."""
    done = subprocess.run([folder / program, *command, "--help"], check=True, capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout


def flags_of(program: str, *command: str, folder: Path = BIN) -> dict[str, str]:
    """Each flag by its first name, with what it takes."""
    return dict(FLAG.findall(help_of(program, *command, folder=folder)))


def takes_a_value(described: str) -> bool:
    return re.match(r"[A-Z{]", described) is not None


def default_of(described: str) -> str:
    return described.partition("=")[2]
