"""The second law: tokens sampled through three processes have the target's distribution, under every rule.

The exact distributions are transformers' (scripts/goldens/generation.py), and the service's scores of prompts,
which are compared with them. The negative control is a man in the middle that sends the target another q than the draft
sampled from, or, where the target proposes itself, than the target did: the same test must then fail.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from scipy import stats

from harness import (BIN, Cluster, cluster, draft_pb2, draft_pb2_grpc, load_goldens, load_prompts, request, sequence_pb2, target_pb2,
                     target_pb2_grpc)
from heads import FLAGS, PROPOSERS

SAMPLES, LIES = 1600, 1200
PER_CALL = 50
# The level for a true hypothesis; a false one must be rejected beyond doubt. Seeds are fixed, so that a
# run differs from another only where a draft ran out of time.
ACCEPTABLE, DAMNING = 1e-3, 1e-6

Cells = dict[tuple[int, ...], float]
REST = (-1,)
BOS = 4094


def p_value(observed: Counter[tuple[int, ...]], expected: Cells) -> float:
    """The p-value of the chi-square test; cells with fewer than 5 expected counts are pooled."""
    assert abs(sum(expected.values()) - 1) < 1e-9
    assert set(observed) <= set(expected), "something impossible was emitted"
    total = sum(observed.values())
    rows = sorted(((p * total, observed[cell]) for cell, p in expected.items()), reverse=True)
    large = [row for row in rows if row[0] >= 5]
    small = np.sum([row for row in rows if row[0] < 5] or [(0, 0)], axis=0)
    if small[0] > 0:
        large.append(tuple(small))
    wanted, seen = np.array(large).T
    return stats.chisquare(seen, wanted).pvalue


def sample(c: Cluster, prompt: str, length: int, count: int = SAMPLES, **options: Any) -> list[tuple[int, ...]]:
    """The first tokens of many answers, each with its own random numbers."""
    options = {"temperature": 1.0, "max_tokens": length + 5, "ignore_eos": True} | options
    with ThreadPoolExecutor(2) as pool:
        calls = pool.map(lambda seed: c.generate_samples(prompt, PER_CALL, seed=seed, **options),
                         range(count // PER_CALL))
        return [tuple(answer.tokens[:length]) for answers in calls for answer in answers]


def next_tokens(c: Cluster, ids: list[int], top_k: int) -> dict[int, float]:
    """The distribution after these tokens under top_k, from their scores as a prompt."""
    wanted = request([*ids, 0], max_tokens=1, k=0)
    wanted.logprobs.prompt = top_k
    last = c.score(wanted)[-1]
    weights = {token.id: math.exp(token.logprob) for token in last.top}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def law_after(c: Cluster, ids: list[int], top_k: int, depth: int) -> Cells:
    """The exact distribution of the `depth` tokens after these under top_k."""
    law: Cells = {(): 1.0}
    for _ in range(depth):
        law = {(*path, token): p * q for path, p in law.items()
               for token, q in next_tokens(c, [*ids, *path], top_k).items()}
    return law


def law_of(c: Cluster, prompt: str, top_k: int, depth: int) -> Cells:
    """The exact distribution of the first `depth` tokens under top_k."""
    wanted = request(prompt, max_tokens=1, k=0)
    wanted.logprobs.prompt = 0
    ids = [BOS] + [position.token.id for position in c.score(wanted)]
    return law_after(c, ids, top_k, depth)


def first_of(law: Cells, length: int) -> Cells:
    """The marginal distribution of the first `length` tokens."""
    cells: Cells = {}
    for path, p in law.items():
        cells[path[:length]] = cells.get(path[:length], 0) + p
    return cells


def observed_over_expected(c: Cluster) -> tuple[float, float]:
    """The acceptance canary, and its deviation from 1 in standard deviations."""
    metrics = c.coordinator.metrics()
    accepted, expected, variance = [metrics.value(f"outrider_spec_decode_{name}_total") for name in (
        "num_accepted_tokens", "expected_accepted_tokens", "expected_accepted_tokens_variance")]
    return accepted / expected, abs(accepted - expected) / variance ** 0.5


@pytest.fixture(scope="module")
def goldens() -> dict[str, Any]:
    return load_goldens("distributions.json")


@pytest.fixture(scope="module")
def paths(goldens: dict[str, Any]) -> Cells:
    """Every continuation of a few tokens under top_k."""
    return {tuple(path["tokens"]): path["p"] for path in goldens["top_k_paths"]}


@pytest.fixture(scope="module")
def pairs(goldens: dict[str, Any]) -> Cells:
    """The most probable pairs of first tokens without top_k; all others are pooled."""
    cells = {(row["token"], token): row["p"] * p
             for row in goldens["pairs"] for token, p in zip(row["next"], row["p_next"], strict=True)}
    return cells | {REST: 1 - sum(cells.values())}


def test_the_service_scores_prompts_as_transformers_does(goldens: dict[str, Any], paths: Cells) -> None:
    with cluster(draft=None) as c:
        law = law_of(c, goldens["prompt"], goldens["top_k"], len(next(iter(paths))))
    assert set(law) == set(paths)
    assert all(abs(law[path] - p) < 1e-4 for path, p in paths.items())


WAYS = [{"rule": "token"}, {"rule": "block"}, {"rule": "coupled"}, {"rule": "token", "drafter": "ngram"},
        {"rule": "token", "drafter": "auto"}]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way.values()))
def test_the_first_tokens_have_the_targets_distribution(way: dict[str, str], goldens: dict[str, Any]) -> None:
    with cluster() as c:
        law = law_of(c, goldens["prompt"], 5, 3)
        for k in (1, 3, 5):
            seen = sample(c, goldens["prompt"], 3, k=k, top_k=5, **way)
            for length in (1, 2, 3):
                observed = Counter(path[:length] for path in seen)
                assert p_value(observed, first_of(law, length)) > ACCEPTABLE, (k, length)
        if way["rule"] == "token":
            assert observed_over_expected(c)[1] < 5


@pytest.mark.parametrize("rule", ["token", "block"])
def test_tokens_that_are_coupled_with_what_was_drafted_ahead_have_it_too(rule: str, goldens: dict[str, Any]) -> None:
    """One answer at a time, so that the draft has time, and without a seed, so that the bonus token is coupled."""
    with cluster() as c:
        law = law_of(c, goldens["prompt"], 5, 3)
        answers = [c.generate(goldens["prompt"], k=1, top_k=5, rule=rule, schedule="run_ahead", temperature=1.0,
                              max_tokens=6, ignore_eos=True) for _ in range(SAMPLES)]
        for length in (1, 2, 3):
            observed = Counter(tuple(answer.tokens[:length]) for answer in answers)
            assert p_value(observed, first_of(law, length)) > ACCEPTABLE, length
        # Where others use the processors too, running ahead seldom pays, and is seldom done.
        assert sum(answer.speculation.ahead_hits for answer in answers) > SAMPLES // 50, "nothing was drafted ahead"
        if rule == "token":
            assert observed_over_expected(c)[1] < 5


TREES = [{"tree": "2x2x1"}, {"tree": "chains:3"}, {"tree": "budget:8"}, {"tree": "chains:2", "sibling_order": "random"},
         {"tree": "2x2", "rule": "coupled"}]


@pytest.mark.parametrize("way", TREES, ids=lambda way: "-".join(way.values()))
def test_so_they_have_with_trees(way: dict[str, str], goldens: dict[str, Any]) -> None:
    with cluster() as c:
        law = law_of(c, goldens["prompt"], 5, 3)
        seen = sample(c, goldens["prompt"], 3, top_k=5, **way)
        for length in (1, 2, 3):
            observed = Counter(path[:length] for path in seen)
            assert p_value(observed, first_of(law, length)) > ACCEPTABLE, length
        assert c.coordinator.metrics().value("outrider_spec_decode_num_trees_total") > SAMPLES
        if "rule" not in way:
            assert observed_over_expected(c)[1] < 4


@pytest.mark.skipif(not (BIN / "liboutrider_torch.so").exists(), reason="built without libtorch")
@pytest.mark.parametrize("rule", ["token", "coupled"])
def test_so_they_have_on_libtorch(rule: str, goldens: dict[str, Any]) -> None:
    with cluster(draft=None) as native:
        law = law_of(native, goldens["prompt"], 5, 3)
    with cluster(target=["--engine", "torch"], draft=["--engine", "torch"]) as c:
        seen = sample(c, goldens["prompt"], 3, k=3, top_k=5, rule=rule)
        for length in (1, 2, 3):
            observed = Counter(path[:length] for path in seen)
            assert p_value(observed, first_of(law, length)) > ACCEPTABLE, length
        if rule == "token":
            assert observed_over_expected(c)[1] < 5


@pytest.mark.parametrize("rule", ["token", "block"])
def test_so_they_have_where_drafts_end_early(rule: str, goldens: dict[str, Any]) -> None:
    # One after another and without a seed, since otherwise K is chosen for all, or fixed. So runs differ.
    with cluster() as c:
        law = law_of(c, goldens["prompt"], 5, 3)
        answers = [c.generate(goldens["prompt"], temperature=1.0, top_k=5, max_tokens=14, ignore_eos=True, rule=rule)
                   for _ in range(SAMPLES // 3)]
        for length in (2, 3):
            observed = Counter(tuple(answer.tokens[:length]) for answer in answers)
            assert p_value(observed, first_of(law, length)) > DAMNING, length
        drafts, drafted = [c.coordinator.metrics().value(f"outrider_spec_decode_num_{name}_total")
                           for name in ("drafts", "draft_tokens")]
        assert 1.1 < drafted / drafts < 8
        if rule == "token":
            assert observed_over_expected(c)[1] < 5


@pytest.mark.parametrize("drafter, rule", [("ngram", "block"), ("copy", "token"), ("unigram", "token"),
                                           ("bigram", "token"), ("bigram", "block"), ("random", "token")])
def test_so_they_have_with_drafters_that_need_no_draft_service(drafter: str, rule: str, goldens: dict[str, Any],
                                                               paths: Cells, tmp_path: Path) -> None:
    length = len(next(iter(paths)))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(load_prompts()))
    with cluster(draft=None, coordinator=["--drafter-corpus", str(corpus)]) as c:
        observed = Counter(sample(c, goldens["prompt"], length, drafter=drafter, rule=rule, k=4, top_k=goldens["top_k"]))
        assert c.coordinator.value("outrider_spec_decode_num_accepted_tokens_by_drafter_total", drafter=drafter) > 0
        assert p_value(observed, paths) > ACCEPTABLE
        if rule == "token":
            assert observed_over_expected(c)[1] < 5


@pytest.mark.parametrize("way", [{"k": 3}, {"tree": "2x2x1"}, {"k": 3, "rule": "block"}], ids=["chain", "tree", "block"])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_so_they_have_with_what_the_target_proposes(proposer: str, way: dict[str, Any],
                                                    goldens: dict[str, Any]) -> None:
    with cluster(target=FLAGS, draft=None) as c:
        law = law_of(c, goldens["prompt"], 5, 3)
        seen = sample(c, goldens["prompt"], 3, top_k=5, drafter=proposer, **way)
        for length in (1, 2, 3):
            observed = Counter(path[:length] for path in seen)
            assert p_value(observed, first_of(law, length)) > ACCEPTABLE, length
        assert c.coordinator.metrics().value("outrider_spec_decode_num_drafts_total") > SAMPLES
        if "rule" not in way:
            assert observed_over_expected(c)[1] < 4


def test_so_they_have_over_the_whole_vocabulary(goldens: dict[str, Any], pairs: Cells) -> None:
    with cluster() as c:
        seen = sample(c, goldens["prompt"], 2, k=4)
        assert p_value(Counter(pair if pair in pairs else REST for pair in seen), pairs) > ACCEPTABLE
        assert observed_over_expected(c)[1] < 5


# --- the negative control --------------------------------------------------------------------------------------


def flatten(nodes: Iterable[sequence_pb2.DraftNode]) -> None:
    """Replaces every distribution by the uniform one over its tokens."""
    for node in nodes:
        if (form := node.q.WhichOneof("form")) in ("sparse", "dense"):
            weights = getattr(node.q, form).weights
            weights[:] = [float(weight > 0) for weight in weights]


def with_lies(answers: Any, nodes_of: Callable[[Any], Iterable[sequence_pb2.DraftNode]],
              context: grpc.ServicerContext) -> Iterator[Any]:
    """The responses of a stream, the q of whose results' nodes are flattened."""
    context.add_callback(answers.cancel)
    with contextlib.suppress(grpc.RpcError):
        for response in answers:
            for result in response.results:
                flatten(nodes_of(result))
            yield response


