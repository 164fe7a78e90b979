"""A draft that proposes the most frequent tokens and those of the text only."""

import json
from collections.abc import Iterator

import pytest
from tokenizers import Tokenizer

from harness import DRAFT_MODEL, TARGET_MODEL, Cluster, cluster, refusal

PROMPT = "The sea was calm that morning, and"
COUNT = 600
LISTED = set(json.loads((DRAFT_MODEL / "frequent_tokens.json").read_text())["tokens"][:COUNT])
PROMPTED = set(Tokenizer.from_file(str(TARGET_MODEL / "tokenizer.json")).encode(PROMPT).ids)


@pytest.fixture(scope="module")
def c() -> Iterator[Cluster]:
    with cluster(draft=["--frequent-tokens", str(COUNT)]) as running:
        yield running


def test_it_changes_nothing_and_proposes_only_these(c: Cluster) -> None:
    emitted: set[int] = set()
    proposed: set[int] = set()
    for options in ({"temperature": 0}, {"rule": "coupled", "temperature": 0.9, "seed": 5},
                    {"temperature": 0, "bad_ids": [11], "repetition_penalty": 1.2}):
        plain = c.generate(PROMPT, k=0, max_tokens=80, ignore_eos=True, **options)
        drafted = c.generate(PROMPT, k=4, max_tokens=80, ignore_eos=True, trace=True, **options)
        assert drafted.tokens == plain.tokens
        assert drafted.speculation.accepted > 10
        tokens = {token for round in drafted.rounds for token in round.drafted}
        assert tokens <= LISTED | PROMPTED | set(plain.tokens)
        emitted |= set(plain.tokens)
        proposed |= tokens
    assert not emitted <= LISTED
    assert not proposed <= LISTED
    assert c.coordinator.value("outrider_draft_errors_total") == 0


def test_sampled_tokens_are_judged_by_the_q_that_they_come_from(c: Cluster) -> None:
    """The number of accepted tokens is what p and q predict, but for chance. Another q than that of the draws would change it."""
    def total(name: str) -> float:
        return c.coordinator.value(f"outrider_spec_decode_{name}_total")

    names = ("observed_accepted_tokens", "expected_accepted_tokens", "expected_accepted_tokens_variance")
    before = [total(name) for name in names]
    for seed in range(8):
        answer = c.generate(PROMPT, k=4, max_tokens=120, ignore_eos=True, temperature=1, seed=seed, trace=True)
        assert {token for round in answer.rounds for token in round.drafted} <= LISTED | PROMPTED | set(answer.tokens)
    accepted, expected, variance = [total(name) - old for name, old in zip(names, before, strict=True)]
    assert expected > 100
    assert abs(accepted - expected) < 5 * variance ** 0.5


def test_a_model_without_a_list_is_refused() -> None:
    error = refusal("outrider-draft", "--model", str(TARGET_MODEL), "--frequent-tokens", "5")
    assert "tiny-target/frequent_tokens.json: cannot be read, or is empty" in error
