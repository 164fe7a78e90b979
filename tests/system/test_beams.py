"""Beam search finds the texts that the target alone would find, in fewer calls of the target."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from harness import DATA, FULL, PRECISE, Answer, Cluster, cluster, eventually, request

from outrider.v1 import inference_pb2

# Enough time for every proposal, however busy the machine is.
PATIENT = ["--draft-budget", "60"]
STOPS = {"auto": inference_pb2.BEAM_STOP_AUTO, "first": inference_pb2.BEAM_STOP_FIRST,
         "never": inference_pb2.BEAM_STOP_NEVER}
STEPS = "outrider_target_step_duration_seconds_count"
# Texts that transformers 5 finds with the shipped target in float32: scripts/goldens/beams.py.
GOLDENS = json.loads((DATA / "beams.json").read_text())


@pytest.fixture(scope="module")
def trio() -> Iterator[Cluster]:
    with cluster(coordinator=PATIENT) as c:
        yield c


@pytest.fixture(scope="module")
def precise() -> Iterator[Cluster]:
    with cluster(target=PRECISE, coordinator=PATIENT) as c:
        yield c


def receive(stream: grpc.Call, n: int) -> list[Answer]:
    answers = [Answer() for _ in range(n)]
    for chunk in stream:
        answers[chunk.sample].add(chunk)
    return answers


def search(c: Cluster, prompt: Any, n: int, beam: inference_pb2.BeamOptions, **options: Any) -> list[Answer]:
    """The n best texts, best first."""
    answers = receive(c.stub.Generate(request(prompt, n=n, beam=beam, **options)), n)
    assert all(answer.finish is not None for answer in answers)
    scores = [answer.finish.score for answer in answers]
    assert scores == sorted(scores, reverse=True)
    return answers


def wait_for_steps(c: Cluster, more: int, since: float) -> None:
    eventually(lambda: c.target.value(STEPS) >= since + more, f"{more} steps of the target")


def texts(answers: list[Answer]) -> list[tuple[list[int], float]]:
    return [(answer.tokens, answer.finish.score) for answer in answers]


def of_golden(golden: dict[str, Any], c: Cluster, **options: Any) -> list[Answer]:
    beam = inference_pb2.BeamOptions(width=golden["width"], length_penalty=golden["penalty"], stop=STOPS[golden["stop"]])
    return search(c, golden["prompt_ids"], golden["n"], beam, stop_ids=golden["eos"], ignore_eos=True,
                  max_tokens=golden["max_tokens"], **options)


@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_the_texts_are_those_of_transformers(k: int, precise: Cluster) -> None:
    for golden in GOLDENS:
        answers = of_golden(golden, precise, k=k)
        assert [answer.tokens for answer in answers] == [answer["tokens"] for answer in golden["answers"]], golden["prompt"]
        for answer, expected in zip(answers, golden["answers"], strict=True):
            assert answer.finish.score == pytest.approx(expected["score"], rel=1e-4)


def test_what_is_drafted_changes_the_calls_and_nothing_else(trio: Cluster, prompts: list[str]) -> None:
    how = {"max_tokens": 48, "ignore_eos": True}
    calls = {"plain": 0, "drafted": 0}
    for prompt, width in itertools.product(prompts[:4 if FULL else 2], (1, 3, 8)):
        beam = inference_pb2.BeamOptions(width=width)
        plain = search(trio, prompt, width, beam, k=0, **how)
        assert plain[0].speculation.rounds == 48 and plain[0].speculation.drafted == 0
        wide = inference_pb2.BeamOptions(width=width, draft_width=3 * width)
        for drafted in (search(trio, prompt, width, wide, k=3, **how), search(trio, prompt, width, beam, **how),
                        search(trio, prompt, width, beam, k=2, drafter="ngram", **how)):
            assert texts(drafted) == texts(plain), (prompt, width)
            assert drafted[0].speculation.rounds <= 48
        calls["plain"] += 48
        calls["drafted"] += search(trio, prompt, 1, wide, k=3, **how)[0].speculation.rounds
    assert calls["drafted"] < 0.6 * calls["plain"]


def test_one_text_is_greedy_decoding(trio: Cluster, prompts: list[str]) -> None:
    for prompt in prompts[:3]:
        found, = search(trio, prompt, 1, inference_pb2.BeamOptions(width=1), k=3, max_tokens=40)
        assert found.tokens == trio.generate(prompt, temperature=0, max_tokens=40).tokens


def test_the_first_text_has_the_account_of_the_search(trio: Cluster, prompts: list[str]) -> None:
    first, second = search(trio, prompts[0], 2, inference_pb2.BeamOptions(width=4), k=3, max_tokens=40, ignore_eos=True)
    stats = first.speculation
    assert stats.rounds + stats.accepted == 40
    assert stats.accepted == sum(stats.accepted_per_position) == first.kinds.count("accepted") > 0
    assert stats.drafted == sum(stats.drafted_per_position) <= 3 * stats.drafts
    assert stats.exact and stats.tree_rounds > 0
    assert second.speculation.rounds == 0
    values = trio.coordinator.metrics()
    assert values.value("outrider_beam_search_steps_total") > values.value("outrider_beam_search_rounds_total") > 0
    assert values.value("outrider_beam_searches_total") > 0


@pytest.mark.parametrize("service", ["draft", "target"])
def test_a_lost_server_changes_no_text(service: str, prompts: list[str]) -> None:
    beam = inference_pb2.BeamOptions(width=6)
    how = {"k": 3, "max_tokens": 200, "ignore_eos": True}
    with cluster(coordinator=PATIENT) as c:
        alone = texts(search(c, prompts[1], 6, beam, **how))
        steps = c.target.value(STEPS)
        stream = c.stub.Generate(request(prompts[1], n=6, beam=beam, **how))
        wait_for_steps(c, 20, steps)
        c.kill(getattr(c, service))
        getattr(c, f"restart_{service}")()
        assert texts(receive(stream, 6)) == alone


def test_a_search_that_nobody_waits_for_leaves_nothing(trio: Cluster, prompts: list[str]) -> None:
    steps = trio.target.value(STEPS)
    beam = inference_pb2.BeamOptions(width=8)
    stream = trio.stub.Generate(request(prompts[0], beam=beam, max_tokens=1000, ignore_eos=True))
    wait_for_steps(trio, 10, steps)
    stream.cancel()
    trio.wait_idle()


def test_searches_and_samples_share_a_small_cache(prompts: list[str]) -> None:
    """A target with room for hardly more than one search: sequences are preempted, and come back."""
    beam = inference_pb2.BeamOptions(width=4)
    how = {"max_tokens": 60, "ignore_eos": True}
    with cluster(target=["--kv-blocks", "24"], coordinator=PATIENT) as c:
        alone = [texts(search(c, prompt, 4, beam, k=3, **how)) for prompt in prompts[:3]]
        greedy = c.generate(prompts[3], temperature=0, **how).tokens
        streams = [c.stub.Generate(request(prompt, n=4, k=3, beam=beam, **how)) for prompt in prompts[:3]]
        assert c.generate(prompts[3], temperature=0, **how).tokens == greedy
        for stream, expected in zip(streams, alone, strict=True):
            assert texts(receive(stream, 4)) == expected


@pytest.mark.parametrize("field, beam, options", [
    ("beam.width", {}, {}),
    ("beam.width", {"width": 65}, {}),
    ("beam.draft_width", {"width": 4, "draft_width": 3}, {}),
    ("beam.draft_width", {"width": 4, "draft_width": 257}, {}),
    ("beam.length_penalty", {"width": 4, "length_penalty": 11}, {}),
    ("beam.length_penalty", {"width": 4, "length_penalty": float("nan")}, {}),
    ("beam.stop", {"width": 4, "stop": 7}, {}),
    ("n", {"width": 4}, {"n": 5}),
    ("sampling.temperature", {"width": 4}, {"temperature": 0.5}),
    ("sampling.top_k", {"width": 4}, {"top_k": 3}),
    ("sampling.min_p", {"width": 4}, {"min_p": 0.1}),
    ("stop.strings", {"width": 4}, {"stop": ["."]}),
    ("stop.token_ids", {"width": 4}, {"stop_ids": range(300)}),
    ("trace", {"width": 4}, {"trace": True}),
    ("speculation.tree", {"width": 4}, {"tree": "2x2"}),
])
def test_what_cannot_be_is_refused(field: str, beam: dict, options: dict, trio: Cluster) -> None:
    with pytest.raises(grpc.RpcError) as error:
        list(trio.stub.Generate(request("Once", max_tokens=4, beam=inference_pb2.BeamOptions(**beam), **options)))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.details().startswith(f"{field}:")
