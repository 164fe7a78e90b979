"""The harness of the system tests, logs for tests that fail, and the exact distributions of a prompt."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "system"))

from harness import (load_goldens, pytest_collection_modifyitems, pytest_configure,  # noqa: E402, F401
                     pytest_runtest_makereport)


@pytest.fixture(scope="module")
def goldens() -> dict[str, Any]:
    return load_goldens("distributions.json")


@pytest.fixture(scope="module")
def paths(goldens: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """The probability of every continuation of a few tokens under top_k."""
    return {tuple(path["tokens"]): path["p"] for path in goldens["top_k_paths"]}
