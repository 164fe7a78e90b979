"""One shared cluster for the tests that do not disturb it, what tests of TLS need, and logs for tests that fail."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from certificates import TOKEN, Authority
from harness import Cluster, cluster, load_prompts, pytest_runtest_makereport  # noqa: F401


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    with cluster() as c:
        yield c


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    return load_prompts()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "strangers")


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(f"{TOKEN}\n")
    return path
