"""The targets that the images build."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ["OUTRIDER_BIN"])


def linked(targets: list[str]) -> set[str]:
    """The plug-ins that ninja links for these targets."""
    commands = subprocess.run(["ninja", "-C", BIN.parent, "-t", "commands", *targets], check=True, capture_output=True,
                              text=True).stdout
    return set(re.findall(r" -o bin/(liboutrider_\w+\.so) ", commands))


def test_they_have_the_plug_ins_that_were_asked_for() -> None:
    """A plug-in that scripts/install got the libraries for is built with the programs."""
    text = (ROOT / "deploy/docker/Dockerfile").read_text()
    targets = re.search(r"scripts/build release ((?:[\w-]+ )+)", text)[1].split()
    plugins = {path.name for path in BIN.glob("liboutrider_*.so")}
    assert linked(targets) == plugins
    assert linked([target for target in targets if target != "plugins"]) == set(), "else this shows nothing"
