"""Many requests at once: each has the same answer as alone, and nothing leaks."""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from harness import PATIENCE, STOP, UNPROBED, Answer, Cluster, cluster, eventually, inference_pb2_grpc, request, took

# The errors of a server that disagrees with the coordinator about a sequence.
DISAGREEMENTS = {"BASE_BEYOND_CACHED", "PREFIX_MISMATCH", "PARAMS_UNKNOWN", "SEQUENCE_UNKNOWN", "ROUND_STALE",
                 "ROUND_CONFLICT", "FAILED_PRECONDITION", "NOT_FOUND", "ABORTED"}

Call = tuple[str, dict[str, Any]]


def mixed_load(prompts: Sequence[str], count: int) -> list[Call]:
    """Requests that differ in all parameters."""
    rules = itertools.cycle(["token", "coupled", "block"])
    temperatures = itertools.cycle([0, 0.6, 1.0, 0, 1.4])
    ks = itertools.cycle([0, 1, 2, 4, 8, 5, 3])
    return [(prompts[i % len(prompts)],
             {"k": next(ks), "rule": next(rules), "temperature": next(temperatures), "seed": i,
              "max_tokens": 20 + 9 * (i % 8), "trace": True})
            for i in range(count)]


def comparable(answer: Answer, options: dict[str, Any]) -> list[tuple[tuple[int, ...], int, int]] | list[int]:
    """The part that is compared between runs: the tokens or, where these depend on drafting in time, the rounds."""
    if options["temperature"] == 0 or options["rule"] == "coupled":
        return answer.tokens
    return [(tuple(r.drafted), r.accepted, r.token) for r in answer.rounds]


def same(one: Answer, other: Answer, options: dict[str, Any]) -> bool:
    """Compares answers up to the first proposal that a deadline cut short. After it, sampled answers may differ."""
    mine, others = comparable(one, options), comparable(other, options)
    if mine == others:
        return True
    if mine and isinstance(mine[0], tuple):
        first = next(i for i, (a, b) in enumerate(zip(mine, others)) if a != b)
        return len(mine[first][0]) != len(others[first][0])
    return False


def test_sixteen_requests_at_once_give_what_each_gives_alone(pair: Cluster, prompts: list[str]) -> None:
    calls = mixed_load(prompts, 16)
    alone = [pair.generate(prompt, **options) for prompt, options in calls]
    together = pair.generate_all(calls, at_once=16)
    for (prompt, options), one, other in zip(calls, alone, together, strict=True):
        assert same(one, other, options), (prompt, options)
    assert pair.target.value("outrider_target_batch_sequences_sum") > pair.target.value(
        "outrider_target_batch_sequences_count"), "nothing was batched"


def test_a_preempted_sequence_goes_on_as_if_nothing_had_been(pair: Cluster, prompts: list[str]) -> None:
    calls = [(prompt, {"k": 4, "temperature": 0, "max_tokens": 40, "ignore_eos": True}) for prompt in prompts[4:10]]
    alone = [pair.generate(prompt, **options) for prompt, options in calls]
    # Blocks for about half of the sequences.
    small = ("--kv-blocks", "26", "--block-size", "16")
    with cluster(target=small, draft=small) as c:
        together = c.generate_all(calls)
        assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
        assert c.target.value("outrider_target_preemptions_total") > 0
        c.wait_idle()


def test_two_sequences_that_do_not_fit_together_take_turns_without_a_deadlock(pair: Cluster, prompts: list[str]) -> None:
    """Each needs more than half of the cache. A prompt that needs more than all of it is refused at once."""
    calls = [(prompt, {"k": 4, "temperature": 0, "max_tokens": 180, "ignore_eos": True}) for prompt in prompts[:3]]
    quiet = [pair.generate(prompt, **options).tokens for prompt, options in calls]
    small = ("--kv-blocks", "20", "--block-size", "16")
    with cluster(target=small, draft=small) as c:
        assert [answer.tokens for answer in c.generate_all(calls)] == quiet
        assert c.target.value("outrider_target_preemptions_total") > 0
        refusal = c.refused(request([300] * 400, max_tokens=1))
        assert refusal.code == "INVALID_ARGUMENT" and "400" in refusal.message, refusal
        c.wait_idle()


def test_the_steady_state_has_no_disagreement_and_leaves_no_block_in_use(prompts: list[str]) -> None:
    with cluster() as c:
        c.generate_all(mixed_load(prompts, 40), at_once=8)
        metrics = c.coordinator.metrics()
        assert not metrics.labelled("outrider_target_errors_total", "reason")
        assert not DISAGREEMENTS & set(metrics.labelled("outrider_draft_errors_total", "reason"))
        c.wait_idle()


