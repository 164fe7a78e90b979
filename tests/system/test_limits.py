"""An answer ends at its own limit, the context's, an end id or a stop string, at the same place for every K."""

import functools
import itertools

import pytest
from tokenizers import Tokenizer

from harness import LENGTH, STOP, TARGET_MODEL, Answer, Cluster, inference_pb2, request, sequence_pb2

KS = range(9)


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TARGET_MODEL / "tokenizer.json"))


def decode(tokens: list[int]) -> str:
    return tokenizer().decode(tokens, skip_special_tokens=True)


def agree(answers: list[Answer]) -> Answer:
    """Checks that all answers agree, and returns one of them."""
    first, *rest = answers
    for other in rest:
        assert (other.tokens, other.text, other.reason) == (first.tokens, first.text, first.reason)
        assert other.finish.stop_string == first.finish.stop_string
    return first


def test_every_draft_length_emits_as_many_tokens_as_asked_for(pair: Cluster, prompts: list[str]) -> None:
    for k, temperature, limit in itertools.product(KS, [0, 1], [1, 2, 7, 23]):
        answer = pair.generate(prompts[1], k=k, temperature=temperature, max_tokens=limit, ignore_eos=True)
        assert (len(answer.tokens), answer.reason) == (limit, LENGTH)


def test_every_draft_length_fills_the_context_exactly(pair: Cluster) -> None:
    context = pair.stub.Describe(inference_pb2.DescribeRequest()).target.max_context
    for room, ks in ((1, (0, 8)), (2, (0, 1, 8)), (13, KS)):
        prompt = list(itertools.islice(itertools.cycle(range(300, 360)), context - room))
        answer = agree([pair.generate(prompt, k=k, temperature=0, ignore_eos=True) for k in ks])
        assert (len(answer.tokens), answer.reason) == (room, LENGTH)
    agree([answer, pair.generate(prompt, k=5, temperature=0, max_tokens=9999, ignore_eos=True)])


def test_a_prompt_that_leaves_no_room_is_refused_at_once(pair: Cluster) -> None:
    context = pair.stub.Describe(inference_pb2.DescribeRequest()).target.max_context
    pair.wait_idle()
    computed = pair.target.value("outrider_target_batch_rows_sum")
    for length in (context, context + 1, 3 * context):
        refusal = pair.refused(request([300] * length, k=4))
        assert (refusal.code, refusal.metadata["field"]) == ("INVALID_ARGUMENT", "prompt")
        assert refusal.reason == "CONTEXT_LENGTH_EXCEEDED"
        assert str(context - 1) in refusal.metadata["range"]
    assert pair.target.value("outrider_target_kv_blocks_used") == 0
    assert pair.target.value("outrider_target_batch_rows_sum") == computed


def test_the_text_is_that_of_the_tokens(pair: Cluster, prompts: list[str]) -> None:
    for prompt, k in zip(prompts[:10], itertools.cycle([0, 3, 8])):
        answer = pair.generate(prompt, k=k, temperature=1, seed=k, max_tokens=60)
        assert answer.text == decode(answer.tokens)


def middle_of_a_round(answer: Answer) -> tuple[int, int]:
    """The index and id of an accepted token that occurs for the first time and is not the last of its round."""
    position = 0
    for r in answer.rounds:
        for i in range(r.accepted - 1):
            token = r.drafted[i]
            if token not in answer.tokens[:position + i]:
                return position + i, token
        position += r.accepted + 1
    pytest.fail("no such token")


def test_an_end_id_in_the_middle_of_a_round_discards_the_rest_of_it(pair: Cluster, prompts: list[str]) -> None:
    whole = pair.generate(prompts[3], k=8, temperature=0, max_tokens=80, ignore_eos=True, trace=True)
    index, token = middle_of_a_round(whole)
    before = pair.coordinator.value("outrider_spec_decode_num_emitted_tokens_total")
    ended = pair.generate(prompts[3], k=8, temperature=0, max_tokens=80, ignore_eos=True, trace=True,
                          stop_ids=[token])
    emitted = pair.coordinator.value("outrider_spec_decode_num_emitted_tokens_total") - before
    assert ended.reason == STOP
    assert ended.tokens == whole.tokens[:index + 1]
    assert ended.text == decode(whole.tokens[:index])
    assert emitted == ended.finish.usage.completion_tokens == index + 1
    assert sum(r.accepted + 1 for r in ended.rounds) > index + 1, "nothing was discarded"
    stats = ended.speculation
    assert stats.accepted == stats.emitted_accepted == ended.kinds.count("accepted")
    assert sum(r.accepted for r in ended.rounds) == stats.accepted + stats.accepted_after_end > stats.accepted
    assert stats.mean_accepted_length <= len(ended.tokens)


