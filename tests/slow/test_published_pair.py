"""The second law on SmolLM2, a published model: texts of two tokens against the exact law. tests/system/test_gguf.py has the first."""

from collections.abc import Iterator
from typing import Any

import pytest

from harness import FULL, Cluster, cluster, full
from law import SAMPLES, Cells, assert_law, canary, deviations, law_after, sample
from published import HEADS, shipped_draft, smollm2

PROMPT = "The best way to learn a language is"
COUNT = SAMPLES if FULL else 600  # a row of this model takes milliseconds
WAYS: dict[str, dict[str, Any]] = {"n-grams": {"drafter": "ngram", "k": 3}, "draft": {"drafter": "model", "k": 2},
                                   "tree of the draft": {"drafter": "model", "tree": "2x1"}, "EAGLE-3": {"drafter": "eagle", "k": 2},
                                   "tree of EAGLE-3": {"drafter": "eagle", "tree": "2x1"}}


@pytest.fixture(scope="module")
def c() -> Iterator[Cluster]:
    model = str(smollm2())
    with cluster(target=("--model", model, "--dtype", "auto", *HEADS), draft=shipped_draft(),
                 coordinator=("--tokenizer", model, "--draft-budget", "60")) as running:
        yield running


@pytest.fixture(scope="module")
def prompt(c: Cluster) -> list[int]:
    answer = c.generate(PROMPT, max_tokens=24, temperature=0)  # with n-grams to draft from
    return list(answer.tokens)


@pytest.mark.parametrize("way", [full("n-grams"), full("draft"), "tree of the draft", full("EAGLE-3"), "tree of EAGLE-3"])
def test_texts_of_two_tokens_have_the_targets_distribution(way: str, c: Cluster, prompt: list[int]) -> None:
    law: Cells = law_after(c, prompt, 5, 2)
    before = canary(c)
    assert_law(sample(c, prompt, 2, COUNT, top_k=5, **WAYS[way]), law, (1, 2))
    assert deviations(c, before) < 4.5
    drafted = c.coordinator.value("outrider_spec_decode_num_accepted_tokens_by_drafter_total", drafter=WAYS[way]["drafter"])
    assert drafted > 0
