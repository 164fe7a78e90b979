"""bench_pools: the result is a function of the seed, the production placement is better than chance, and outages move sequences."""

import json
import os
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(os.environ["OUTRIDER_BIN"]) / "bench_pools"
SMALL = {"--targets": 10, "--drafts": 40, "--coordinators": 2, "--seconds": 8, "--rate": 60, "--failures": 0}


@pytest.fixture
def simulate(tmp_path: Path):
    def run(**changed) -> dict:
        given = SMALL | {f"--{name}": value for name, value in changed.items()}
        words = [str(word) for pair in given.items() for word in pair]
        subprocess.run([PROGRAM, *words, "--json", tmp_path / "pools.json"], check=True, stdout=subprocess.DEVNULL)
        return json.loads((tmp_path / "pools.json").read_text())

    return run


def rows_of(report: dict) -> dict[str, dict]:
    return {row["placement"]: row for row in report["rows"]}


def test_the_result_is_a_function_of_the_seed(simulate) -> None:
    assert simulate(failures=1) == simulate(failures=1)
    assert simulate(failures=1)["rows"] != simulate(failures=1, seed=2)["rows"]


def test_placement_is_between_chance_and_knowing_all(simulate) -> None:
    rows = rows_of(simulate())
    for role in ("target", "draft"):
        balance = {name: row[role]["max_to_mean"] for name, row in rows.items()}
        assert 1 <= balance["all-knowing"] < balance["placement"] < balance["random"]
    assert rows["placement"]["target"]["prefix_hits"] > rows["random"]["target"]["prefix_hits"]


def test_only_outages_move_sequences_and_no_request_is_lost(simulate) -> None:
    for row in rows_of(simulate()).values():
        assert (row["moved_lost"], row["moved_drained"]) == (0, 0)
    quiet, stormy = simulate(), simulate(failures=0.7)
    for name, row in rows_of(stormy).items():
        assert row["moved_lost"] > 0 and row["moved_drained"] > 0
        # All go on elsewhere; some end after the last second.
        assert row["requests"] > 0.9 * rows_of(quiet)[name]["requests"]


def test_one_coordinator_that_knows_all_servers_fills_them_evenly(simulate) -> None:
    """Its own sequences are all there are."""
    rows = rows_of(simulate(coordinators=1))
    assert rows["placement"]["target"]["max_to_mean"] < 1.1 * rows["all-knowing"]["target"]["max_to_mean"]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run([PROGRAM, "--seconds", "1", "--rate", "1", "--json", tmp_path / "none" / "pools.json"],
                          capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("bench_pools: cannot write ")
