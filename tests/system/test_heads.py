"""Behaviour of proposals that the target makes itself. test_first_law.py shows that they change no answer."""

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import (BIN, DTYPE, LENGTH, PATIENCE, STOP, TARGET_MODEL, Cluster, cluster, eventually, inference_pb2, inference_pb2_grpc,
                     request, running, start_coordinator, start_target)
from heads import ALONE, FLAGS, PROPOSERS

GREEDY = {"temperature": 0, "max_tokens": 48, "ignore_eos": True}
COUPLED = {"rule": "coupled", "temperature": 0.9, "seed": 5, "max_tokens": 48, "ignore_eos": True}
# A seed repeats an answer under the token rule too, since a proposal is the same wherever and however often it is made.
SEEDED = {"rule": "token", "temperature": 1, "seed": 7, "max_tokens": 48, "ignore_eos": True}

each_proposer = pytest.mark.parametrize("proposer", PROPOSERS)
exact = pytest.mark.parametrize("how", [GREEDY, COUPLED], ids=["greedy", "coupled"])


@pytest.fixture(scope="module")
def alone() -> Iterator[Cluster]:
    """A target that proposes itself, without a draft service."""
    with cluster(target=ALONE, draft=None) as c:
        yield c


@pytest.fixture(scope="module")
def plain(alone: Cluster) -> Callable[..., list[int]]:
    """The tokens of an answer without speculation. Each answer is decoded once."""
    known: dict[str, list[int]] = {}

    def tokens(prompt: str, **options: Any) -> list[int]:
        key = repr((prompt, sorted(options.items())))
        if key not in known:
            known[key] = alone.generate(prompt, **options | {"k": 0}).tokens
        return known[key]

    return tokens


@each_proposer
def test_the_block_rule_takes_its_chains(proposer: str, alone: Cluster, prompts: list[str],
                                         plain: Callable[..., list[int]]) -> None:
    answer = alone.generate(prompts[0], drafter=proposer, rule="block", k=3, **GREEDY)
    assert answer.tokens == plain(prompts[0], **GREEDY)
    assert answer.speculation.drafts > 0
    refusal = alone.refused(request(prompts[0], drafter=proposer, rule="block", tree="2x1", **GREEDY))
    assert refusal.metadata["field"] == "speculation.tree"


@each_proposer
def test_a_seed_repeats_its_answer(proposer: str, alone: Cluster, prompts: list[str]) -> None:
    for how in ({"k": 4}, {"tree": "2x2x1"}, {"tree": "chains:2"}):
        first, again = (alone.generate(prompts[1], drafter=proposer, **SEEDED, **how) for _ in range(2))
        assert first.tokens == again.tokens, how
        assert first.speculation.drafted == again.speculation.drafted > 0


@each_proposer
def test_the_answer_may_end_anywhere(proposer: str, alone: Cluster, prompts: list[str],
                                     plain: Callable[..., list[int]]) -> None:
    whole = plain(prompts[2], **GREEDY)
    for length in range(1, 14):
        for options in ({"k": 4}, {"tree": "2x2x1"}):
            answer = alone.generate(prompts[2], drafter=proposer, **GREEDY | {"max_tokens": length}, **options)
            assert (answer.tokens, answer.reason) == (whole[:length], LENGTH), (length, options)
    for token in dict.fromkeys(whole[:12]):
        answer = alone.generate(prompts[2], drafter=proposer, k=4, stop_ids=[token], **GREEDY)
        assert (answer.tokens, answer.reason) == (whole[:whole.index(token) + 1], STOP)


@each_proposer
def test_an_answer_may_fill_the_context(proposer: str, prompts: list[str]) -> None:
    with cluster(target=[*ALONE, "--kv-blocks", "8", "--block-size", "16"], draft=None) as c:
        filled = {k: c.generate(prompts[0], drafter=proposer, k=k, temperature=0, ignore_eos=True) for k in (0, 5)}
        assert filled[5].tokens == filled[0].tokens
        usage = filled[5].finish.usage
        assert usage.prompt_tokens + usage.completion_tokens == 128
        assert filled[5].speculation.drafts > 0


@each_proposer
@exact
def test_samples_of_a_prompt_are_each_their_own(how: dict, proposer: str, alone: Cluster, prompts: list[str]) -> None:
    drafted, quiet = (alone.generate_samples(prompts[3], 3, **how, **options)
                      for options in ({"drafter": proposer, "k": 3}, {"k": 0}))
    assert [answer.tokens for answer in drafted] == [answer.tokens for answer in quiet]
    assert all(answer.speculation.drafts > 0 for answer in drafted)


