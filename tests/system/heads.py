"""The heads with which the shipped target makes its own proposals."""

import json

from harness import DEVICE, ROOT

SHIPPED = {json.loads(path.read_text())["proposer"]: path.parent
           for path in sorted((ROOT / "models" / "tiny-heads").glob("*/config.json"))}
# The proposers of a target: all on the CPU, none on a GPU, whose native engine has no heads.
PROPOSERS = sorted(SHIPPED) if DEVICE == "cpu" else []
# Flags of a target with all of them.
FLAGS = [part for name in PROPOSERS for part in ("--heads", str(SHIPPED[name]))]
# Flags of such a target without a draft service, whose processor it uses too.
ALONE = [*FLAGS, "--threads", "2"]
