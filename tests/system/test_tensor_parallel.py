"""A target that two processes share: the same tokens, and a group that ends and comes back as a whole."""

import contextlib
from collections.abc import Iterator

import pytest

from harness import (BIN, TARGET_MODEL, Cluster, Process, Server, cluster, inference_pb2, load_goldens, refusal,
                     reserve_address)
from test_torch import GREEDY, TORCH, clear

pytestmark = pytest.mark.skipif(not (BIN / "liboutrider_torch.so").exists(), reason="built without libtorch")

MODEL = ["--model", str(TARGET_MODEL)]


def shared(rendezvous: str, rank: int, *more: str) -> list[str]:
    return [*TORCH, "--threads", "1", "--tensor-parallel", "2", "--rendezvous", rendezvous, "--rank", str(rank), *more]


def start_second(rendezvous: str) -> Process:
    return Process("outrider-target", *MODEL, *shared(rendezvous, 1), "--log-format", "json")


class Group:
    """A cluster whose target is two ranks."""

    def __init__(self, c: Cluster, rendezvous: str, second: Process) -> None:
        self.cluster, self.rendezvous, self.second = c, rendezvous, second

    @property
    def first(self) -> Server:
        return self.cluster.target

    def restart(self) -> None:
        """Starts both ranks again, after both have ended."""
        self.cluster.forget(self.first)
        self.second = start_second(self.rendezvous)
        self.cluster.restart_target()


@contextlib.contextmanager
def group() -> Iterator[Group]:
    rendezvous = reserve_address()
    second = start_second(rendezvous)
    with cluster(target=shared(rendezvous, 0)) as c:
        running = Group(c, rendezvous, second)
        yield running
        running.second.terminate()
    running.second.wait_orderly_end()


@pytest.fixture(scope="module")
def pair_of_ranks() -> Iterator[Group]:
    with group() as running:
        yield running


@pytest.mark.parametrize("k", [0, 5])
def test_greedy_output_is_that_of_transformers(k: int, pair_of_ranks: Group, prompts: list[str]) -> None:
    compared = accepted = 0
    prompts = prompts[:6]
    for prompt, golden in zip(prompts, load_goldens("greedy.json")["answers"], strict=False):
        answer = pair_of_ranks.cluster.generate(prompt, k=k, **GREEDY)
        assert answer.tokens[:clear(golden)] == golden["tokens"][:clear(golden)], prompt
        compared += clear(golden)
        accepted += answer.speculation.accepted
    assert compared > 0.8 * 48 * len(prompts)
    assert bool(accepted) == bool(k)


def test_many_streams_at_once_emit_what_each_does_alone(pair_of_ranks: Group, prompts: list[str]) -> None:
    goldens = load_goldens("greedy.json")["answers"]
    answers = pair_of_ranks.cluster.generate_all([(prompt, GREEDY | {"k": 2}) for prompt in prompts])
    for answer, golden in zip(answers, goldens, strict=True):
        assert answer.tokens[:clear(golden)] == golden["tokens"][:clear(golden)]


def test_a_rank_has_about_half_of_the_weights(pair_of_ranks: Group) -> None:
    def bytes_of(c: Cluster) -> int:
        return c.stub.Describe(inference_pb2.DescribeRequest()).target.weight_bytes

    with cluster(target=TORCH, draft=None) as alone:
        assert 0.45 < bytes_of(pair_of_ranks.cluster) / bytes_of(alone) < 0.55


@pytest.mark.parametrize("lost", ["first", "second"])
def test_a_killed_rank_ends_the_group_and_no_token_is_lost(lost: str, prompts: list[str]) -> None:
    golden = load_goldens("greedy.json")["answers"][0]
    with group() as running:
        stream = running.cluster.stream(prompts[0], k=3, **GREEDY)
        tokens = [token.id for token in next(stream).tokens]
        victim, other = (running.first, running.second) if lost == "first" else (running.second, running.first)
        victim.kill()
        assert other.wait_end() == 1
        failures = [line for line in other.lines if '"error"' in line]
        assert len(failures) == 1 and len(other.events("the model failed")) == 1, failures
        running.restart()
        tokens += [token.id for chunk in stream for token in chunk.tokens]
        assert len(tokens) == 48
        assert tokens[:clear(golden)] == golden["tokens"][:clear(golden)]


def test_a_rank_that_is_lost_between_requests_is_noticed_at_once(prompts: list[str]) -> None:
    with group() as running:
        running.cluster.generate(prompts[0], k=2, **GREEDY)
        running.cluster.wait_idle()
        running.second.kill()
        assert running.first.wait_end() == 1
        assert running.first.events("the model failed")[0]["error"] == "rank 1 of 2 is gone"
        running.restart()
        assert len(running.cluster.generate(prompts[0], k=2, **GREEDY).tokens) == 48


def test_at_the_end_of_all_requests_that_run_end_well(prompts: list[str]) -> None:
    """In operation, all processes of a group get SIGTERM at once."""
    with group() as running:
        stream = running.cluster.stream(prompts[0], k=0, **(GREEDY | {"max_tokens": 200}))
        tokens = [token.id for token in next(stream).tokens]
        running.second.terminate()
        running.second.wait_for_event("draining")
        tokens += [token.id for chunk in stream for token in chunk.tokens]
        assert len(tokens) == 200
        running.first.terminate()
        running.first.wait_orderly_end()
        running.second.wait_orderly_end()


def test_a_second_signal_ends_a_rank_that_waits_for_rank_0() -> None:
    with group() as running:
        running.second.terminate()
        running.second.wait_for_event("draining")
        running.second.terminate()
        running.second.wait_orderly_end()
        assert running.first.wait_end() == 1
        running.cluster.forget(running.first)


def test_a_rank_that_waits_for_the_others_ends_when_it_is_told_to() -> None:
    for rank in (0, 1):
        waiting = Process("outrider-target", *MODEL, *shared(reserve_address(), rank), "--listen", "127.0.0.1:0", "--log-format",
                          "json")
        waiting.wait_for_event("waiting for the other ranks")
        waiting.stop()


def test_what_cannot_be_shared_is_refused_in_one_line() -> None:
    native = refusal("outrider-target", *MODEL, "--tensor-parallel", "2")
    assert "--tensor-parallel 2: needs --engine torch" in native
    assert "--tensor-parallel 3: must divide the" in refusal("outrider-target", *MODEL, *TORCH, "--tensor-parallel", "3")
    assert "--rank 1: must be in [0, 0]" in refusal("outrider-target", *MODEL, *TORCH, "--rank", "1")
    address = "192.0.2.1:29500"  # no machine has this address
    assert f"--rendezvous {address}: bind: Cannot assign requested address" in refusal("outrider-target", *MODEL, *shared(address, 0))