@each_proposer
def test_an_answer_that_broke_off_is_resumed(proposer: str, alone: Cluster, prompts: list[str],
                                             plain: Callable[..., list[int]]) -> None:
    whole = plain(prompts[4], **GREEDY)
    for cut in (1, 7, 40):
        resumed = request(prompts[4], drafter=proposer, k=4, **GREEDY)
        resumed.resume_from.extend(whole[:cut])
        tokens = [token.id for chunk in alone.stub.Generate(resumed, timeout=PATIENCE) for token in chunk.tokens]
        assert whole[:cut] + tokens == whole


@each_proposer
def test_a_scored_prompt_and_logprobs_go_with_it(proposer: str, alone: Cluster, prompts: list[str]) -> None:
    def scores(**options: Any) -> list[tuple[int, float]]:
        wanted = request(prompts[0], **GREEDY, **options)
        wanted.logprobs.prompt = wanted.logprobs.top = 0
        chunks = list(alone.stub.Generate(wanted, timeout=PATIENCE))
        return [(p.token.id, p.token.logprob) for chunk in chunks
                for p in [*chunk.prompt_logprobs, *(token.logprobs for token in chunk.tokens)]]

    assert scores(drafter=proposer, k=4) == scores(k=0)


# --- statistics, refusals, auto ------------------------------------------------------------------------------------


@each_proposer
def test_canaries_stay_near_one(proposer: str, alone: Cluster, prompts: list[str]) -> None:
    def sums() -> list[float]:
        metrics = alone.coordinator.metrics()
        return [metrics.value(f"outrider_spec_decode_{name}_total") for name in (
            "observed_accepted_tokens", "expected_accepted_tokens", "expected_accepted_tokens_variance")]

    for way in ({"k": 4}, {"tree": "2x2x1"}):
        before = sums()
        alone.generate_all([(prompt, {"drafter": proposer, "temperature": 1, "seed": i, "max_tokens": 80, "ignore_eos": True} | way)
                            for i, prompt in enumerate(prompts[:8])])
        observed, expected, variance = (now - then for now, then in zip(sums(), before, strict=True))
        assert expected > 0 and abs(observed - expected) < 4.5 * variance ** 0.5, (way, observed, expected)


@each_proposer
def test_it_is_counted_and_traced_by_name(proposer: str, alone: Cluster, prompts: list[str]) -> None:
    name = "outrider_spec_decode_num_draft_tokens_by_drafter_total"
    before = alone.coordinator.value(name, drafter=proposer, rule="token")
    answer = alone.generate(prompts[0], drafter=proposer, k=3, trace=True, **GREEDY)
    assert alone.coordinator.value(name, drafter=proposer, rule="token") - before == answer.speculation.drafted
    first, *others, last = answer.rounds
    assert not first.drafted and first.draft_compute_us == 0
    assert all(round_.drafted for round_ in others)
    for round_ in (*others, last):
        assert round_.draft_compute_us <= round_.draft_us
        assert round_.draft_us + round_.verify_us <= round_.round_us + 2


def test_an_unknown_proposer_is_refused_with_what_there_is(pair: Cluster, alone: Cluster, prompts: list[str]) -> None:
    known = {"medusa", "blockwise", "eagle", "layer_skip", "pass"}
    for proposer in sorted(known):
        refusal = pair.refused(request(prompts[0], drafter=proposer, **GREEDY))
        assert (refusal.code, refusal.metadata["field"]) == ("INVALID_ARGUMENT", "speculation.drafter")
        assert refusal.message.startswith(f"speculation.drafter: {proposer}; proposers of the target: none; allowed: model,")
    for proposer in sorted(known - set(PROPOSERS)):
        refusal = alone.refused(request(prompts[0], drafter=proposer, **GREEDY))
        assert set(PROPOSERS) <= set(refusal.metadata["range"].split(", "))


def test_targets_of_a_pool_count_for_what_they_have_in_common(prompts: list[str],
                                                              plain: Callable[..., list[int]]) -> None:
    able, other = start_target(*FLAGS), start_target()
    with running(able, other) as servers:
        servers.append(coordinator := start_coordinator(able.address, "", "--target", other.address))
        with coordinator.connect() as channel:
            eventually(lambda: coordinator.health() == "SERVING", "ready")
            c = Cluster(able, None, coordinator, inference_pb2_grpc.InferenceStub(channel), [], ((), ()))
            eventually(lambda: all(coordinator.value("outrider_target_up", address=target.address) for target in (able, other)),
                       "both are up")
            for proposer in PROPOSERS:
                assert c.refused(request(prompts[0], drafter=proposer, **GREEDY)).reason == "FIELD_INVALID"
            assert c.generate(prompts[0], drafter="auto", **GREEDY).tokens == plain(prompts[0], **GREEDY)


