"""The C++ SDK as its users use it: installed, found by CMake, and linked by a program outside this tree."""

import re
import subprocess
from pathlib import Path

import pytest

from harness import BIN, PATIENCE, ROOT, Cluster, cluster

Program = subprocess.CompletedProcess[str]


def cmake(*arguments: str | Path) -> None:
    done = subprocess.run(["cmake", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdk")
    cmake("--install", BIN.parent, "--component", "sdk", "--prefix", folder / "sdk")
    cmake("-S", ROOT / "client" / "sdk" / "example", "-B", folder / "build", "-G", "Ninja",
          f"-DCMAKE_PREFIX_PATH={folder / 'sdk'}", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    cmake("--build", folder / "build")
    return folder / "build" / "continue"


def test_the_readme_shows_what_the_example_does() -> None:
    folder = ROOT / "client" / "sdk"
    blocks = re.findall(r"^```(cmake|cpp)\n(.*?)^```", (folder / "README.md").read_text(), re.M | re.S)
    files = {"cmake": "CMakeLists.txt", "cpp": "continue.cc"}
    assert {language for language, _ in blocks} == files.keys()
    for language, block in blocks:
        lines = (folder / "example" / files[language]).read_text().splitlines()
        assert [line for line in block.splitlines() if line not in lines] == []


def run(example: Path, address: str, *arguments: str) -> Program:
    return subprocess.run([example, address, *arguments], capture_output=True, text=True, timeout=PATIENCE)


def test_the_example_gives_the_services_text(example: Path, pair: Cluster, prompts: list[str]) -> None:
    done = run(example, pair.coordinator.address, prompts[0])
    assert done.returncode == 0, done.stderr
    answer = pair.generate(prompts[0], temperature=0, max_tokens=40)
    assert done.stdout == answer.text
    assert done.stderr.startswith(f"\n{len(answer.tokens)} tokens, ")


def test_errors_name_the_field(example: Path, pair: Cluster, prompts: list[str]) -> None:
    done = run(example, pair.coordinator.address, prompts[0], "-1")
    assert done.returncode == 1
    assert "(reason FIELD_INVALID, field sampling.temperature)" in done.stderr


def test_a_program_waits_for_a_coordinator_that_waits_for_its_target(example: Path, prompts: list[str]) -> None:
    with cluster() as c:
        wanted = c.generate(prompts[1], temperature=0, max_tokens=40).text
        c.kill(c.target)
        program = subprocess.Popen([example, c.coordinator.address, prompts[1]], stdout=subprocess.PIPE, text=True)
        c.restart_target()
        assert program.communicate(timeout=PATIENCE)[0] == wanted
        assert program.returncode == 0
