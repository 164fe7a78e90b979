"""What a target proposes with: the shipped heads, and LayerSkip, which needs no weights."""

import json
from pathlib import Path

from harness import ROOT, cluster, inference_pb2

SHIPPED = {json.loads(path.read_text())["proposer"]: path.parent
           for path in sorted((ROOT / "models" / "tiny-heads").glob("*/config.json"))}
PROPOSERS = sorted(SHIPPED | {"layer_skip": None})


def folders(tmp_path: Path) -> dict[str, Path]:
    """A folder for each proposer; what is not shipped is written under `tmp_path`."""
    if "layer_skip" in SHIPPED:
        return SHIPPED
    with cluster(draft=None) as c:
        target = c.stub.Describe(inference_pb2.DescribeRequest()).target
    folder = tmp_path / "layer_skip"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "proposer": "layer_skip", "target_weights_hash": f"{target.weights_hash:016x}", "hidden_size": 384,
        "vocab_size": target.vocab_size, "exit_layer": 2}))
    return SHIPPED | {"layer_skip": folder}


def flags(tmp_path: Path) -> list[str]:
    """Of a target that has all of them."""
    return [part for folder in folders(tmp_path).values() for part in ("--heads", str(folder))]
