"""The second law: tokens sampled through three processes have the target's distribution.

Exact enumeration proves the rules (tests/unit/spec_exactness_test.cc). These tests show that each form of
q, in chains and in trees, arrives as it was sampled from. The negative control is a man in the middle that sends another q than
the draft sampled from: the same test must then fail. test_proposals_law.py tests the target's own proposals.
"""

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest

from harness import BIN, PRECISE, TARGET_MODEL, Cluster, cluster, draft_pb2, draft_pb2_grpc, full, request, target_pb2, target_pb2_grpc
from law import (ACCEPTABLE, BOS, DAMNING, LIES, SAMPLES, Cells, assert_law, canary, deviations, law_of, p_value, prompt_ids, proxy,
                 sample, with_lies)

VOCABULARY = 4096
REST = (-1,)  # the cell of all other pairs


@pytest.fixture(scope="module")
def pairs(goldens: dict[str, Any]) -> Cells:
    """The most probable pairs of first tokens without top_k; all others are pooled."""
    cells = {(row["token"], token): row["p"] * p
             for row in goldens["pairs"] for token, p in zip(row["next"], row["p_next"], strict=True)}
    return cells | {REST: 1 - sum(cells.values())}


# The form of q that drafted tokens have, and the options of a request that lead to it.
FORMS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "sparse": ("sparse", {}), "dense": ("dense", {"draft_top_n": VOCABULARY}),
    "point mass": ("point_mass", {"draft_temperature": 0.0}), "absent": (None, {"rule": "coupled"})}
SHAPES = {"chain": {"k": 3}, "tree": {"tree": "2x2x1"}}


class Listener(target_pb2_grpc.TargetServicer):
    """A proxy of a target that notes the forms of q, and whether they came in trees."""

    def __init__(self, seen: set[tuple[str | None, str]], target: grpc.Channel) -> None:
        self._seen, self._target = seen, target_pb2_grpc.TargetStub(target)

    def Verify(self, requests: Iterator[target_pb2.VerifyRequest],
               context: grpc.ServicerContext) -> Iterator[target_pb2.VerifyResponse]:
        def noted() -> Iterator[target_pb2.VerifyRequest]:
            for request in requests:
                for item in request.items:
                    parents = [node.parent for node in item.verify.draft]
                    shape = "chain" if parents == list(range(-1, len(parents) - 1)) else "tree"
                    self._seen.update((node.q.WhichOneof("form"), shape) for node in item.verify.draft)
                yield request

        answers = self._target.Verify(noted())
        context.add_callback(answers.cancel)
        with contextlib.suppress(grpc.RpcError):
            yield from answers


@contextlib.contextmanager
def listening(seen: set[tuple[str | None, str]], address: str) -> Iterator[str]:
    def add(channel: grpc.Channel, server: grpc.Server) -> None:
        target_pb2_grpc.add_TargetServicer_to_server(Listener(seen, channel), server)

    with proxy(address, add) as listened:
        yield listened


@pytest.fixture(scope="module")
def seen() -> set[tuple[str | None, str]]:
    return set()


@pytest.fixture(scope="module")
def c(seen: set[tuple[str | None, str]]) -> Iterator[Cluster]:
    with cluster(target=PRECISE, target_through=partial(listening, seen)) as running:
        yield running


@pytest.fixture(scope="module")
def law(c: Cluster, goldens: dict[str, Any]) -> Cells:
    return law_of(c, goldens["prompt"], 5, 3)


def test_the_service_scores_prompts_as_transformers_does(c: Cluster, goldens: dict[str, Any], paths: Cells) -> None:
    law = law_of(c, goldens["prompt"], goldens["top_k"], len(next(iter(paths))))
    assert set(law) == set(paths)
    assert all(abs(law[path] - p) < 1e-4 for path, p in paths.items())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sampled_tokens_have_the_targets_distribution(form: str, shape: str, c: Cluster, law: Cells, goldens: dict[str, Any],
                                                      seen: set[tuple[str | None, str]]) -> None:
    sent, options = FORMS[form]
    seen.clear()
    before = canary(c)
    assert_law(sample(c, goldens["prompt"], 3, top_k=5, **SHAPES[shape], **options), law)
    # The last rounds of an answer have room for a chain only.
    assert (sent, shape) in seen and {form for form, _ in seen} == {sent}
    if "rule" not in options:
        assert deviations(c, before) < 4.5


