"""Behaviour of drafting several tokens for a position. test_first_law.py shows that it changes no answer."""

from collections.abc import Iterator

import grpc
import pytest

from harness import Answer, Cluster, cluster, request

GREEDY = {"temperature": 0, "max_tokens": 64, "ignore_eos": True}
COUPLED = {"rule": "coupled", "temperature": 0.9, "seed": 5, "max_tokens": 64, "ignore_eos": True}
# Enough time for every proposal, however busy the machine is.
PATIENT = ["--draft-budget", "60"]


@pytest.fixture(scope="module")
def trio() -> Iterator[Cluster]:
    with cluster(coordinator=PATIENT) as c:
        yield c


def drew_trees(answer: Answer) -> None:
    """Checks that trees were drafted, and that their counts fit together."""
    stats = answer.speculation
    assert stats.tree_rounds > 0
    assert sum(stats.accepted_per_rank) <= stats.accepted
    assert all(a <= o for a, o in zip(stats.accepted_per_rank, stats.offered_per_rank, strict=True))


@pytest.mark.parametrize("how", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_auto_leaves_the_schedule_to_the_request(how: dict, trio: Cluster, prompts: list[str]) -> None:
    plain = trio.generate(prompts[0], k=0, **how).tokens
    answer = trio.generate(prompts[0], tree="auto", schedule="run_ahead", **how)
    assert answer.tokens == plain and answer.speculation.ahead_rounds > 0


def test_siblings_are_accepted_too(trio: Cluster, prompts: list[str]) -> None:
    answers = [trio.generate(prompt, tree="3x2x1", **GREEDY) for prompt in prompts[:6]]
    assert sum(answer.speculation.accepted_per_rank[1] for answer in answers) > 0
    chains = [trio.generate(prompt, k=3, **GREEDY) for prompt in prompts[:6]]
    assert sum(a.speculation.rounds for a in answers) < sum(c.speculation.rounds for c in chains)


def test_a_seed_repeats_its_answer(trio: Cluster, prompts: list[str]) -> None:
    for how in ({"tree": "2x2x1"}, {"tree": "chains:3"}, {"tree": "chains:2", "sibling_order": "random"}):
        how = how | {"temperature": 1, "seed": 11, "max_tokens": 48, "ignore_eos": True}
        first, again = (trio.generate(prompts[0], **how) for _ in range(2))
        assert first.tokens == again.tokens
        drew_trees(first)


def test_the_trace_has_the_tree_and_the_path_through_it(trio: Cluster, prompts: list[str]) -> None:
    answer = trio.generate(prompts[0], tree="2x2", trace=True, **GREEDY)
    emitted: list[int] = []
    for round_ in answer.rounds:
        if round_.parents:
            assert len(round_.parents) == len(round_.drafted) <= 6
            parents = [-1, *round_.path][: len(round_.path)]
            assert [round_.parents[node] for node in round_.path] == parents
            emitted += [round_.drafted[node] for node in round_.path]
        else:
            emitted += round_.drafted[: round_.accepted]
        emitted.append(round_.token)
    assert emitted[: len(answer.tokens)] == answer.tokens


def test_canaries_stay_near_one(trio: Cluster, prompts: list[str]) -> None:
    for shape in ("2x2x1", "chains:3"):
        answers = [trio.generate(prompt, tree=shape, temperature=1, seed=i, max_tokens=100, ignore_eos=True)
                   for i, prompt in enumerate(prompts[:10])]
        observed = sum(a.speculation.accepted for a in answers)
        expected = sum(a.speculation.accepted / a.speculation.observed_over_expected for a in answers)
        assert observed / expected == pytest.approx(1, abs=0.15), shape


@pytest.mark.parametrize("field, options", [
    ("speculation.tree", {"tree": "x"}),
    ("speculation.tree", {"tree": "2x0"}),
    ("speculation.tree", {"tree": "9x9"}),
    ("speculation.tree", {"tree": "2x2", "rule": "block"}),
    ("speculation.tree", {"tree": "2x2", "drafter": "ngram"}),
    ("speculation.sibling_order", {"tree": "2x2", "sibling_order": "random"}),
    ("speculation.sibling_order", {"tree": "auto", "sibling_order": "random"}),
])
def test_what_cannot_be_is_refused(field: str, options: dict, trio: Cluster) -> None:
    with pytest.raises(grpc.RpcError) as error:
        list(trio.stub.Generate(request("Once", temperature=1.0, max_tokens=4, **options)))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert field in error.value.details()


def test_k_of_zero_ignores_a_tree(trio: Cluster, prompts: list[str]) -> None:
    assert trio.generate(prompts[0], tree="2x2", k=0, **GREEDY).speculation.drafted == 0
