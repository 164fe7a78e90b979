"""Load, disturbances and what must hold after them (bench/soak.py). A wrong answer is noticed."""

import sys

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "bench"))

from soak import soak, started  # noqa: E402


def test_what_must_hold_holds_after_a_minute_of_load_and_disturbances() -> None:
    soak(minutes=1, seed=1)


def test_an_answer_that_is_not_the_quiet_one_ends_the_soak() -> None:
    with started(seed=1) as s:
        for call in s.load.calls:
            call.answers[-1].tokens[-1] += 1
        with pytest.raises(AssertionError, match="got"), s.load.running():
            s.disturb("draft frozen")
