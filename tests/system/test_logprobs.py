"""Log-probabilities of answers and prompts, and the options under which draft and target differ."""

import math
from typing import Any

import pytest

from harness import Cluster, inference_pb2, request


def chunks_of(pair: Cluster, wanted: inference_pb2.GenerateRequest) -> tuple[list[Any], list[Any]]:
    """The reported positions of the answer and of the prompt."""
    chunks = list(pair.stub.Generate(wanted, timeout=60))
    return ([token.logprobs for chunk in chunks for token in chunk.tokens],
            [position for chunk in chunks for position in chunk.prompt_logprobs])


def ask(prompt: Any, *, top: int | None = None, prompt_top: int | None = None, before: bool = False,
        **options: Any) -> inference_pb2.GenerateRequest:
    wanted = request(prompt, **options)
    if top is not None:
        wanted.logprobs.top = top
    if prompt_top is not None:
        wanted.logprobs.prompt = prompt_top
    wanted.logprobs.before_controls = before
    return wanted


def test_scoring_an_answer_as_a_prompt_gives_the_very_numbers_it_was_written_with(pair: Cluster,
                                                                                 prompts: list[str]) -> None:
    # Bit for bit: verified five at a time or computed as a prompt, a row depends on its prefix only.
    first = prompts[0]
    written, scored_prompt = chunks_of(pair, ask(first, top=3, prompt_top=3, before=True, temperature=1, seed=5, k=5,
                                                 max_tokens=40, ignore_eos=True))
    assert len(written) == 40
    tokens = [4094] + [position.token.id for position in scored_prompt] + [p.token.id for p in written]
    _, scored = chunks_of(pair, ask(tokens, prompt_top=3, max_tokens=1))
    assert scored == scored_prompt + written


def test_tokens_that_are_parts_of_a_character_have_its_bytes(pair: Cluster) -> None:
    text = "It was 😀 in 日本"
    _, scored = chunks_of(pair, ask(text, prompt_top=0, max_tokens=0))
    assert any(position.token.bytes for position in scored), "no character was cut"
    assert b"".join(position.token.bytes or position.token.text.encode() for position in scored) == text.encode()


def test_a_long_prompt_is_scored_in_several_chunks(pair: Cluster, prompts: list[str]) -> None:
    text = max(prompts, key=len)
    chunks = list(pair.stub.Generate(ask(text, prompt_top=20, max_tokens=3), timeout=60))
    pieces = [len(chunk.prompt_logprobs) for chunk in chunks]
    assert pieces[:2] == [128, 128] and max(pieces[2:]) < 128
    assert [len(chunk.tokens) > 0 for chunk in chunks[:3]] == [False, False, True]
    assert sum(pieces) == chunks[-1].finish.usage.prompt_tokens - 1
    scored = "".join(position.token.text for chunk in chunks for position in chunk.prompt_logprobs)
    assert text.endswith(scored.strip()), "in order, each once"


def test_alternatives_are_ordered_and_belong_to_the_distribution_after_the_controls(pair: Cluster,
                                                                                   prompts: list[str]) -> None:
    positions, _ = chunks_of(pair, ask(prompts[1], top=5, temperature=0.8, top_k=5, seed=1, max_tokens=30))
    for position in positions:
        logprobs = [token.logprob for token in position.top]
        assert logprobs == sorted(logprobs, reverse=True) and len(logprobs) <= 5
        assert math.isclose(sum(map(math.exp, logprobs)), 1, abs_tol=1e-6), "top_k 5 leaves five tokens"
        assert position.token.id in [token.id for token in position.top]


def test_without_being_asked_for_nothing_is_reported(pair: Cluster, prompts: list[str]) -> None:
    positions, prompt_positions = chunks_of(pair, request(prompts[0], max_tokens=3))
    assert not any(position.HasField("token") for position in positions) and not prompt_positions


def test_a_draft_temperature_leaves_greedy_output_as_it_is(pair: Cluster, prompts: list[str]) -> None:
    wanted = request(prompts[2], temperature=0, k=4, max_tokens=40, seed=1)
    plain = list(pair.stub.Generate(wanted, timeout=60))
    wanted.speculation.draft_temperature = 1.5
    other = list(pair.stub.Generate(wanted, timeout=60))
    tokens, others = ([token.id for chunk in chunks for token in chunk.tokens] for chunks in (plain, other))
    assert others == tokens
    greedy, drafting_hot = plain[-1].finish.speculation, other[-1].finish.speculation
    assert drafting_hot.exact and 0 < drafting_hot.acceptance_rate < greedy.acceptance_rate, "it was as greedy as before"


@pytest.mark.parametrize("temperature", [0, 1])
def test_lenience_accepts_more_and_says_that_it_is_not_exact(pair: Cluster, prompts: list[str], temperature: float) -> None:
    def rate(lenience: float) -> tuple[float, bool]:
        drafted = accepted = 0
        for seed in range(6):
            wanted = request(prompts[seed], temperature=temperature, k=4, max_tokens=60, seed=seed, ignore_eos=True)
            wanted.speculation.lenience = lenience
            stats = list(pair.stub.Generate(wanted, timeout=60))[-1].finish.speculation
            drafted, accepted = drafted + stats.drafted, accepted + stats.accepted
        return accepted / drafted, stats.exact

    exact, lenient = rate(1), rate(0.2)
    assert exact[1] and not lenient[1]
    assert lenient[0] > exact[0]


@pytest.mark.parametrize("field, value", [("logprobs.top", 21), ("logprobs.prompt", 21), ("speculation.lenience", 0),
                                          ("speculation.lenience", 1.5), ("speculation.draft_temperature", -1)])
def test_a_value_out_of_range_is_refused_by_name(pair: Cluster, prompts: list[str], field: str, value: float) -> None:
    wanted = request(prompts[0], max_tokens=2)
    section, name = field.split(".")
    setattr(getattr(wanted, section), name, value)
    refusal = pair.refused(wanted)
    assert refusal.code == "INVALID_ARGUMENT" and refusal.metadata["field"] == field and refusal.metadata["range"]


def test_lenience_is_for_the_token_rule_only(pair: Cluster, prompts: list[str]) -> None:
    wanted = request(prompts[0], max_tokens=2, rule="block")
    wanted.speculation.lenience = 0.5
    assert pair.refused(wanted).metadata["field"] == "speculation.lenience"
