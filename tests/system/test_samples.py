"""Several samples of one prompt: each equals the one generated alone, and the prompt is computed once."""

import grpc
import pytest

from harness import Cluster, cluster, inference_pb2, request


@pytest.mark.parametrize("rule, k", [("token", 0), ("coupled", 4), ("coupled", 0)])
def test_each_sample_is_what_it_would_be_alone(rule: str, k: int, pair: Cluster, prompts: list[str]) -> None:
    options = {"rule": rule, "k": k, "temperature": 1.0, "seed": 11, "max_tokens": 24, "ignore_eos": True}
    together = pair.generate_samples(prompts[3], 5, **options)
    for index, answer in enumerate(together):
        alone = request(prompts[3], **options)
        alone.sample_index = index
        assert [t.id for chunk in pair.stub.Generate(alone, timeout=60) for t in chunk.tokens] == answer.tokens
    assert len({tuple(answer.tokens) for answer in together}) == 5
    pair.wait_idle()


def test_the_prompt_is_computed_once_by_the_target(prompts: list[str]) -> None:
    prompt = " ".join(prompts)[:1500]
    with cluster(draft=None, target=["--no-prefix-cache"]) as c:
        def rows(n: int) -> float:
            before = c.target.value("outrider_target_batch_rows_sum")
            answers = c.generate_samples(prompt, n, k=0, temperature=1, max_tokens=2, ignore_eos=True)
            assert answers[0].finish.usage.prompt_tokens > 300
            return c.target.value("outrider_target_batch_rows_sum") - before

        # Each further sample costs two rows: the last token of the prompt, and the row of the second token.
        assert rows(9) == rows(1) + 2 * 8
        c.wait_idle()


def test_samples_share_blocks_until_they_part(prompts: list[str]) -> None:
    prompt = " ".join(prompts)[:1500]
    # There are blocks for one copy of the prompt and a few per sample, but not for eight copies.
    small = ("--kv-blocks", "60", "--block-size", "16", "--no-prefix-cache")
    with cluster(draft=None, target=small) as c:
        answers = c.generate_samples(prompt, 8, k=0, temperature=1, seed=5, max_tokens=20, ignore_eos=True)
        assert c.target.value("outrider_target_preemptions_total") == 0
    with cluster(draft=None) as c:
        assert [a.tokens for a in answers] == [a.tokens for a in c.generate_samples(
            prompt, 8, k=0, temperature=1, seed=5, max_tokens=20, ignore_eos=True)]


def test_the_draft_shares_the_prompt_too(prompts: list[str]) -> None:
    prompt = " ".join(prompts)[:1500]
    with cluster(coordinator=["--draft-budget", "60"]) as c:
        answers = c.generate_samples(prompt, 6, k=2, temperature=0, max_tokens=30, ignore_eos=True)
        fed = c.draft.value("outrider_draft_batch_rows_sum")
    assert fed < 2 * answers[0].finish.usage.prompt_tokens + 6 * 3 * 30
    assert len({tuple(answer.tokens) for answer in answers}) == 1
    assert all(answer.speculation.accepted > 0 for answer in answers)


def test_prompt_logprobs_come_once(pair: Cluster, prompts: list[str]) -> None:
    wanted = request(prompts[0], n=3, k=0, temperature=1, max_tokens=3)
    wanted.logprobs.prompt = 0
    scored = [chunk.sample for chunk in pair.stub.Generate(wanted, timeout=60) if chunk.prompt_logprobs]
    assert scored == [0]


def test_cancelling_ends_all_samples(pair: Cluster, prompts: list[str]) -> None:
    stream = pair.stream(prompts[0], n=8, k=2, temperature=1, ignore_eos=True)
    for _ in range(20):
        next(stream)
    stream.cancel()
    pair.wait_idle()


def test_samples_outlive_a_target_that_restarts(prompts: list[str]) -> None:
    options = {"rule": "coupled", "k": 3, "temperature": 0.9, "seed": 3, "max_tokens": 200, "ignore_eos": True}
    with cluster() as c:
        undisturbed = [answer.tokens for answer in c.generate_samples(prompts[5], 6, **options)]
        stream = c.stream(prompts[5], n=6, **options)
        tokens: list[list[int]] = [[] for _ in range(6)]
        for number, chunk in enumerate(stream):
            tokens[chunk.sample] += [token.id for token in chunk.tokens]
            if number == 12:
                c.kill(c.target)
                c.restart_target()
        assert tokens == undisturbed
        assert c.lost_target_during(2), "not killed in the middle"


@pytest.mark.parametrize("field, wanted", [
    ("n", {"n": 0}), ("n", {"n": 65}), ("resume_from", {"n": 2, "resume_from": [5]}),
    ("sample_index", {"n": 3, "sample_index": 2**32 - 2})])
def test_what_cannot_be_is_refused_by_name(field: str, wanted: dict[str, object], pair: Cluster,
                                           prompts: list[str]) -> None:
    bad = request(prompts[0], max_tokens=4)
    bad.MergeFrom(inference_pb2.GenerateRequest(**wanted))
    refusal = pair.refused(bad)
    assert refusal.code == "INVALID_ARGUMENT" and refusal.metadata["field"] == field and refusal.metadata["range"]


def test_samples_count_as_requests(prompts: list[str]) -> None:
    with cluster(draft=None, coordinator=["--max-requests", "4", "--max-waiting-requests", "0"]) as c:
        assert c.refused(request(prompts[0], n=5)).metadata == {"field": "n", "range": "1 to 4"}
        stream = c.stream(prompts[0], n=3, k=0, temperature=1, ignore_eos=True)
        next(stream)
        refusal = c.refused(request(prompts[0], n=2, max_tokens=2))
        assert (refusal.code, refusal.retry) == (grpc.StatusCode.RESOURCE_EXHAUSTED.name, True)
        stream.cancel()
