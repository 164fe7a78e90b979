"""Compares texts of the real processes with the target's exact distribution by chi-square. Has the men in the middle
of the negative controls.

The exact distributions come from transformers (scripts/goldens/generation.py), and from the service's scores of
prompts, which are compared with those.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from scipy import stats

from harness import Cluster, request, sequence_pb2

SAMPLES, LIES = 1600, 1200
PER_CALL = 50
# The level for a true hypothesis; a false one must be rejected beyond doubt. Seeds are fixed, so that a
# run differs from another only where a draft ran out of time.
ACCEPTABLE, DAMNING = 1e-3, 1e-6

Cells = dict[tuple[int, ...], float]
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
    options = {"temperature": 1.0, "max_tokens": length + 3, "ignore_eos": True} | options
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
    """The exact distribution of the `depth` tokens after `ids` under top_k."""
    law: Cells = {(): 1.0}
    for _ in range(depth):
        law = {(*path, token): p * q for path, p in law.items()
               for token, q in next_tokens(c, [*ids, *path], top_k).items()}
    return law


def prompt_ids(c: Cluster, prompt: str) -> list[int]:
    """The ids of a prompt's tokens, without BOS."""
    wanted = request(prompt, max_tokens=1, k=0)
    wanted.logprobs.prompt = 0
    return [position.token.id for position in c.score(wanted)]


def law_of(c: Cluster, prompt: str, top_k: int, depth: int) -> Cells:
    """The exact distribution of the first `depth` tokens under top_k."""
    return law_after(c, [BOS, *prompt_ids(c, prompt)], top_k, depth)


def first_of(law: Cells, length: int) -> Cells:
    """The marginal distribution of the first `length` tokens."""
    cells: Cells = {}
    for path, p in law.items():
        cells[path[:length]] = cells.get(path[:length], 0) + p
    return cells


def assert_law(seen: list[tuple[int, ...]], law: Cells, lengths: Iterable[int] = (1, 2, 3), level: float = ACCEPTABLE) -> None:
    """Fails if the first one, two, .. tokens of these texts do not follow this law."""
    for length in lengths:
        p = p_value(Counter(path[:length] for path in seen), first_of(law, length))
        assert p > level, f"the first {length} tokens: p = {p}"


def canary(c: Cluster) -> Any:
    """The number of tokens accepted so far, its expectation, and its variance."""
    metrics = c.coordinator.metrics()
    return np.array([metrics.value(f"outrider_spec_decode_{name}_total") for name in (
        "observed_accepted_tokens", "expected_accepted_tokens", "expected_accepted_tokens_variance")])


def deviations(c: Cluster, before: Any = 0.0) -> float:
    """How many standard deviations acceptance since `before` is from its expectation."""
    accepted, expected, variance = canary(c) - before
    return abs(accepted - expected) / variance ** 0.5


def flatten(nodes: Iterable[sequence_pb2.DraftNode]) -> None:
    """Replaces every distribution by the uniform one over its tokens."""
    for node in nodes:
        if (form := node.q.WhichOneof("form")) in ("sparse", "dense"):
            weights = getattr(node.q, form).weights
            weights[:] = [float(weight > 0) for weight in weights]


def with_lies(answers: Any, nodes_of: Callable[[Any], Iterable[sequence_pb2.DraftNode]],
              context: grpc.ServicerContext) -> Iterator[Any]:
    """The responses of a stream, with the q of each node flattened."""
    context.add_callback(answers.cancel)
    with contextlib.suppress(grpc.RpcError):
        for response in answers:
            for result in response.results:
                flatten(nodes_of(result))
            yield response


@contextlib.contextmanager
def proxy(address: str, add: Callable[[grpc.Channel, grpc.Server], None]) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    with grpc.insecure_channel(address) as channel:
        add(channel, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(0).wait()