def test_the_models_own_end_ends_the_text_with_every_draft_length(pair: Cluster, prompts: list[str]) -> None:
    eos, = pair.stub.Describe(inference_pb2.DescribeRequest()).target.eos_ids
    for bias in range(4, 40, 2):  # until the answer ends by itself
        options = {"temperature": 0, "max_tokens": 60,
                   "logit_bias": [sequence_pb2.LogitBias(token=eos, bias=bias)]}
        if pair.generate(prompts[2], k=0, **options).reason == STOP:
            break
    answer = agree([pair.generate(prompts[2], k=k, **options) for k in KS])
    assert answer.reason == STOP
    assert answer.tokens.index(eos) == len(answer.tokens) - 1
    assert answer.text == decode(answer.tokens[:-1])
    beyond = pair.generate(prompts[2], k=4, ignore_eos=True, **options)
    assert (beyond.reason, beyond.tokens[:len(answer.tokens)]) == (LENGTH, answer.tokens)


@pytest.mark.parametrize("length", [1, 5, 11])
def test_a_stop_string_across_tokens_ends_the_text_before_it(length: int, pair: Cluster, prompts: list[str]) -> None:
    whole = pair.generate(prompts[4], k=0, temperature=0, max_tokens=60, ignore_eos=True)
    stop = whole.text[21:21 + length]
    end = whole.text.index(stop)
    options = {"temperature": 0, "max_tokens": 60, "ignore_eos": True, "stop": ["\N{SNOWMAN}", stop]}
    answer = agree([pair.generate(prompts[4], k=k, **options) for k in KS])
    assert (answer.reason, answer.finish.stop_string) == (STOP, stop)
    assert answer.text == whole.text[:end]
    # The tokens up to the one that completes the stop string, and no more.
    assert answer.tokens == whole.tokens[:len(answer.tokens)]
    assert stop in decode(answer.tokens) and stop not in decode(answer.tokens[:-1])


def test_a_stop_string_that_the_last_allowed_token_completes_is_the_reason(pair: Cluster, prompts: list[str]) -> None:
    whole = pair.generate(prompts[4], k=0, temperature=0, max_tokens=60, ignore_eos=True)
    stop = whole.text[21:26]
    count = next(n for n in range(1, 61) if stop in decode(whole.tokens[:n]))
    options = {"temperature": 0, "ignore_eos": True, "stop": [stop]}
    last = agree([pair.generate(prompts[4], k=k, max_tokens=count, **options) for k in KS])
    assert (last.reason, last.finish.stop_string, len(last.tokens)) == (STOP, stop, count)
    short = agree([pair.generate(prompts[4], k=k, max_tokens=count - 1, **options) for k in KS])
    assert (short.reason, short.finish.stop_string, short.text) == (LENGTH, "", decode(whole.tokens[:count - 1]))


def test_text_that_only_begins_like_a_stop_string_is_not_lost(pair: Cluster, prompts: list[str]) -> None:
    whole = pair.generate(prompts[4], k=0, temperature=0, max_tokens=40, ignore_eos=True)
    stop = whole.text[-5:] + "\N{SNOWMAN}"
    answer = agree([pair.generate(prompts[4], k=k, temperature=0, max_tokens=40, ignore_eos=True, stop=[stop])
                    for k in KS])
    assert (answer.text, answer.reason) == (whole.text, LENGTH)


def test_metrics_count_what_answers_say(pair: Cluster, prompts: list[str]) -> None:
    names = {"drafted": "num_draft_tokens_total", "accepted": "num_accepted_tokens_total", "drafts": "num_drafts_total"}

    def counts() -> dict[str, float]:
        metrics = pair.coordinator.metrics()
        kinds = metrics.labelled("outrider_spec_decode_num_emitted_tokens_total", "kind")
        return ({field: metrics.value(f"outrider_spec_decode_{name}") for field, name in names.items()}
                | {f"emitted_{kind}": kinds.get(kind, 0) for kind in ("accepted", "corrected", "bonus", "plain")})

    before = counts()
    answers = [pair.generate(prompt, k=4, temperature=1, seed=1, max_tokens=40, trace=True) for prompt in prompts[:5]]
    after = counts()
    for field in after:
        assert after[field] - before[field] == sum(getattr(answer.speculation, field) for answer in answers), field
    for answer in answers:
        drafted = [len(r.drafted) for r in answer.rounds]
        accepted = [r.accepted for r in answer.rounds]
        assert list(answer.speculation.drafted_per_position) == [sum(k > i for k in drafted) for i in range(max(drafted))]
        assert list(answer.speculation.accepted_per_position) == [sum(a > i for a in accepted) for i in range(max(drafted))]


def test_a_metric_that_is_not_there_is_not_zero(pair: Cluster) -> None:
    assert pair.coordinator.value("outrider_requests_total", code="NEVER_SEEN") == 0
    with pytest.raises(AssertionError, match="no metric"):
        pair.coordinator.value("outrider_target_kv_blocks_used")  # it is the target's
    with pytest.raises(AssertionError, match="has the labels"):
        pair.coordinator.value("outrider_requests_total", status="OK")
