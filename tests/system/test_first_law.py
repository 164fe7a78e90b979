"""The first law in one table: with every drafter, under greedy decoding and the coupled rule, with or without a grammar, and after
every fault, the answer is that of plain decoding.

tests/slow/test_laws.py has more texts for every drafter, rule, K, schedule and tree. Other behaviour of a feature has its own file.
With OUTRIDER_TEST_FULL each feature gets each prompt, and meets each fault under each law.
"""

import contextlib
import signal
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pytest

from harness import FULL, Answer, Cluster, cluster, eventually
from heads import FLAGS, PROPOSERS
from relay import Relay, through_relay

LAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "ignore_eos": True},
    "coupled": {"rule": "coupled", "temperature": 0.9, "seed": 5, "ignore_eos": True},
    # This excludes quotes, names and line ends, of which the texts are full, and goes on for longer than any answer here.
    "grammar": {"temperature": 0, "drafter": "model", "grammar": {"regex": "[a-z ,.]{4000,}"}}}
# A seed repeats an answer, which is not that of plain decoding, because the target makes its own proposal whenever it is asked.
SEEDED = {"temperature": 1, "seed": 3, "ignore_eos": True}
BLOCK = {"rule": "block"}
LOCAL = ["ngram", "copy"]
AHEAD = {"schedule": "run_ahead"}
BOTH = {"drafter": "both_models"}
# The configurations that draft. "auto" and the policy's K depend on times, so they differ from run to run.
FEATURES: dict[str, dict[str, Any]] = (
    {f"model, K = {k}": {"k": k} for k in (1, 2, 4, 8)} | {"model": {}, "auto": {"drafter": "auto", "k": 4}}
    | {drafter: {"drafter": drafter, "k": 4} for drafter in LOCAL}
    | {f"both models, K = {k}": BOTH | {"k": k} for k in (1, 4)}
    | {f"tree {tree}": {"tree": tree} for tree in ("2", "2x2x1", "3x2x1x1", "1x3", "chains:3", "budget:12", "auto")}
    | {f"ahead, K = {k}": AHEAD | {"k": k} for k in (1, 2, 4, 8)} | {"ahead": AHEAD, "tree auto, ahead": AHEAD | {"tree": "auto"}}
    | {proposer: {"drafter": proposer} for proposer in PROPOSERS}
    | {f"{proposer}, K = {k}": {"drafter": proposer, "k": k} for proposer in PROPOSERS for k in (1, 4, 8)}
    | {f"{proposer}, tree {tree}": {"drafter": proposer, "tree": tree} for proposer in PROPOSERS
       for tree in ("2x1", "2x2x1", "chains:2", "budget:8", "auto")})
each_law = pytest.mark.parametrize("law", LAWS)
# Enough time for every proposal, however busy the machine is.
PATIENT = ["--draft-budget", "60"]
TOKENS, LONG = 48, 120
Call = tuple[str, dict[str, Any]]


def everything(target: tuple[str, ...] = (), draft: tuple[str, ...] = (), coordinator: tuple[str, ...] = (), **options: Any) -> Any:
    """A cluster with every drafter and proposer, and more flags for each process. The second draft knows few tokens, and guesses."""
    return cluster(target=(*FLAGS, *target), draft=draft, second_draft=("--frequent-tokens", "600", "--lookup-tokens", "4"),
                   coordinator=["--max-requests", "128", *coordinator], **options)


@pytest.fixture(scope="module")
def c() -> Iterator[Cluster]:
    with everything(coordinator=PATIENT) as running:
        yield running


def fixed(options: dict[str, Any]) -> bool:
    """Whether something is drafted in every round, however long things take."""
    return options.get("k", options.get("tree", "auto")) != "auto" and options.get("drafter") != "auto"


def own(options: dict[str, Any]) -> bool:
    return fixed(options) and options.get("drafter") in PROPOSERS


