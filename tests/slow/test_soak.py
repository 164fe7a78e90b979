"""Load, disturbances and what must hold after them (bench/soak.py). A wrong answer is noticed."""

import sys

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "bench"))

from soak import Soak, soak, started  # noqa: E402


def test_what_must_hold_holds_after_a_minute_of_load_and_disturbances() -> None:
    soak(minutes=1, seed=1)


def test_an_answer_that_is_not_the_quiet_one_ends_the_soak() -> None:
    with started(seed=1) as s:
        for call in s.load.calls:
            call.answers[-1].tokens[-1] += 1
        with pytest.raises(AssertionError, match="got"), s.load.running():
            s.disturb("draft frozen")


def test_what_was_frozen_when_an_answer_was_wrong_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_it_wrong(*_: object) -> None:
        raise AssertionError("got another answer")

    monkeypatch.setattr(Soak, "_await_progress", find_it_wrong)
    with started(seed=1) as s, pytest.raises(AssertionError, match="got"), s.load.running():
        s.disturb("draft frozen")
