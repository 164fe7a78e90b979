"""A system or mode that fails in bench/compare.py is left out with one line, and the others are measured."""

import argparse
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import compare  # noqa: E402
import compare_systems  # noqa: E402

OPTIONS = argparse.Namespace(turns=3, target=ROOT / "models/tiny-target", draft=ROOT / "models/tiny-draft", threads=1,
                             max_tokens=4)


class Steady:
    name = "steady"

    def __init__(self, options, prompts):
        self.rate = 0

    def measure(self):
        self.rate += 10
        yield "plain", 0.0, self.rate


def failing(error, in_turn):
    """A system that measures one mode and then fails, in turn `in_turn`; in turn 0 it cannot even be made."""
    class Failing:
        name = "failing"

        def __init__(self, options, prompts):
            self.turn = 0
            if in_turn == 0:
                raise error

        def measure(self):
            self.turn += 1
            yield "plain", 0.0, 1.0
            if self.turn == in_turn:
                raise error
            yield "speculative", 0.0, 2.0
    return Failing


@pytest.fixture(autouse=True)
def out(monkeypatch, tmp_path):
    monkeypatch.setattr(compare_systems, "OUT", tmp_path / "bench")
    return tmp_path / "bench"


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """A folder for the programs that measure Outrider."""
    monkeypatch.setattr(compare_systems, "PROGRAMS", tmp_path)
    return tmp_path


def tool(path, script):
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)


def lines(capsys):
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("in_turn", range(4))
@pytest.mark.parametrize("error", [AttributeError("no cache\nsecond line"), ImportError("no cache"),
                                   MemoryError("no cache")], ids=lambda error: type(error).__name__)
def test_a_failure_leaves_a_line_and_no_figure(error, in_turn, capsys, out):
    rates = compare.take_turns([failing(error, in_turn), Steady], OPTIONS, [])
    assert rates == {("steady", "plain", 0.0): 20}
    log = out / "compare-failing.log"
    assert lines(capsys) == [f"compare: failing is left out: {type(error).__name__}: no cache (log: {log})"]
    assert "Traceback" in log.read_text() and "in take_turns" in log.read_text()


def test_a_system_that_does_not_fail_is_in_the_figures(capsys):
    rates = compare.take_turns([failing(ValueError("never"), 4), Steady], OPTIONS, [])
    assert rates == {("failing", "plain", 0.0): 1, ("failing", "speculative", 0.0): 2, ("steady", "plain", 0.0): 20}
    assert lines(capsys) == []


def test_an_error_without_a_message_is_named(capsys):
    compare.take_turns([failing(AssertionError(), 1)], OPTIONS, [])
    assert "is left out: AssertionError: no message (log: " in lines(capsys)[0]


def test_what_was_foreseen_needs_no_log(capsys, out):
    compare.take_turns([failing(compare_systems.Unavailable("no compiler"), 2)], OPTIONS, [])
    assert lines(capsys) == ["compare: failing is left out: no compiler"]
    assert not out.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_who_stops_the_script_stops_it(error):
    with pytest.raises(error):
        compare.take_turns([failing(error(), 2), Steady], OPTIONS, [])


def test_outrider_without_its_programs_is_left_out(programs, capsys):
    assert compare.take_turns([compare_systems.Outrider], OPTIONS, []) == {}
    assert lines(capsys) == [f"compare: outrider is left out: no {programs}/bench_pair: run make build"]


def test_a_tool_that_writes_something_else_is_left_out(programs, capsys):
    tool(programs / "bench_pair", 'for last; do :; done; echo "{}" >"$last"\n')  # the last argument is the JSON file
    tool(programs / "bench_step", 'for word; do case $word in *_out=*) echo "{}" >"${word#*=}" ;; esac; done\n')
    assert compare.take_turns([compare_systems.Outrider, Steady], OPTIONS, []) == {("steady", "plain", 0.0): 20}
    assert lines(capsys)[0].startswith("compare: outrider is left out: KeyError: 'results' (log: ")


def test_a_tool_that_is_killed_is_left_out(programs, capsys):
    tool(programs / "bench_pair", "kill -9 $$\n")
    tool(programs / "bench_step", "")
    assert compare.take_turns([compare_systems.Outrider, Steady], OPTIONS, []) == {("steady", "plain", 0.0): 20}
    assert lines(capsys) == ["compare: outrider is left out: bench_pair ended with -9: no output"]


def installed_vllm(out, script):
    """vLLM's environment with a script in place of Python; $json is the file for the rates."""
    (out / "vllm/bin").mkdir(parents=True)
    (out / "vllm/installed").write_text(compare_systems.Vllm.REQUIREMENTS.read_text())
    tool(out / "vllm/bin/python", 'all="$*" json=$(echo "$*" | sed "s/.*--json \\([^ ]*\\).*/\\1/")\n' + script)


def test_a_mode_of_vllm_that_fails_in_a_later_turn_is_left_out(out, capsys):
    installed_vllm(out, """case $all in
  *ngram*) if [ -e "$0.seen" ]; then echo first; echo no such kernel; exit 3; else touch "$0.seen"; fi ;;
esac
echo '{"0.0": 5, "1.0": 6}' >"$json"
""")
    rates = compare.take_turns([compare_systems.Vllm], OPTIONS, [])
    assert rates == {("vLLM", mode, temperature): rate for temperature, rate in ((0.0, 5), (1.0, 6))
                     for mode in ("plain", "speculative, K = 2", "speculative, K = 4")}
    log = out / "vllm/speculative, n-gram.log"
    assert lines(capsys) == [
        f"compare: vLLM, speculative, n-gram is left out: python ended with 3: no such kernel (log: {log})"]
    assert log.read_text().endswith("first\nno such kernel\n")


def test_vllm_that_cannot_decode_plainly_is_left_out(out, capsys):
    installed_vllm(out, "echo no such kernel; exit 3\n")
    assert compare.take_turns([compare_systems.Vllm, Steady], OPTIONS, []) == {("steady", "plain", 0.0): 20}
    assert [line.partition(" (log: ")[0] for line in lines(capsys)] == [
        "compare: vLLM is left out: python ended with 3: no such kernel"]
