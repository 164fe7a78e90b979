"""Drafters with and without a draft service, and how they are counted by name."""

from collections.abc import Iterator

import pytest

from harness import Answer, Cluster, cluster, request

# The drafters that need no draft service, and all drafters of these tests.
LOCAL = ["ngram", "copy"]
ALL = ["model", "auto", *LOCAL]
GREEDY = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
COUPLED = {"rule": "coupled", "temperature": 1, "seed": 5, "max_tokens": 40, "ignore_eos": True}

DRAFTED = "outrider_spec_decode_num_draft_tokens_by_drafter_total"
ACCEPTED = "outrider_spec_decode_num_accepted_tokens_by_drafter_total"


@pytest.fixture(scope="module")
def alone() -> Iterator[Cluster]:
    """A cluster without a draft service."""
    with cluster(draft=None) as c:
        yield c


@pytest.fixture(scope="module")
def asked(prompts: list[str]) -> list[str]:
    return prompts[:5]


@pytest.fixture(scope="module")
def greedy(pair: Cluster, asked: list[str]) -> list[list[int]]:
    return [pair.generate(prompt, drafter="none", **GREEDY).tokens for prompt in asked]


@pytest.fixture(scope="module")
def coupled(pair: Cluster, asked: list[str]) -> list[list[int]]:
    return [pair.generate(prompt, drafter="none", **COUPLED).tokens for prompt in asked]


def same(answers: list[Answer], wanted: list[list[int]]) -> list[Answer]:
    assert [answer.tokens for answer in answers] == wanted
    return answers


def drafted(answers: list[Answer]) -> int:
    return sum(answer.speculation.drafted for answer in answers)


@pytest.mark.parametrize("drafter", ["auto", *LOCAL])
def test_it_works_with_no_draft_service(drafter: str, alone: Cluster, asked: list[str], greedy: list[list[int]],
                                        coupled: list[list[int]]) -> None:
    answers = [alone.generate(prompt, drafter=drafter, k=4, **GREEDY) for prompt in asked]
    assert drafted(same(answers, greedy)) > 0
    same([alone.generate(prompt, drafter=drafter, k=4, **COUPLED) for prompt in asked], coupled)


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("drafter", LOCAL)
def test_a_seed_repeats_a_sampled_answer(drafter: str, rule: str, pair: Cluster, asked: list[str]) -> None:
    options = {"drafter": drafter, "rule": rule, "k": 3, "temperature": 1, "seed": 9, "max_tokens": 40,
               "ignore_eos": True}
    first = pair.generate(asked[0], **options)
    assert first.speculation.exact
    assert pair.generate(asked[0], **options).tokens == first.tokens


@pytest.mark.parametrize("drafter", ["ngram", "copy", "auto"])
def test_a_text_that_repeats_itself_is_guessed_from_itself(drafter: str, pair: Cluster) -> None:
    prompt = "\"Who is there?\" said the fox. \"It is I,\" said the hare.\n" * 8
    answer = pair.generate(prompt, drafter=drafter, k=4, **GREEDY)
    assert answer.speculation.accepted > 0
    assert answer.tokens == pair.generate(prompt, drafter="none", **GREEDY).tokens


@pytest.mark.parametrize("how", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_a_prediction_is_drafted_from_and_changes_nothing(how: dict, pair: Cluster, asked: list[str]) -> None:
    plain = pair.generate(asked[0], drafter="none", **how)
    words = plain.text.split(" ")
    changed = " ".join([*words[:9], "something else", *words[10:]])
    for prediction, least in ((plain.text, 30), (changed, 15), ("nothing of the kind", 0)):
        answer = pair.generate(asked[0], prediction=prediction, drafter="copy", k=8, **how)
        assert answer.tokens == plain.tokens
        stats = answer.speculation
        assert least <= stats.accepted_prediction_tokens <= min(stats.accepted, stats.prediction_tokens), prediction
        assert pair.generate(asked[0], prediction=prediction, **how).tokens == plain.tokens, "auto"
    # K is given, since otherwise it depends on the CPU whether drafting pays.
    assert pair.generate(asked[0], prediction=plain.text, k=8, **how).speculation.accepted_prediction_tokens > 20
    field = pair.refused(request(asked[0], prediction="x" * 1_000_000)).metadata["field"]
    assert field == "prediction"


def test_guesses_are_counted_by_who_made_them(pair: Cluster, asked: list[str]) -> None:
    for drafter in ["model", *LOCAL]:
        before = pair.coordinator.metrics()
        answer = pair.generate(asked[2], drafter=drafter, k=3, **GREEDY)
        after = pair.coordinator.metrics()
        assert answer.speculation.drafted > 0
        for name, counted in ((DRAFTED, answer.speculation.drafted), (ACCEPTED, answer.speculation.accepted)):
            grown = {each: after.value(name, drafter=each) - before.value(name, drafter=each) for each in ("model", *LOCAL)}
            assert grown == {each: counted if each == drafter else 0 for each in grown}


def test_auto_asks_the_model_where_nothing_long_matches(pair: Cluster, asked: list[str]) -> None:
    before = pair.coordinator.metrics()
    pair.generate_all([(prompt, {"drafter": "auto", "k": 4, **GREEDY}) for prompt in asked])
    after = pair.coordinator.metrics()
    for drafter in ("ngram", "model"):
        assert after.value(DRAFTED, drafter=drafter) > before.value(DRAFTED, drafter=drafter), drafter


def test_the_end_of_an_answer_is_not_drafted_past(pair: Cluster, asked: list[str], greedy: list[list[int]]) -> None:
    for drafter in ALL:
        for max_tokens in (1, 2, 3):
            answer = pair.generate(asked[0], drafter=drafter, k=4, **{**GREEDY, "max_tokens": max_tokens})
            assert answer.tokens == greedy[0][:max_tokens]
            assert answer.speculation.drafted <= max(max_tokens - 2, 0)


def test_a_drafter_that_lacks_something_is_refused_by_name(alone: Cluster, asked: list[str]) -> None:
    model = alone.refused(request(asked[0], drafter="model"))
    assert (model.code, model.metadata["field"]) == ("INVALID_ARGUMENT", "speculation.drafter")
    assert "no draft service" in model.message and "ngram" in model.metadata["range"]
