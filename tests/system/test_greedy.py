"""Greedy decoding gives the answers of transformers, and the first law (test_first_law.py) also holds with controls, seeds and
resumed answers."""

from collections.abc import Iterator

import pytest

from harness import PATIENCE, PRECISE, Cluster, cluster, inference_pb2, load_goldens, request, sequence_pb2

# If the two largest logits are closer than this, another order of summation may choose the other token.
TIE = 1e-3


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    with cluster(target=PRECISE) as c:
        yield c


@pytest.fixture(scope="module")
def plain(pair: Cluster, prompts: list[str]) -> list[list[int]]:
    answers = [pair.generate(prompt, k=0, temperature=0, max_tokens=48, ignore_eos=True) for prompt in prompts]
    assert all(answer.speculation.drafted == 0 for answer in answers)
    return [answer.tokens for answer in answers]


def test_plain_greedy_decoding_is_what_transformers_generates(plain: list[list[int]], pair: Cluster,
                                                              prompts: list[str]) -> None:
    goldens = load_goldens("greedy.json")["answers"]
    compared = 0
    for prompt, tokens, golden in zip(prompts, plain, goldens, strict=True):
        assert pair.generate(prompt, k=0, max_tokens=1).finish.usage.prompt_tokens == len(golden["prompt_ids"])
        clear = next((i for i, margin in enumerate(golden["margins"]) if margin < TIE), len(golden["tokens"]))
        assert tokens[:clear] == golden["tokens"][:clear], prompt
        compared += clear
    assert compared > 0.8 * sum(len(tokens) for tokens in plain)


def test_token_ids_as_a_prompt_are_taken_as_they_are(pair: Cluster, prompts: list[str],
                                                     plain: list[list[int]]) -> None:
    ids = load_goldens("greedy.json")["answers"][0]["prompt_ids"]
    assert pair.generate(ids, k=4, temperature=0, max_tokens=48, ignore_eos=True).tokens == plain[0]


@pytest.mark.parametrize("penalty", [{"repetition_penalty": 1.5}, {"presence_penalty": 1.5}, {"frequency_penalty": 1.0},
                                     {"min_tokens": 30}], ids=lambda penalty: next(iter(penalty)))
def test_controls_that_look_back_see_the_same_with_a_draft(penalty: dict[str, float], pair: Cluster,
                                                           prompts: list[str]) -> None:
    eos, = pair.stub.Describe(inference_pb2.DescribeRequest()).target.eos_ids
    options = {"temperature": 0, "max_tokens": 48, "ignore_eos": True}
    if "min_tokens" in penalty:  # the bias would soon end the answer
        options |= {"ignore_eos": False, "logit_bias": [sequence_pb2.LogitBias(token=eos, bias=12)]}
    changed = accepted = 0
    for prompt in prompts[:5]:
        free = pair.generate(prompt, k=0, **options)
        plain, *others = [pair.generate(prompt, k=k, **options, **penalty) for k in (0, 2, 5, 8)]
        changed += plain.tokens != free.tokens
        for other in others:
            assert (other.tokens, other.reason) == (plain.tokens, plain.reason), prompt
            accepted += other.speculation.accepted
        half = len(plain.tokens) // 2
        resumed = request(prompt, k=5, **options, **penalty)
        resumed.resume_from.extend(plain.tokens[:half])
        rest = [token.id for chunk in pair.stub.Generate(resumed, timeout=PATIENCE) for token in chunk.tokens]
        assert rest == plain.tokens[half:], "what is resumed from is output"
    assert changed and accepted, "there was nothing to see"


def test_a_seed_repeats_an_answer_and_another_seed_does_not(pair: Cluster, prompts: list[str]) -> None:
    first, again, other = [pair.generate(prompts[0], k=0, temperature=1, seed=seed, max_tokens=32).tokens
                           for seed in (1, 1, 2)]
    assert first == again != other


def test_resuming_continues_the_same_answer(pair: Cluster, prompts: list[str], plain: list[list[int]]) -> None:
    wanted = request(prompts[0], k=4, temperature=0, max_tokens=48, ignore_eos=True)
    wanted.resume_from.extend(plain[0][:17])
    chunks = list(pair.stub.Generate(wanted))
    assert chunks[0].position == 17
    assert [token.id for chunk in chunks for token in chunk.tokens] == plain[0][17:]
    assert chunks[-1].finish.usage.completion_tokens == 48
