"""The formulas of bench/papers.py, by hand-computed values for one row of p and q, and those of bench/roofline.py."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import papers  # noqa: E402
import roofline  # noqa: E402

P, Q = np.array([[0.5, 0.3, 0.2]]), np.array([[0.2, 0.2, 0.6]])


def test_rejection_sampling_accepts_less_than_the_residual_does() -> None:
    assert papers.alpha(P, Q) == pytest.approx(0.6)
    assert papers.by_rejection_sampling(P, Q) == pytest.approx(0.4)
    assert papers.by_rejection_sampling(P, np.array([[0.5, 0.5, 0]])) == 0, "p has a token that q lacks"


def test_at_temperature_0_only_the_best_token_counts() -> None:
    assert papers.alpha(papers.greedy(P), papers.greedy(Q)) == 0
    assert papers.alpha(papers.greedy(P), papers.greedy(P)) == papers.by_rejection_sampling(papers.greedy(P), papers.greedy(P)) == 1


# Accepted: (.2, .2, min(.6, .2 / l)). The rest of the mass goes to (.3, .1, 0) / .4.
@pytest.mark.parametrize("lenience, alpha, moved", [(1, 0.6, 0), (0.5, 0.8, 0.2), (0.1, 1, 0.4)])
def test_lenience_accepts_more_and_moves_the_law(lenience: float, alpha: float, moved: float) -> None:
    assert papers.with_lenience(P, Q, lenience) == pytest.approx({"alpha": alpha, "moved": moved})


@pytest.mark.parametrize("lenience, accepted", [(1, 0), (0.5, 0), (0.4, 1)])
def test_lenience_at_temperature_0_compares_with_the_best_token(lenience: float, accepted: float) -> None:
    assert papers.with_greedy_lenience(P, Q, lenience) == {"alpha": accepted, "moved": accepted}


def test_a_pass_reads_the_weights_once_for_all_its_rows() -> None:
    one, nine = roofline.table({"weight_bytes": "1000000000", "parameters": "500000000"}, {1: 0.1, 9: 0.2}, 20e9)
    assert one == pytest.approx({"rows": 1, "ms": 100, "flop_per_byte": 1, "gflops": 10, "gb_per_second": 10, "share_of_copy": 0.5})
    assert nine == pytest.approx({"rows": 9, "ms": 200, "flop_per_byte": 9, "gflops": 45, "gb_per_second": 5, "share_of_copy": 0.25})
