"""Flags from the environment and from a file."""

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from harness import BIN, PATIENCE, TARGET_MODEL, Server, running

PROGRAMS = {"outrider-coordinator": ["--tokenizer", str(TARGET_MODEL)], "outrider-target": ["--model", str(TARGET_MODEL)],
            "outrider-draft": ["--model", str(TARGET_MODEL)]}


def run(program: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / program, *flags], env=os.environ | variables, capture_output=True, text=True, timeout=PATIENCE)


def printed(program: str, *flags: str, **variables: str) -> str:
    done = run(program, *flags, "--print-config", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.toml"
    file.write_text('max-requests = 5\nmax-waiting-requests = 6\nlog-level = "debug"\n')
    config = tomllib.loads(printed("outrider-coordinator", *PROGRAMS["outrider-coordinator"], "--max-requests=1", OUTRIDER_MAX_REQUESTS="2",
                                   OUTRIDER_MAX_WAITING_REQUESTS="3", OUTRIDER_CONFIG=str(file)))
    assert (config["max-requests"], config["max-waiting-requests"], config["log-level"]) == (1, 3, "debug")


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_printed_is_a_file_that_says_the_same(program: str, tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    file.write_text(printed(program, *PROGRAMS[program], "--drain", "7"))
    assert tomllib.loads(file.read_text())["drain"] == 7
    file.write_text(printed(program, "--config", str(file)))  # in the file, some words are numbers
    assert printed(program, "--config", str(file)) == file.read_text()


def test_a_file_starts_a_server(tmp_path: Path) -> None:
    file = tmp_path / "target.toml"
    file.write_text(f'model = "{TARGET_MODEL}"\nthreads = 1\nkv-blocks = 40\n')
    with running(Server("outrider-target", "--config", str(file))) as [target]:
        assert target.events("serving")[0]["kv_blocks"] == 40


@pytest.mark.parametrize("text, culprit", [("no-such-flag = 1\n", "no-such-flag"), ("threads = many\n", "threads"), ("= =\n", "parse")])
def test_what_is_wrong_with_a_file_is_named(text: str, culprit: str, tmp_path: Path) -> None:
    file = tmp_path / "target.toml"
    file.write_text(text)
    done = run("outrider-target", "--model", str(TARGET_MODEL), "--config", str(file))
    assert done.returncode == 2 and culprit in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_command_has_a_table_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text('[generate]\nmax-tokens = 3\ntemperature = 0\nseed = 1\n')
    done = run("outrider", "generate", "--config", str(file), "--json", "Once")
    assert done.returncode == 0 and '"completion_tokens":3' in done.stdout.replace(" ", "")