DRAFTS_BY = "outrider_spec_decode_num_drafts_by_drafter_total"


@exact
def test_auto_takes_eagle_where_no_n_gram_matches(how: dict, alone: Cluster, prompts: list[str],
                                                  plain: Callable[..., list[int]]) -> None:
    rule = how.get("rule", "token")
    before = alone.coordinator.metrics()
    answers = [alone.generate(prompt, drafter="auto", k=4, **how) for prompt in prompts[:8]]
    after = alone.coordinator.metrics()
    assert [answer.tokens for answer in answers] == [plain(prompt, **how) for prompt in prompts[:8]]
    made = {each: after.value(DRAFTS_BY, drafter=each, rule=rule) - before.value(DRAFTS_BY, drafter=each, rule=rule)
            for each in ("eagle", "ngram", "auto")}
    assert made["eagle"] > 0 and made["ngram"] > 0
    # Proposals that n-grams made needless are in no statistics.
    assert sum(made.values()) == sum(answer.speculation.drafts for answer in answers)


def test_auto_leaves_a_draft_service_alone_where_there_is_eagle(prompts: list[str], plain: Callable[..., list[int]]) -> None:
    with cluster(target=FLAGS) as c:
        for options in ({"k": 4}, {}, {"schedule": "run_ahead"}):
            assert c.generate(prompts[0], drafter="auto", **GREEDY, **options).tokens == plain(prompts[0], **GREEDY)
        assert c.coordinator.value(DRAFTS_BY, drafter="eagle", rule="token") > 0
        assert c.coordinator.value(DRAFTS_BY, drafter="model", rule="token") == 0
        beam = inference_pb2.BeamOptions(width=2)
        found, wanted = (c.generate(prompts[0], max_tokens=8, beam=beam, drafter=drafter).tokens for drafter in ("auto", "none"))
        assert found == wanted


def test_auto_gives_each_sample_its_own_and_repeats_a_seed(alone: Cluster, prompts: list[str]) -> None:
    samples, quiet = (alone.generate_samples(prompts[3], 3, **COUPLED, **options) for options in ({"drafter": "auto", "k": 3}, {"k": 0}))
    assert [answer.tokens for answer in samples] == [answer.tokens for answer in quiet]
    first, again = (alone.generate(prompts[1], drafter="auto", k=4, **SEEDED) for _ in range(2))
    assert first.tokens == again.tokens
    assert first.speculation.drafted == again.speculation.drafted > 0


@each_proposer
def test_a_search_needs_another_drafter(proposer: str, alone: Cluster, prompts: list[str]) -> None:
    beam = inference_pb2.BeamOptions(width=2)
    refusal = alone.refused(request(prompts[0], drafter=proposer, max_tokens=8, beam=beam))
    assert refusal.metadata["field"] == "speculation.drafter"
    with cluster(target=ALONE, draft=None, coordinator=["--drafter", proposer]) as c:
        found, wanted = (each.generate(prompts[0], max_tokens=8, beam=beam, **options).tokens
                         for each, options in ((c, {}), (alone, {"drafter": "none"})))
        assert found == wanted
        assert c.generate(prompts[0], **GREEDY).speculation.drafts > 0, "a default that is the target"


def test_the_command_line_loads_heads_and_tells_of_them(alone: Cluster, prompts: list[str],
                                                        plain: Callable[..., list[int]]) -> None:
    def outrider(*arguments: str) -> str:
        return subprocess.run([BIN / "outrider", *arguments], check=True, capture_output=True, text=True, timeout=PATIENCE).stdout

    told = outrider("describe", "--address", alone.coordinator.address)
    assert all(f"{proposer} (K up to " in told for proposer in PROPOSERS)
    described = json.loads(outrider("describe", "--address", alone.coordinator.address, "--json"))
    assert {each["proposer"] for each in described["target"]["proposers"]} == set(PROPOSERS)
    for proposer in PROPOSERS:
        answer = json.loads(outrider(
            "generate", "--target-model", str(TARGET_MODEL), *FLAGS, "--dtype", DTYPE, "--drafter", proposer, "--json",
            "--temperature", "0", "--ignore-eos", "--max-tokens", "48", prompts[0]))
        assert answer["tokens"] == plain(prompts[0], **GREEDY)
        assert answer["speculation"]["drafted"] > 0
