"""Fixtures: a cluster for tests that do not disturb it, single servers, and certificates for TLS. Logs for tests that fail."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from certificates import TOKEN, Authority
from harness import (Cluster, Server, Stream, cluster, draft_stream, load_prompts, pytest_collection_modifyitems,  # noqa: F401
                     pytest_configure, pytest_runtest_makereport, running, start_draft, start_target, target_stream)


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


@pytest.fixture(scope="module")
def draft_server() -> Iterator[Server]:
    server = start_draft()
    with running(server):
        yield server


@pytest.fixture
def draft(draft_server: Server) -> Iterator[Stream]:
    with draft_stream(draft_server) as stream:
        yield stream


@pytest.fixture(scope="module")
def target_server() -> Iterator[Server]:
    server = start_target()
    with running(server):
        yield server


@pytest.fixture
def target(target_server: Server) -> Iterator[Stream]:
    with target_stream(target_server) as stream:
        yield stream