def calls_of(how: dict[str, Any], prompts: list[str], tokens: int, features: Iterable[str] = FEATURES) -> list[Call]:
    return [(prompts[i % len(prompts)], how | FEATURES[feature] | {"max_tokens": tokens})
            for i, feature in enumerate(features)]


def plain(c: Cluster, law: str, prompts: list[str], tokens: int) -> dict[str, list[int]]:
    return {prompt: c.generate(prompt, k=0, max_tokens=tokens, **LAWS[law]).tokens for prompt in prompts}


@each_law
def test_every_feature_emits_what_plain_decoding_does(law: str, c: Cluster, prompts: list[str]) -> None:
    """Features run together in batches of sixteen. Each law has another prompt."""
    wanted = plain(c, law, prompts[:3], TOKENS)
    accepted = dict.fromkeys(FEATURES, 0)
    for turn in range(3) if FULL else [[*LAWS].index(law)]:
        calls = calls_of(LAWS[law], [*prompts[turn:3], *prompts[:turn]], TOKENS)
        for feature, (prompt, options), answer in zip(FEATURES, calls, c.generate_all(calls), strict=True):
            assert answer.tokens == wanted[prompt], (feature, prompt)
            assert answer.speculation.drafted > 0 or not fixed(options), feature
            # The target proposes in every round but the prompt's, and perhaps the last one.
            assert answer.speculation.drafts >= answer.speculation.rounds - 2 or not own(options), feature
            accepted[feature] += answer.speculation.accepted
    never = {feature for feature, options in FEATURES.items() if fixed(options) and not accepted[feature]}
    assert not never or law == "grammar", "nothing that was drafted stood"


def test_the_block_rule_takes_chains_of_every_drafter(c: Cluster, prompts: list[str]) -> None:
    wanted = plain(c, "greedy", prompts[:1], TOKENS)[prompts[0]]
    chains = [options for options in FEATURES.values() if "tree" not in options and options.get("drafter") != BOTH["drafter"]]
    calls = [(prompts[0], LAWS["greedy"] | BLOCK | options | {"max_tokens": TOKENS}) for options in chains]
    for (_, options), answer in zip(calls, c.generate_all(calls), strict=True):
        assert answer.tokens == wanted, options


# --- faults ----------------------------------------------------------------------------------------------------


# The features that are tested with faults: each drafter, proposer and schedule, with chains and trees.
DISTURBED = ["model", "model, K = 4", "auto", *LOCAL, "both models, K = 1", "both models, K = 4", "tree 2x2x1", "tree budget:12",
             "tree auto", "ahead", "ahead, K = 4", "tree auto, ahead", *(f"{proposer}, {way}" for proposer in PROPOSERS for way in ("K = 4", "tree 2x2x1"))]
DISTURBED_WITH_GRAMMAR = ["model, K = 4", "auto", "tree 2x2x1", "eagle, K = 4"]


@pytest.fixture(scope="module")
def quiet(c: Cluster, prompts: list[str]) -> list[tuple[Call, list[int]]]:
    """Calls under each law and with a seed, and their undisturbed answers. Since the number of features is odd, a feature is at an
    even place under one of its first two laws, and at an odd one under the other."""
    assert len(DISTURBED) % 2 == 1
    found: list[tuple[Call, list[int]]] = []
    for law, how in LAWS.items():
        known = plain(c, law, prompts[:4], LONG)
        features = DISTURBED_WITH_GRAMMAR if "grammar" in how else DISTURBED
        found += [(call, known[call[0]]) for call in calls_of(how, prompts[:4], LONG, features)]
    seeded = [(prompt, options) for prompt, options in calls_of(SEEDED, prompts[:4], LONG, DISTURBED) if own(options)]
    return found + [(call, answer.tokens) for call, answer in zip(seeded, c.generate_all(seeded), strict=True)]


