"""Branches of a draft, against a server without a coordinator."""

import itertools

import pytest

from harness import RemoteSequence, Stream, draft_pb2, draft_stream, new_sequence, running, sequence_pb2, start_draft

PROMPT = list(range(300, 340))
KINDS = [("token", 1.0), ("block", 1.0), ("coupled", 1.0), ("token", 0.0)]


def branch_of(origin: RemoteSequence, tokens: list[int], base: int, *, k: int = 3, assumed: int = 1,
              draw_next: bool = False, alternatives: int = 0) -> draft_pb2.DraftItem:
    """The first item of a branch, without parameters."""
    item = new_sequence(len(PROMPT)).propose(1, tokens, base, k=k, params=False)
    item.propose.sequence.fork_of = origin.id
    item.propose.assumed_tokens, item.propose.draw_next, item.propose.alternatives = assumed, draw_next, alternatives
    return item


def content(nodes: list[sequence_pb2.DraftNode]) -> list[bytes]:
    return [x.SerializeToString(deterministic=True) for x in nodes]


@pytest.mark.parametrize("rule, temperature", KINDS)
def test_a_branch_is_what_a_fresh_item_gets(draft: Stream, rule: str, temperature: float) -> None:
    origin = new_sequence(len(PROMPT), rule=rule, temperature=temperature)
    proposed, = draft.ask(origin.propose(1, PROMPT))
    tokens = PROMPT + [x.token for x in proposed.nodes]
    draft.send(branch_of(origin, tokens, len(tokens) - 1, assumed=4, draw_next=True))
    first, whole = draft.receive(), draft.receive()
    assert first.partial and not first.nodes and not whole.partial
    assert first.next == whole.next
    fresh, = draft.ask(RemoteSequence(origin.params).propose(1, tokens, k=1))
    assert whole.next.token == fresh.nodes[0].token and not whole.next.HasField("q")
    after, = draft.ask(RemoteSequence(origin.params).propose(1, tokens + [whole.next.token], k=3))
    assert content(whole.nodes) == content(after.nodes)


def test_a_promoted_branch_goes_on_as_the_sequence(draft: Stream) -> None:
    origin = new_sequence(len(PROMPT))
    proposed, = draft.ask(origin.propose(1, PROMPT))
    tokens = PROMPT + [x.token for x in proposed.nodes]
    item = branch_of(origin, tokens, len(tokens) - 1)
    branch = RemoteSequence(origin.params, item.propose.sequence.sequence_id)
    draft.ask(item)
    draft.send(draft_pb2.DraftItem(promote=draft_pb2.PromoteItem(sequence_id=branch.id)))
    draft.send(draft_pb2.DraftItem(release={"sequence_id": origin.id}))
    ahead, = draft.ask(branch.propose(2, tokens + [7], len(tokens), params=False))
    fresh, = draft.ask(RemoteSequence(origin.params).propose(1, tokens + [7]))
    assert not ahead.HasField("status") and content(ahead.nodes) == content(fresh.nodes)


def test_a_released_branch_is_forgotten(draft: Stream) -> None:
    origin = new_sequence(len(PROMPT))
    draft.ask(origin.propose(1, PROMPT))
    item = branch_of(origin, PROMPT + [7], len(PROMPT))
    first, = draft.ask(item)
    draft.send(draft_pb2.DraftItem(release={"sequence_id": item.propose.sequence.sequence_id}))
    again, = draft.ask(item)
    assert content(again.nodes) == content(first.nodes)


def test_alternatives_are_other_tokens(draft: Stream) -> None:
    for rule, temperature in KINDS:
        origin = new_sequence(len(PROMPT), rule=rule, temperature=temperature)
        item = origin.propose(1, PROMPT)
        item.propose.alternatives = 3
        result, = draft.ask(item)
        assert [len(x.ids) for x in result.alternatives] == [3] * 4
        for drafted, others in zip(result.nodes, result.alternatives):
            assert len({drafted.token, *others.ids}) == 4


def test_what_is_out_of_range_is_refused_by_name(draft: Stream) -> None:
    origin = new_sequence(len(PROMPT))
    draft.ask(origin.propose(1, PROMPT))
    refused = draft.refused(branch_of(origin, PROMPT + [7], len(PROMPT), assumed=len(PROMPT) + 2))
    assert refused.reason == "ASSUMED_OUT_OF_RANGE"
    refused = draft.refused(branch_of(origin, PROMPT + [7], len(PROMPT), alternatives=17))
    assert refused.reason == "ALTERNATIVES_OUT_OF_RANGE"
    missing = branch_of(origin, PROMPT + [7], len(PROMPT))
    missing.propose.sequence.params_hash = 8
    assert draft.refused(missing).reason == "PARAMS_UNKNOWN"


def test_a_drawn_token_takes_room_of_the_context(draft: Stream) -> None:
    tokens = list(itertools.islice(itertools.cycle(PROMPT), draft.info.max_context - 2))
    item = new_sequence(4).propose(1, tokens)
    item.propose.draw_next = True
    draft.send(item)
    assert draft.receive().partial
    result = draft.receive()
    assert result.HasField("next") and len(result.nodes) == 1


def test_a_request_overtakes_branches(draft: Stream) -> None:
    origin = new_sequence(len(PROMPT))
    draft.ask(origin.propose(1, PROMPT))
    branches = [branch_of(origin, PROMPT + [7 + i], len(PROMPT), k=1) for i in range(4)]
    other = new_sequence(len(PROMPT))
    draft.send(*branches, other.propose(1, PROMPT, k=8))
    assert draft.receive().sequence_id == other.id, "though it takes eight steps"
    for _ in branches:
        assert len(draft.receive().nodes) == 1


def test_branches_evict_nobody_when_the_pool_is_full() -> None:
    server = start_draft("--kv-blocks", "8", "--max-sequences", "3")
    with running(server), draft_stream(server) as draft:
        size = draft.info.block_size
        tokens = list(itertools.islice(itertools.cycle(PROMPT), 8 * size - 4))
        origin = new_sequence(4)
        draft.ask(origin.propose(1, tokens, k=1))
        refused = draft.refused(branch_of(origin, tokens + [7], len(tokens)))
        assert refused.reason == "KV_EXHAUSTED"
        assert server.value("outrider_draft_preemptions_total") == 0
        held, = draft.ask(origin.propose(2, tokens + [8], len(tokens), k=1))
        assert not held.HasField("status")
