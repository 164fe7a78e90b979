"""A draft that sends wrong or late proposals changes no answer, and is believed again once its proposals are right."""

import math
from collections.abc import Callable, Iterator

import pytest

from harness import Cluster, cluster, draft_pb2, eventually
from proxies import Proxy

Result = draft_pb2.ProposeResult
GREEDY = {"k": 4, "drafter": "model", "temperature": 0, "max_tokens": 60, "ignore_eos": True}


@pytest.fixture(scope="module")
def proxy() -> Proxy:
    return Proxy("draft")


@pytest.fixture(scope="module")
def broken(proxy: Proxy) -> Iterator[Cluster]:
    """A cluster whose draft is behind the proxy. The draft has little time, since some of its results never come."""
    with cluster(through=proxy, coordinator=["--draft-budget", "0.05"]) as c:
        yield c


def weights(result: Result, *values: float) -> None:
    """Sets the q of the first node: the weight of its own token first, then those of the next ids."""
    node = result.nodes[0]
    node.q.sparse.ids[:] = [node.token + i for i in range(len(values))]
    node.q.sparse.weights[:] = values


# Wrong proposals: how each is made, whether it counts as an error of draft or target or as unexpected, and the reason.
WRONG: dict[str, tuple[Callable[[Result], object], str, str]] = {
    "more tokens than asked for": (lambda r: r.nodes.extend([*r.nodes, *r.nodes]), "draft", "PROPOSAL_TOO_LONG"),
    "a token outside the vocabulary": (lambda r: setattr(r.nodes[0], "token", 10**6), "draft", "DRAFT_TOKEN_OUT_OF_RANGE"),
    "a parent that comes later": (lambda r: setattr(r.nodes[0], "parent", 3), "draft", "DRAFT_PARENT_OUT_OF_RANGE"),
    "no q": (lambda r: r.nodes[0].ClearField("q"), "draft", "DRAFT_DISTRIBUTION_INVALID"),
    "q is NaN": (lambda r: weights(r, math.nan), "target", "DRAFT_DISTRIBUTION_INVALID"),
    "q is negative": (lambda r: weights(r, 1.0, -1.0), "target", "DRAFT_DISTRIBUTION_INVALID"),
    "q is zero for its token": (lambda r: weights(r, 0.0, 1.0), "target", "DRAFT_DISTRIBUTION_INVALID"),
    "q is infinite": (lambda r: weights(r, math.inf), "target", "DRAFT_DISTRIBUTION_INVALID"),
    "the answer to another round": (lambda r: setattr(r, "round", r.round + 1), "unexpected", ""),
    "the answer of another sequence": (lambda r: setattr(r, "sequence_id", r.sequence_id[::-1]), "unexpected", ""),
}


def counted(c: Cluster, by: str, reason: str) -> float:
    metrics = c.coordinator.metrics()
    if by == "unexpected":
        return metrics.value("outrider_unexpected_answers_total", server="draft")
    return metrics.labelled(f"outrider_{by}_errors_total", "reason").get(reason, 0)


def wait_until_drafting(c: Cluster, prompt: str) -> None:
    eventually(lambda: c.generate(prompt, **GREEDY).speculation.accepted > 0, "the draft is believed again")


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_proposal_is_refused_and_counted_and_changes_nothing(case: str, broken: Cluster, proxy: Proxy,
                                                                    prompts: list[str]) -> None:
    spoil, by, reason = WRONG[case]
    wait_until_drafting(broken, prompts[0])
    wanted = broken.generate(prompts[1], **GREEDY | {"k": 0}).tokens
    before, bases = counted(broken, by, reason), []

    def spoilt(result: Result) -> list[Result]:
        if result.nodes:
            spoil(result)
        return [result]

    proxy.on_item = lambda sequence: bases.append(sequence.base) or True
    proxy.on_result = spoilt
    answer = broken.generate(prompts[1], **GREEDY)
    proxy.on_item, proxy.on_result = lambda sequence: True, lambda result: [result]
    assert answer.tokens == wanted
    assert answer.speculation.drafted == 0
    assert counted(broken, by, reason) > before
    if by == "draft":
        assert bases[2:] == [0] * len(bases[2:]) != [], "what the draft holds for the sequence is believed"
    wait_until_drafting(broken, prompts[0])
    broken.wait_idle()


def test_a_late_proposal_is_never_applied_to_a_later_round(broken: Cluster, proxy: Proxy, prompts: list[str]) -> None:
    """Each result is held back until the next one, so it arrives while another round waits."""
    wait_until_drafting(broken, prompts[0])
    wanted = broken.generate(prompts[1], **GREEDY | {"k": 0}).tokens
    before, held = counted(broken, "unexpected", ""), []

    def one_late(result: Result) -> list[Result]:
        held.append(result)
        return [held.pop(0)] if len(held) > 1 else []

    proxy.on_result = one_late
    answer = broken.generate(prompts[1], **GREEDY)
    proxy.on_result = lambda result: [result]
    assert answer.tokens == wanted
    assert answer.speculation.drafted == 0
    assert counted(broken, "unexpected", "") > before
    wait_until_drafting(broken, prompts[0])


@pytest.mark.parametrize(("flags", "most"), [(["--max-draft-tokens", "2"], 2), (["--kv-blocks", "2", "--block-size", "8"], 0)],
                         ids=["a smaller limit", "a full pool"])
def test_what_the_draft_lacks_costs_only_speculation(flags: list[str], most: int, pair: Cluster, prompts: list[str]) -> None:
    with cluster(draft=flags) as c:
        for k in (1, 2, 8):
            options = GREEDY | {"k": k, "trace": True}
            wanted, answer = pair.generate(prompts[1], **options), c.generate(prompts[1], **options)
            assert (answer.tokens, answer.reason) == (wanted.tokens, wanted.reason)
            assert max(len(r.drafted) for r in answer.rounds) == min(k, most)