@pytest.mark.parametrize("k", [2, full(4)])
def test_so_they_have_with_two_drafts(k: int, law: Cells, goldens: dict[str, Any]) -> None:
    """Both drafts compete for the same positions, each with its own q. Without random numbers of its own the second would say what the
    first says, whenever their q are alike."""
    with cluster(target=PRECISE, second_draft=["--frequent-tokens", "600"]) as c:
        assert_law(sample(c, goldens["prompt"], 3, top_k=5, drafter="both_models", k=k), law)
        assert deviations(c) < 4.5


# ---- under a grammar

LETTERS, LONG = "aeht", 3  # the vocabulary has 18 tokens of these letters, so a text has many spellings


@pytest.fixture(scope="module")
def spellings() -> dict[int, str]:
    vocabulary = json.loads((TARGET_MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    return {token: text for text, token in vocabulary.items() if set(text) <= set(LETTERS)}


@pytest.fixture(scope="module")
def masked(c: Cluster, goldens: dict[str, Any], spellings: dict[int, str]) -> Cells:
    """The law if each token is drawn from those that may follow, which requests list as allowed ids."""
    def after(path: tuple[int, ...], room: int) -> Cells:
        if room == 0:
            return {path: 1.0}
        allowed = [token for token, text in spellings.items() if len(text) <= room]
        wanted = request([*ids, *path], max_tokens=1, k=0, temperature=1, allowed_ids=allowed)
        wanted.logprobs.top = 20
        [token] = [token for chunk in c.stub.Generate(wanted) for token in chunk.tokens]
        law: Cells = {}
        for each in token.logprobs.top:
            further = after((*path, each.id), room - len(spellings[each.id])) if each.logprob > -30 else {}
            law |= {way: math.exp(each.logprob) * p for way, p in further.items()}
        return law

    ids = [BOS, *prompt_ids(c, goldens["prompt"])]
    law = after((), LONG)
    return {way: p / sum(law.values()) for way, p in law.items()}


@pytest.mark.parametrize("way", [{"k": 3}, {"tree": "2x2x1"}, {"k": 3, "rule": "block"}, {"drafter": "auto", "k": 3},
                                 {"k": 3, "draft_temperature": 0.0}], ids=lambda way: "-".join(map(str, way.values())))
def test_so_they_have_under_a_grammar(way: dict[str, Any], c: Cluster, masked: Cells, goldens: dict[str, Any],
                                      spellings: dict[int, str]) -> None:
    seen = sample(c, goldens["prompt"], LONG + 1, grammar={"regex": f"[{LETTERS}]{{{LONG}}}"}, ignore_eos=False, **way)
    texts = [tuple(token for token in path if token in spellings) for path in seen]
    assert {len("".join(spellings[token] for token in path)) for path in texts} == {LONG}
    assert len(masked) > 50 and p_value(Counter(texts), masked) > ACCEPTABLE


# ---- what enumeration proves too

MORE = [{"rule": "block"}, {"drafter": "ngram"}, {"drafter": "auto"}, {"k": 1}, {"k": 5}, {"tree": "chains:3"}, {"tree": "budget:8"},
        {"tree": "chains:2", "sibling_order": "random"}]


@pytest.mark.parametrize("way", [full(way) for way in MORE], ids=lambda way: "-".join(map(str, way.values())))
def test_so_they_have_every_other_way(way: dict[str, Any], c: Cluster, law: Cells, goldens: dict[str, Any]) -> None:
    assert_law(sample(c, goldens["prompt"], 3, top_k=5, **({"k": 3} | way if "tree" not in way else way)), law)


@pytest.mark.full
@pytest.mark.parametrize("rule", ["token", "block"])
def test_tokens_that_are_coupled_with_what_was_drafted_ahead_have_it_too(rule: str, goldens: dict[str, Any]) -> None:
    """One answer at a time, so that the draft has time, and without a seed, so that the bonus token is coupled."""
    with cluster(target=PRECISE) as c:
        law = law_of(c, goldens["prompt"], 5, 3)
        answers = [c.generate(goldens["prompt"], k=1, top_k=5, rule=rule, schedule="run_ahead", temperature=1.0,
                              max_tokens=6, ignore_eos=True) for _ in range(SAMPLES)]
        assert_law([tuple(answer.tokens) for answer in answers], law)
        # On a busy machine running ahead seldom pays, so it is seldom done.
        assert sum(answer.speculation.ahead_hits for answer in answers) > SAMPLES // 50, "nothing was drafted ahead"
        if rule == "token":
            assert deviations(c) < 5


@pytest.mark.full
@pytest.mark.skipif(not (BIN / "liboutrider_torch.so").exists(), reason="built without libtorch")
@pytest.mark.parametrize("rule", ["token", "coupled"])
def test_so_they_have_on_libtorch(rule: str, goldens: dict[str, Any]) -> None:
    with cluster(target=PRECISE, draft=None) as native:
        law = law_of(native, goldens["prompt"], 5, 3)
    with cluster(target=["--engine", "torch"], draft=["--engine", "torch"]) as c:
        seen = sample(c, goldens["prompt"], 3, k=3, top_k=5, rule=rule)
        assert_law(seen, law)
        if rule == "token":
            assert deviations(c) < 5


@pytest.mark.full
@pytest.mark.parametrize("rule", ["token", "block"])
def test_so_they_have_where_drafts_end_early(rule: str, goldens: dict[str, Any]) -> None:
    # One answer at a time, since K would be chosen for all, and without a seed, which would fix K. So runs differ.
    with cluster(target=PRECISE) as c:
        law = law_of(c, goldens["prompt"], 5, 3)
        answers = [c.generate(goldens["prompt"], temperature=1.0, top_k=5, max_tokens=14, ignore_eos=True, rule=rule)
                   for _ in range(SAMPLES // 3)]
        assert_law([tuple(answer.tokens) for answer in answers], law, (2, 3), DAMNING)
        drafts, drafted = [c.coordinator.metrics().value(f"outrider_spec_decode_num_{name}_total")
                           for name in ("drafts", "draft_tokens")]
        assert 1.1 < drafted / drafts < 8
        if rule == "token":
            assert deviations(c) < 5


@pytest.mark.full
@pytest.mark.parametrize("drafter, rule", [("ngram", "block"), ("copy", "token")])
def test_so_they_have_with_drafters_that_need_no_draft_service(drafter: str, rule: str, goldens: dict[str, Any],
                                                               paths: Cells) -> None:
    length = len(next(iter(paths)))
    with cluster(target=PRECISE, draft=None) as c:
        observed = Counter(sample(c, goldens["prompt"], length, drafter=drafter, rule=rule, k=4, top_k=goldens["top_k"]))
        assert c.coordinator.value("outrider_spec_decode_num_accepted_tokens_by_drafter_total", drafter=drafter) > 0
        assert p_value(observed, paths) > ACCEPTABLE
        if rule == "token":
            assert deviations(c) < 5


@pytest.mark.full
def test_so_they_have_over_the_whole_vocabulary(goldens: dict[str, Any], pairs: Cells) -> None:
    with cluster(target=PRECISE) as c:
        seen = sample(c, goldens["prompt"], 2, k=4)
        assert p_value(Counter(pair if pair in pairs else REST for pair in seen), pairs) > ACCEPTABLE
        assert deviations(c) < 5


# --- the negative control --------------------------------------------------------------------------------------


class Liar(draft_pb2_grpc.DraftServicer):
    """A proxy of a draft that lies about q."""

    def __init__(self, draft: grpc.Channel) -> None:
        self._draft = draft_pb2_grpc.DraftStub(draft)

    def Propose(self, requests: Iterator[draft_pb2.ProposeRequest],
                context: grpc.ServicerContext) -> Iterator[draft_pb2.ProposeResponse]:
        return with_lies(self._draft.Propose(requests), lambda result: result.nodes, context)


def liar(address: str) -> contextlib.AbstractContextManager[str]:
    return proxy(address, lambda channel, server: draft_pb2_grpc.add_DraftServicer_to_server(Liar(channel), server))


@pytest.mark.parametrize("rule", ["token", full("block")])
def test_a_q_that_was_not_sampled_from_is_found_out(rule: str, goldens: dict[str, Any], paths: Cells) -> None:
    length = len(next(iter(paths)))
    with cluster(target=PRECISE, through=liar) as c:
        observed = Counter(sample(c, goldens["prompt"], length, LIES, rule=rule, k=4, top_k=goldens["top_k"]))
        assert p_value(observed, paths) < DAMNING
        if rule == "token":
            assert deviations(c) > 8


@pytest.mark.full
def test_so_it_is_with_a_tree(goldens: dict[str, Any], paths: Cells) -> None:
    length = len(next(iter(paths)))
    with cluster(target=PRECISE, through=liar) as c:
        observed = Counter(sample(c, goldens["prompt"], length, LIES, tree="2x2", top_k=goldens["top_k"]))
        assert p_value(observed, paths) < DAMNING
        assert deviations(c) > 8


def test_a_lie_about_q_changes_no_greedy_token(goldens: dict[str, Any]) -> None:
    with cluster(target=PRECISE, through=liar) as c:
        plain = c.generate(goldens["prompt"], k=0, temperature=0, max_tokens=60)
        assert c.generate(goldens["prompt"], k=4, temperature=0, max_tokens=60).tokens == plain.tokens
