"""The second law for the target's own proposals: chains, trees and the block rule, with every proposer.

The negative control is a man in the middle that sends the coordinator another q than the target sampled from.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from harness import cluster, full, target_pb2, target_pb2_grpc
from heads import ALONE, PROPOSERS
from law import DAMNING, LIES, SAMPLES, Cells, assert_law, deviations, law_of, p_value, proxy, sample, with_lies


WAYS: dict[str, dict[str, Any]] = {"chain": {"k": 3}, "tree": {"tree": "2x2x1"}, "block": {"k": 3, "rule": "block"}}
# tests/unit/proposals_law_test.cc covers all proposers. Here one of them shows that q arrives.
CASES = [(p, w) if (p, w) in {("eagle", "chain"), ("eagle", "tree")} else full(p, w) for p in PROPOSERS for w in WAYS]


@pytest.mark.parametrize(("proposer", "way"), CASES)
def test_what_the_target_proposes_leaves_its_distribution_alone(proposer: str, way: str,
                                                               goldens: dict[str, Any]) -> None:
    with cluster(target=ALONE, draft=None) as c:
        law = law_of(c, goldens["prompt"], 5, 3)
        seen = sample(c, goldens["prompt"], 3, top_k=5, drafter=proposer, **WAYS[way])
        assert_law(seen, law)
        assert c.coordinator.metrics().value("outrider_spec_decode_num_drafts_total") > SAMPLES
        if way != "block":
            assert deviations(c) < 4


class LyingTarget(target_pb2_grpc.TargetServicer):
    """A proxy of a target that lies about the q of its own proposals."""

    def __init__(self, target: grpc.Channel) -> None:
        self._target = target_pb2_grpc.TargetStub(target)

    def Verify(self, requests: Iterator[target_pb2.VerifyRequest],
               context: grpc.ServicerContext) -> Iterator[target_pb2.VerifyResponse]:
        return with_lies(self._target.Verify(requests), lambda result: result.verdict.proposal, context)


def lying_target(address: str) -> contextlib.AbstractContextManager[str]:
    return proxy(address, lambda channel, server: target_pb2_grpc.add_TargetServicer_to_server(LyingTarget(channel), server))


@pytest.mark.parametrize(("proposer", "way"), [("eagle", {"tree": "2x2"}), full("eagle", {"k": 3}),
                                                full("layer_skip", {"k": 3}), full("layer_skip", {"tree": "2x2"})])
def test_a_q_that_it_did_not_propose_with_is_found_out(proposer: str, way: dict[str, Any], goldens: dict[str, Any],
                                                       paths: Cells) -> None:
    length = len(next(iter(paths)))
    with cluster(target=ALONE, draft=None, target_through=lying_target) as c:
        observed = Counter(sample(c, goldens["prompt"], length, LIES, drafter=proposer, top_k=goldens["top_k"], **way))
        assert p_value(observed, paths) < DAMNING
        assert deviations(c) > 8
