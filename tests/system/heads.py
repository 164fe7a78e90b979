"""What the shipped target proposes with."""

import json

from harness import DEVICE, ROOT

SHIPPED = {json.loads(path.read_text())["proposer"]: path.parent
           for path in sorted((ROOT / "models" / "tiny-heads").glob("*/config.json"))}
# What a target has: all of them on the CPU, none on a GPU, whose native engine has no heads.
PROPOSERS = sorted(SHIPPED) if DEVICE == "cpu" else []
# Of a target that has all of them.
FLAGS = [part for name in PROPOSERS for part in ("--heads", str(SHIPPED[name]))]
# Of one that does without a draft, and so has its processor too.
ALONE = [*FLAGS, "--threads", "2"]
