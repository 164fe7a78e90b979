"""One shared cluster for the tests that do not disturb it, and logs for tests that fail."""

from collections.abc import Iterator

import pytest

from harness import Cluster, cluster, load_prompts, pytest_runtest_makereport  # noqa: F401


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    with cluster() as c:
        yield c


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    return load_prompts()