@contextlib.contextmanager
def frozen(c: Cluster, _relays: list[Relay]) -> Iterator[None]:
    """Freezes the target until it is given up, then the draft until every answer is there."""
    c.target.popen.send_signal(signal.SIGSTOP)
    c.coordinator.wait_for_event("disconnected", server="target")
    c.target.popen.send_signal(signal.SIGCONT)
    c.draft.popen.send_signal(signal.SIGSTOP)
    yield
    c.draft.popen.send_signal(signal.SIGCONT)
    ahead = LAWS["greedy"] | FEATURES["ahead, K = 4"] | {"max_tokens": LONG}
    eventually(lambda: c.generate("Once", **ahead).speculation.ahead_hits > 0, "the draft runs ahead again")


@contextlib.contextmanager
def draft_gone(c: Cluster, _relays: list[Relay]) -> Iterator[None]:
    c.kill(c.draft)
    yield
    c.wait_draft_up(False)


@contextlib.contextmanager
def draft_killed(c: Cluster, _relays: list[Relay]) -> Iterator[None]:
    c.kill(c.draft)
    c.wait_draft_up(False)
    c.restart_draft()
    yield
    c.wait_draft_up(True)


@contextlib.contextmanager
def target_killed(c: Cluster, _relays: list[Relay]) -> Iterator[None]:
    c.kill(c.target)
    c.restart_target()
    yield
    assert c.lost_target_during(1), "not killed in the middle"


@contextlib.contextmanager
def leases_ended(c: Cluster, relays: list[Relay]) -> Iterator[None]:
    relays[0].freeze()
    c.target.wait_value("outrider_target_sequences", 0)
    relays[0].thaw()
    yield
    assert c.coordinator.value("outrider_target_errors_total", reason="SEQUENCE_UNKNOWN") > 0


@contextlib.contextmanager
def preempted(c: Cluster, _relays: list[Relay]) -> Iterator[None]:
    yield
    assert c.target.value("outrider_target_preemptions_total") > 0


# Each fault, with the flags that it needs.
FAULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "draft gone": (draft_gone, {}), "draft killed": (draft_killed, {}), "target killed": (target_killed, {}),
    # Far longer than forty prompts take on a busy machine: an item that times out three times ends its request.
    "both frozen": (frozen, {"coordinator": ("--item-timeout", "6")}),
    "leases ended": (leases_ended, {"target": ("--lease", "0.2")}),
    "preempted": (preempted, {"target": ("--kv-blocks", "200", "--block-size", "16")})}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_happens_in_between(fault: str, quiet: list[tuple[Call, list[int]]]) -> None:
    disturb, flags = FAULTS[fault]
    half = quiet if FULL else quiet[[*FAULTS].index(fault) % 2::2]
    # A seed repeats an answer only if every proposal is made, but one that finds no room is not.
    wanted = [each for each in half if fault != "preempted" or each[0][1].get("seed") != SEEDED["seed"]]
    relays: list[Relay] = []
    with everything(**flags, target_through=partial(through_relay, relays)) as c:
        streams = [c.stream(prompt, **options) for (prompt, options), _ in wanted]
        answers = [Answer() for _ in streams]
        for stream, answer in zip(streams, answers, strict=True):
            answer.add(next(stream))
        assert all(answer.finish is None for answer in answers), "over before the disturbance"
        with disturb(c, relays):
            for stream, answer in zip(streams, answers, strict=True):
                for chunk in stream:
                    answer.add(chunk)
        for ((_, options), tokens), answer in zip(wanted, answers, strict=True):
            assert answer.check().tokens == tokens, options
            if fault == "draft gone" and options.get("drafter", "model") == "model":
                assert answer.kinds[-20:] == ["plain"] * 20, "it goes on alone"
            if own(options) and fault != "preempted":
                assert answer.speculation.drafts >= answer.speculation.rounds - 3, "it goes on with a proposal"
        c.wait_idle()
