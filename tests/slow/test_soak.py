"""Soak test: a mixed load while servers are killed. Every answer is right, and no resource grows."""

import contextlib
import itertools
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from harness import PATIENCE, Answer, Cluster, Process, cluster, load_prompts, request

Call = tuple[str, dict[str, Any]]

WORKERS = 6
ANSWERS = 60


def invariant_calls() -> list[Call]:
    """Requests whose answers depend only on themselves."""
    ks, lengths = itertools.cycle([1, 4, 8, 0, 2]), itertools.cycle([12, 30, 70])
    calls: list[Call] = []
    for seed, (prompt, k, length) in enumerate(zip(load_prompts(), ks, lengths)):
        how = {"temperature": 0} if seed % 2 else {"rule": "coupled", "temperature": 0.9, "seed": seed}
        calls.append((prompt, how | {"k": k, "max_tokens": length, "ignore_eos": True}))
    return calls


def tokens_through_losses(c: Cluster, prompt: str, options: dict[str, Any]) -> tuple[list[int], int]:
    """All tokens of an answer, resumed as often as the coordinator is lost, and how often that was."""
    tokens: list[int] = []
    for losses in itertools.count():
        wanted = request(prompt, **options)
        wanted.resume_from.extend(tokens)
        try:
            for chunk in c.stub.Generate(wanted, timeout=PATIENCE, wait_for_ready=True):
                tokens += [token.id for token in chunk.tokens]
            return tokens, losses
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error


def soak(c: Cluster, calls: Sequence[Call], expected: Sequence[list[int]],
         at: dict[int, Callable[[], None]] | None = None) -> int:
    """Gets ANSWERS answers with WORKERS at once, every third beside a cancelled request; at[n] runs after n answers.

    Whoever loses the coordinator resumes from what has come. Returns how often that was.
    """
    done = threading.Semaphore(0)

    def one(number: int) -> int:
        index = number % len(calls)
        prompt, options = calls[index]
        if number % 3 == 0:
            with contextlib.suppress(grpc.RpcError):
                abandoned = c.stream(prompt, k=3, temperature=1)
                next(abandoned)
                abandoned.cancel()
        tokens, losses = tokens_through_losses(c, prompt, options)
        assert tokens == expected[index], (prompt, options)
        done.release()
        return losses

    with ThreadPoolExecutor(WORKERS) as pool:
        answers = [pool.submit(one, number) for number in range(ANSWERS)]
        for number in range(1, ANSWERS + 1):
            while not done.acquire(timeout=1):
                for answer in answers:
                    if answer.done():
                        answer.result()  # a failure ends the wait
            if at and number in at:
                at[number]()
        return sum(answer.result() for answer in answers)


def resident_megabytes(process: Process) -> float:
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


def expected_tokens(c: Cluster, calls: Sequence[Call]) -> list[list[int]]:
    answers: list[Answer] = [c.generate(prompt, **options | {"k": 0}) for prompt, options in calls]
    return [answer.tokens for answer in answers]


def disturbances(c: Cluster, counts: dict[str, int]) -> None:
    """Adds the errors that requests have met, by server."""
    metrics = c.coordinator.metrics()
    for server in ("draft", "target"):
        if errors := sum(metrics.labelled(f"outrider_{server}_errors_total", "reason").values()):
            counts[server] = counts.get(server, 0) + int(errors)


def test_servers_killed_under_load_change_no_answer() -> None:
    calls = invariant_calls()
    with cluster() as c:
        expected = expected_tokens(c, calls)

        def lose_draft() -> None:
            c.kill(c.draft)
            c.restart_draft()

        def lose_target() -> None:
            c.kill(c.target)
            c.restart_target()

        disturbed: dict[str, int] = {}

        def lose_coordinator() -> None:
            disturbances(c, disturbed)  # its counts end with it
            c.kill(c.coordinator)
            c.restart_coordinator()

        losses = soak(c, calls, expected, {5: lose_draft, 15: lose_target, 25: lose_coordinator, 35: lose_target,
                                           45: lose_draft})
        assert losses, "nobody noticed that the coordinator was lost"
        disturbances(c, disturbed)
        assert disturbed.keys() >= {"target", "draft"}, f"only {disturbed} was lost under a request"
        c.wait_draft_up(True)
        c.wait_idle()
        soak(c, calls, expected)
        c.wait_idle()


def test_memory_does_not_grow_with_the_number_of_requests() -> None:
    calls = invariant_calls()
    with cluster() as c:
        expected = expected_tokens(c, calls)
        sizes: list[list[float]] = []
        for _ in range(4):
            soak(c, calls, expected)
            c.wait_idle()
            sizes.append([resident_megabytes(process) for process in (c.coordinator, c.target, c.draft)])
        for before, after in zip(sizes[1], sizes[-1], strict=True):
            assert after < before + 8, sizes