def test_cancelled_requests_free_their_blocks(pair: Cluster, prompts: list[str]) -> None:
    before = pair.coordinator.value("outrider_requests_total", code="CANCELLED")
    streams = [pair.stream(prompt, k=2, temperature=1, ignore_eos=True) for prompt in prompts[:6]]
    for stream in streams:
        next(stream)
    assert pair.target.value("outrider_target_kv_blocks_used") > 0
    for stream in streams:
        stream.cancel()
    pair.wait_idle()
    pair.coordinator.wait_value("outrider_requests_total", before + len(streams), code="CANCELLED")


STEPS, ROWS = "outrider_target_step_duration_seconds_count", "outrider_target_batch_rows_sum"


@pytest.mark.parametrize(("row", "how"), [(16, "CANCELLED"), (17, "DEADLINE_EXCEEDED")])
def test_nothing_is_computed_for_clients_that_are_gone(row: int, how: str, prompts: list[str]) -> None:
    """The clients leave while their prompts are computed, which takes many steps."""
    # The work takes many times the deadline, which is long enough for a busy machine to begin.
    long = [[300 + (i * j) % 700 for i in range(1000)] for j in range(1, 65)]
    small_steps = ["--max-batch-tokens", "32", "--no-prefix-cache"]
    with cluster(target=small_steps, draft=small_steps) as c:
        patience = 1.5 if how == "DEADLINE_EXCEEDED" else PATIENCE
        calls = [c.stub.Generate(request(prompt, k=4, ignore_eos=True), timeout=patience) for prompt in long]
        eventually(lambda: c.target.value(ROWS) > 0, "the target is at work")
        if how == "CANCELLED":
            for call in calls:
                call.cancel()
        # The first ones may have been served by then.
        ends = [call.code().name for call in calls]
        assert set(ends) <= {how, "OK"} and ends.count(how) > len(ends) / 2, ends
        left, steps = time.monotonic(), c.target.value(STEPS)
        c.target.wait_value("outrider_target_kv_blocks_used", 0)
        took(row, f"clients gone ({how}), at most until their blocks were free", left)
        print(f"\nfault {row}: clients gone ({how}), at most until their blocks were free: {c.target.value(STEPS) - steps:.0f} steps")
        c.wait_idle()
        computed = c.target.value(ROWS)
        assert computed < len(long) * 1000 / 2, "the prompts were computed"
        c.generate(prompts[0], k=0, max_tokens=1)
        assert c.target.value(ROWS) < computed + 100, "they were computed after all"


def test_a_deadline_ends_a_request_and_frees_its_blocks(pair: Cluster, prompts: list[str]) -> None:
    def ended() -> dict[str, float]:
        return pair.coordinator.metrics().labelled("outrider_requests_total", "code")

    before = ended()
    calls = [pair.stub.Generate(request(prompt, k=1, ignore_eos=True), timeout=0.05) for prompt in prompts[:4]]
    codes = set()
    for call in calls:
        try:
            list(call)
        except grpc.RpcError as error:
            codes.add(error.code())
    assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED}
    pair.wait_idle()
    eventually(lambda: sum(ended().values()) == sum(before.values()) + len(calls), "all have ended")
    # The client's deadline and the server's are the same moment: either may be the first to act.
    assert {code for code, count in ended().items() if count != before.get(code)} <= {"DEADLINE_EXCEEDED", "CANCELLED"}


def test_a_stop_string_frees_the_blocks(pair: Cluster, prompts: list[str]) -> None:
    whole = pair.generate(prompts[0], k=4, temperature=0, max_tokens=40, ignore_eos=True)
    stop = whole.text[len(whole.text) // 2:][:6]
    assert pair.generate(prompts[0], k=4, temperature=0, max_tokens=40, stop=[stop]).reason == STOP
    pair.wait_idle()


def test_a_client_that_does_not_read_keeps_little_memory_and_holds_nobody_up(prompts: list[str]) -> None:
    # 0.7 MB, more than the transport's buffers hold.
    big = request(prompts[0], n=4, k=1, temperature=1, max_tokens=400, ignore_eos=True)
    big.logprobs.top = 20
    with cluster() as c, grpc.insecure_channel(c.coordinator.address, UNPROBED) as channel:
        def tokens_of(call: grpc.Call) -> int:
            return sum(len(chunk.tokens) for chunk in call)

        def others(beside: str) -> None:
            began = time.monotonic()
            for _ in range(5):
                c.generate(prompts[1], k=1, temperature=0, max_tokens=100, ignore_eos=True)
            took(18, f"five answers to another client, {beside}", began)

        others("alone")
        before = c.coordinator.resident_mebibytes()
        unread = inference_pb2_grpc.InferenceStub(channel).Generate(big, timeout=PATIENCE)
        c.coordinator.wait_value("outrider_requests_running", 1)
        # The same amount of work, asked for later and read.
        assert tokens_of(c.stub.Generate(big, timeout=PATIENCE)) == 4 * 400
        assert c.coordinator.value("outrider_requests_running") == 1, "the answer that nobody reads went on"
        others("beside one that does not read")
        assert c.coordinator.resident_mebibytes() < before + 16
        assert tokens_of(unread) == 4 * 400
        c.wait_idle()
