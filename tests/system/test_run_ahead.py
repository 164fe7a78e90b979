"""Behaviour of drafting while the target verifies. test_first_law.py shows that it changes no answer."""

import itertools
from collections.abc import Iterator

import pytest

from harness import Answer, Cluster, cluster, eventually, inference_pb2, request

GREEDY = {"temperature": 0, "max_tokens": 64, "ignore_eos": True}
COUPLED = {"rule": "coupled", "temperature": 0.9, "seed": 5, "max_tokens": 64, "ignore_eos": True}
# Enough time for every proposal, however busy the machine is, so that a seed repeats an answer of the ratio rules too.
PATIENT = ["--draft-budget", "60"]


@pytest.fixture(scope="module")
def trio() -> Iterator[Cluster]:
    with cluster(coordinator=PATIENT) as c:
        yield c


@pytest.fixture(scope="module")
def asked(prompts: list[str]) -> list[str]:
    return prompts[:6]


def ran_ahead(answers: list[Answer]) -> None:
    """Checks that something was drafted ahead. An answer for which that does not seem to pay may stay in lockstep, and on a
    busy machine everything that is drafted ahead may come too late."""
    for answer in answers:
        followed = inference_pb2.SCHEDULE_RUN_AHEAD if answer.speculation.ahead_rounds else inference_pb2.SCHEDULE_LOCKSTEP
        assert answer.speculation.schedule == followed
    assert sum(answer.speculation.ahead_rounds for answer in answers) > 0


def hit(c: Cluster, prompt: str, **options: object) -> Answer:
    """Asks until an answer uses something that was drafted ahead."""
    def ask() -> Answer | None:
        answer = c.generate(prompt, k=4, schedule="run_ahead", **GREEDY, **options)
        return answer if answer.speculation.ahead_hits else None

    return eventually(ask, "a hit")


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_seed_gives_what_it_gives_in_lockstep(rule: str, trio: Cluster, asked: list[str]) -> None:
    answers = []
    for (i, prompt), k in itertools.product(enumerate(asked), (2, 5)):
        how = {"rule": rule, "temperature": 1, "seed": i, "k": k, "max_tokens": 64, "ignore_eos": True, "trace": True}
        lockstep = trio.generate(prompt, schedule="lockstep", **how)
        ahead = trio.generate(prompt, schedule="run_ahead", **how)
        assert ahead.tokens == lockstep.tokens, (prompt, k)
        assert [list(r.drafted) for r in ahead.rounds] == [list(r.drafted) for r in lockstep.rounds]
        answers.append(ahead)
    ran_ahead(answers)


def test_samples_of_one_prompt_run_ahead(trio: Cluster, asked: list[str]) -> None:
    how = COUPLED | {"k": 3}
    plain = trio.generate_samples(asked[0], 3, **(how | {"k": 0}))
    ahead = trio.generate_samples(asked[0], 3, schedule="run_ahead", **how)
    assert [answer.tokens for answer in ahead] == [answer.tokens for answer in plain]


def test_an_answer_may_end_anywhere(trio: Cluster, asked: list[str]) -> None:
    plain = trio.generate(asked[1], k=0, **GREEDY)
    for most in range(1, 14):
        answer = trio.generate(asked[1], k=4, schedule="run_ahead", **(GREEDY | {"max_tokens": most}))
        assert answer.tokens == plain.tokens[:most]
    for at in (3, 7, 12):
        stop = plain.tokens[at]
        first = plain.tokens.index(stop)
        answer = trio.generate(asked[1], k=4, schedule="run_ahead", stop_ids=[stop], **GREEDY)
        assert answer.tokens == plain.tokens[:first + 1]
    trio.wait_idle()


def test_the_trace_says_which_proposals_were_begun_ahead(trio: Cluster, asked: list[str]) -> None:
    answer = hit(trio, asked[0], trace=True)
    ahead = [number for number, r in enumerate(answer.rounds) if r.drafted_ahead]
    assert all(answer.rounds[number - 1].branches > 0 for number in ahead)
    assert all(r.draft_compute_us <= r.draft_us for r in answer.rounds)
    assert answer.speculation.ahead_rounds == sum(r.branches > 0 for r in answer.rounds)
    # The last round can be a hit that no further round uses.
    assert len(ahead) <= answer.speculation.ahead_hits <= len(ahead) + 1
    lockstep = trio.generate(asked[0], k=4, schedule="lockstep", trace=True, **GREEDY)
    assert not any(r.drafted_ahead or r.branches for r in lockstep.rounds)
    assert lockstep.speculation.schedule == inference_pb2.SCHEDULE_LOCKSTEP


def test_the_canaries_stay_at_one(asked: list[str]) -> None:
    with cluster(coordinator=PATIENT) as c:
        calls = [(prompt, {"rule": rule, "temperature": 1, "k": 4, "max_tokens": 150, "ignore_eos": True,
                           "schedule": "run_ahead"}) for prompt in asked for rule in ("token", "block") for _ in range(2)]
        ran_ahead(c.generate_all(calls, at_once=2))
        m = c.coordinator.metrics()
        observed, expected, variance = (m.value(f"outrider_spec_decode_{name}_total") for name in (
            "observed_accepted_tokens", "expected_accepted_tokens", "expected_accepted_tokens_variance"))
        assert abs(observed - expected) < 4 * variance**0.5
        surprisal, entropy = (m.value(f"outrider_spec_decode_{name}_nats_total") for name in ("surprisal", "entropy"))
        assert abs(surprisal / entropy - 1) < 0.15
        rounds = sum(m.labelled("outrider_run_ahead_rounds_total", "accepted").values())
        hits = sum(m.labelled("outrider_run_ahead_hits_total", "accepted").values())
        assert 0 < hits < rounds
        assert m.value("outrider_run_ahead_branches_total") >= rounds


def test_branches_leave_room_for_those_who_wait(asked: list[str]) -> None:
    """A draft with few blocks and few sequences: branches are refused, and no sequence is evicted for them."""
    with cluster(draft=["--kv-blocks", "24", "--max-sequences", "3"]) as c:
        plain = [c.generate(prompt, k=0, **GREEDY).tokens for prompt in asked[:3]]
        calls = [(prompt, GREEDY | {"k": 4, "schedule": "run_ahead"}) for prompt in asked[:3]] * 3
        answers = c.generate_all(calls, at_once=3)
        assert [answer.tokens for answer in answers] == plain * 3
        assert sum(answer.speculation.drafts for answer in answers) > 0
        c.wait_idle()


def test_without_a_draft_service_it_runs_in_lockstep_and_says_so(asked: list[str]) -> None:
    with cluster(draft=None) as c:
        answer = c.generate(asked[0], schedule="run_ahead", **GREEDY)
        assert answer.speculation.schedule == inference_pb2.SCHEDULE_LOCKSTEP
        assert answer.speculation.ahead_rounds == 0


def test_a_schedule_that_does_not_exist_is_refused(trio: Cluster, asked: list[str]) -> None:
    wanted = request(asked[0], **GREEDY)
    wanted.speculation.schedule = 9
    refusal = trio.refused(wanted)
    assert refusal.metadata["field"] == "speculation.schedule"
    assert refusal.metadata["range"] == "lockstep, run_ahead, auto"
