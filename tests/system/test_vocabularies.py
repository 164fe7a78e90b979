"""Draft and target whose vocabularies have different sizes, as in families that pad them."""

from collections.abc import Iterator

import pytest

from harness import DRAFT_MODEL, TARGET_MODEL, Cluster, cluster, inference_pb2, sequence_pb2
from models import with_more_tokens

PROMPT = "The sea was calm that morning, and"
SIZE = 4096  # of the smaller vocabulary


def bias(token: int) -> list[sequence_pb2.LogitBias]:
    return [sequence_pb2.LogitBias(token=token, bias=100)]


@pytest.fixture(scope="module")
def larger_draft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    model = with_more_tokens(DRAFT_MODEL, tmp_path_factory.mktemp("draft"))
    with cluster(draft=["--model", str(model)]) as running:
        yield running


@pytest.fixture(scope="module")
def larger_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    model = with_more_tokens(TARGET_MODEL, tmp_path_factory.mktemp("target"))
    with cluster(target=["--model", str(model)]) as running:
        yield running


@pytest.fixture(params=["larger_draft", "larger_target"])
def c(request: pytest.FixtureRequest) -> Cluster:
    return request.getfixturevalue(request.param)


def test_they_are_a_pair_that_changes_nothing(c: Cluster) -> None:
    sizes = c.stub.Describe(inference_pb2.DescribeRequest())
    assert {sizes.draft.vocab_size, sizes.target.vocab_size} == {SIZE, SIZE + 64}
    for options in ({"temperature": 0}, {"rule": "coupled", "temperature": 0.9, "seed": 5},
                    {"temperature": 0, "bad_ids": [11, SIZE - 1], "repetition_penalty": 1.2}):
        plain, drafted = [c.generate(PROMPT, k=k, max_tokens=60, ignore_eos=True, **options) for k in (0, 4)]
        assert drafted.tokens == plain.tokens
        assert drafted.speculation.accepted > 10
    assert c.coordinator.value("outrider_draft_errors_total") == 0


def test_a_dense_q_of_every_token_is_one_for_the_target(c: Cluster) -> None:
    size = c.stub.Describe(inference_pb2.DescribeRequest()).target.vocab_size
    answer = c.generate(PROMPT, k=4, max_tokens=40, ignore_eos=True, temperature=1, seed=2, draft_top_n=size)
    assert answer.speculation.accepted > 5
    assert c.coordinator.value("outrider_draft_errors_total") == 0


def test_a_draft_never_proposes_what_the_target_lacks(larger_draft: Cluster) -> None:
    """The draft's model could propose these ids: their logits are 0, and those of the first 1000 ids are far below."""
    others = [sequence_pb2.LogitBias(token=token, bias=-100) for token in range(1000)]
    answer = larger_draft.generate(PROMPT, k=4, max_tokens=20, ignore_eos=True, temperature=5, seed=1, logit_bias=others)
    assert answer.speculation.drafted > 20
    assert max(answer.tokens) < SIZE
    assert larger_draft.coordinator.value("outrider_draft_errors_total") == 0


def test_parameters_may_name_tokens_that_the_draft_lacks(larger_target: Cluster) -> None:
    beyond = SIZE + 3
    options = {"k": 4, "max_tokens": 30, "ignore_eos": True, "temperature": 0}
    plain = larger_target.generate(PROMPT, **options)
    answer = larger_target.generate(PROMPT, bad_ids=[beyond], stop_ids=[beyond], min_tokens=3, **options)
    assert answer.tokens == plain.tokens
    assert answer.speculation.accepted > 5
    assert larger_target.coordinator.value("outrider_draft_errors_total") == 0


def test_a_text_with_a_token_beyond_the_drafts_vocabulary_goes_on_without_it(larger_target: Cluster) -> None:
    prompt = [5, SIZE + 3, 12]
    answer = larger_target.generate(prompt, k=4, max_tokens=20, ignore_eos=True, temperature=0)
    assert answer.tokens == larger_target.generate(prompt, k=0, max_tokens=20, ignore_eos=True, temperature=0).tokens
    assert answer.speculation.drafted == 0
    emitted = larger_target.generate(PROMPT, k=4, max_tokens=5, temperature=0, logit_bias=bias(SIZE + 3), ignore_eos=True)
    assert emitted.tokens == [SIZE + 3] * 5
    assert larger_target.coordinator.value("outrider_draft_errors_total") == 0
    assert larger_target.generate(PROMPT, k=4, max_tokens=20, temperature=0).speculation.accepted > 5