class Liar(draft_pb2_grpc.DraftServicer):
    """A proxy of a draft that lies about q."""

    def __init__(self, draft: grpc.Channel) -> None:
        self._draft = draft_pb2_grpc.DraftStub(draft)

    def Propose(self, requests: Iterator[draft_pb2.ProposeRequest],
                context: grpc.ServicerContext) -> Iterator[draft_pb2.ProposeResponse]:
        return with_lies(self._draft.Propose(requests), lambda result: result.nodes, context)


class LyingTarget(target_pb2_grpc.TargetServicer):
    """A proxy of a target that lies about the q of its own proposals."""

    def __init__(self, target: grpc.Channel) -> None:
        self._target = target_pb2_grpc.TargetStub(target)

    def Verify(self, requests: Iterator[target_pb2.VerifyRequest],
               context: grpc.ServicerContext) -> Iterator[target_pb2.VerifyResponse]:
        return with_lies(self._target.Verify(requests), lambda result: result.verdict.proposal, context)


@contextlib.contextmanager
def proxy(address: str, add: Callable[[grpc.Channel, grpc.Server], None]) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    with grpc.insecure_channel(address) as channel:
        add(channel, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(0).wait()


def liar(address: str) -> contextlib.AbstractContextManager[str]:
    return proxy(address, lambda channel, server: draft_pb2_grpc.add_DraftServicer_to_server(Liar(channel), server))


def lying_target(address: str) -> contextlib.AbstractContextManager[str]:
    return proxy(address, lambda channel, server: target_pb2_grpc.add_TargetServicer_to_server(LyingTarget(channel), server))


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_q_that_was_not_sampled_from_is_found_out(rule: str, goldens: dict[str, Any], paths: Cells) -> None:
    length = len(next(iter(paths)))
    with cluster(through=liar) as c:
        observed = Counter(sample(c, goldens["prompt"], length, LIES, rule=rule, k=4, top_k=goldens["top_k"]))
        assert p_value(observed, paths) < DAMNING
        if rule == "token":
            ratio, deviations = observed_over_expected(c)
            assert deviations > 8, ratio


def test_so_it_is_with_a_tree(goldens: dict[str, Any], paths: Cells) -> None:
    length = len(next(iter(paths)))
    with cluster(through=liar) as c:
        observed = Counter(sample(c, goldens["prompt"], length, LIES, tree="2x2", top_k=goldens["top_k"]))
        assert p_value(observed, paths) < DAMNING
        assert observed_over_expected(c)[1] > 8


@pytest.mark.parametrize("way", [{"k": 3}, {"tree": "2x2"}], ids=["chain", "tree"])
@pytest.mark.parametrize("proposer", sorted({"eagle", "layer_skip"} & set(PROPOSERS)))
def test_so_it_is_with_what_the_target_proposes(proposer: str, way: dict[str, Any], goldens: dict[str, Any],
                                                paths: Cells) -> None:
    length = len(next(iter(paths)))
    with cluster(target=FLAGS, draft=None, target_through=lying_target) as c:
        observed = Counter(sample(c, goldens["prompt"], length, LIES, drafter=proposer, top_k=goldens["top_k"], **way))
        assert p_value(observed, paths) < DAMNING
        assert observed_over_expected(c)[1] > 8


def test_a_lie_about_q_changes_no_greedy_token(goldens: dict[str, Any]) -> None:
    with cluster(through=liar) as c:
        plain = c.generate(goldens["prompt"], k=0, temperature=0, max_tokens=60)
        assert c.generate(goldens["prompt"], k=4, temperature=0, max_tokens=60).tokens == plain.tokens
