"""What the shipped target proposes with."""

import json

from harness import ROOT

SHIPPED = {json.loads(path.read_text())["proposer"]: path.parent
           for path in sorted((ROOT / "models" / "tiny-heads").glob("*/config.json"))}
PROPOSERS = sorted(SHIPPED)
# Of a target that has all of them.
FLAGS = [part for folder in SHIPPED.values() for part in ("--heads", str(folder))]
# Of one that does without a draft, and so has its processor too.
ALONE = [*FLAGS, "--threads", "2"]
