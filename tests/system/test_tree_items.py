"""Trees in the protocols of draft and target: what is served, and what is refused with its field and range."""

from typing import Any

import pytest

from harness import (Refusal, RemoteSequence, Stream, chain, draft_pb2, draft_stream, new_sequence, node, running, sequence_pb2,
                     start_draft, start_target, target_stream)

PROMPT = list(range(300, 340))
Shape = sequence_pb2.TreeShape


def forest(parents: list[int]) -> list[sequence_pb2.DraftNode]:
    return [node(400 + i, parent + 1) for i, parent in enumerate(parents)]


def branching(*children: int) -> sequence_pb2.TreeShape:
    return Shape(branching=Shape.Branching(children=children))


def proposal(sequence: RemoteSequence, shape: sequence_pb2.TreeShape, k: int = 4, **fields: Any) -> draft_pb2.DraftItem:
    item = sequence.propose(1, PROMPT, k=k)
    item.propose.tree.CopyFrom(shape)
    for name, value in fields.items():
        field = getattr(item.propose, name)
        field.CopyFrom(value) if hasattr(field, "CopyFrom") else setattr(item.propose, name, value)
    return item


BAD_FORESTS = {
    "a node that follows itself": ([-1, 1], "draft[1].parent", "-1 to 0"),
    "a node that follows a later one": ([-1, 2, -1], "draft[1].parent", "-1 to 0"),
    "a parent below the root": ([-1, -2], "draft[1].parent", "-1 to 0"),
    "a parent far away": ([-1, 2**31 - 1], "draft[1].parent", "-1 to 0"),
    "too many nodes": ([-1] * 65, "draft", "0 to 64"),
    "too many nodes on two levels": ([-1] * 8 + [i % 8 for i in range(57)], "draft", "0 to 64"),
    "too deep": ([-1, -1, *range(1, 40)], "draft", "0 to "),
}


@pytest.mark.parametrize("case", BAD_FORESTS)
def test_a_malformed_forest_fails_its_item_and_no_other(case: str, target: Stream) -> None:
    parents, field, allowed = BAD_FORESTS[case]
    before, bad, after = (new_sequence(len(PROMPT)) for _ in range(3))
    first, = target.ask(bad.verify(1, PROMPT))
    one, failed, other = target.ask(before.verify(1, PROMPT, draft=forest([-1, -1, 0])),
                                    bad.verify(2, [*PROMPT, first.verdict.token], len(PROMPT), draft=forest(parents)),
                                    after.verify(1, PROMPT))
    refusal = Refusal.parse(failed.status)
    assert refusal.code == "INVALID_ARGUMENT"
    assert refusal.message.startswith(f"{field}: ") and f"allowed: {allowed}" in refusal.message
    assert one.verdict.token == other.verdict.token == first.verdict.token
    # Nothing was lost: the same round goes on from what the target holds.
    again, = target.ask(bad.verify(2, [*PROMPT, first.verdict.token], len(PROMPT), draft=forest([-1, -1]), params=False))
    assert again.HasField("verdict")


@pytest.mark.parametrize("what", ["block rule", "lenience"])
def test_a_tree_where_only_chains_are_judged_is_refused(what: str, target: Stream) -> None:
    sequence = new_sequence(len(PROMPT), temperature=1.0, rule="block" if what == "block rule" else "token")
    item = sequence.verify(1, PROMPT, draft=forest([-1, -1]))
    if what == "lenience":
        item.verify.sequence.params.lenience = 0.5
    refusal = target.refused(item)
    assert (refusal.code, refusal.reason) == ("INVALID_ARGUMENT", "TREE_UNSUPPORTED")
    assert what in refusal.message and "allowed: a chain" in refusal.message
    again, = target.ask(sequence.verify(2, PROMPT, len(PROMPT) - 1, draft=chain([400])))
    assert again.HasField("verdict")


BAD_SHAPES = {
    "no form": (Shape(), {}, "tree", "branching, chains, budget"),
    "no level": (Shape(branching=Shape.Branching()), {}, "tree.branching.children", "1 to 31"),
    "too many levels": (branching(*[1] * 32), {}, "tree.branching.children", "1 to 31"),
    "no child": (branching(2, 0), {}, "tree.branching.children", "1 to 65536"),
    "what was a negative number": (branching(2**32 - 1), {}, "tree.branching.children", "1 to 65536"),
    "no chain": (Shape(chains=0), {}, "tree.chains", "1 to 65536"),
    "too many chains": (Shape(chains=2**20), {}, "tree.chains", "1 to 65536"),
    "no node": (Shape(budget=0), {}, "tree.budget", "1 to 65536"),
    "more nodes than the server takes": (branching(9, 9), {}, "tree", "0 to 64"),
    "more nodes than an int has": (branching(*[65536] * 31), {"k": 8}, "tree", "0 to 64"),
    "more chains than the server takes": (Shape(chains=17), {}, "tree", "0 to 64"),
    "a larger budget than the server takes": (Shape(budget=65), {"k": 8}, "tree", "0 to 64"),
    "an end of its own": (branching(2), {"stop": draft_pb2.DraftStop(least=0.5, acceptance=[0.5])}, "tree", ""),
    "a token before it": (branching(2), {"draw_next": True}, "tree", ""),
    "alternatives": (branching(2), {"alternatives": 1}, "tree", ""),
}


@pytest.mark.parametrize("case", BAD_SHAPES)
def test_a_malformed_shape_fails_its_item_and_no_other(case: str, draft: Stream) -> None:
    shape, options, field, allowed = BAD_SHAPES[case]
    before, bad = (new_sequence(len(PROMPT)) for _ in range(2))
    one, failed = draft.ask(proposal(before, branching(2, 2)), proposal(bad, shape, **options))
    refusal = Refusal.parse(failed.status)
    assert (refusal.code, refusal.reason) == ("INVALID_ARGUMENT", "TREE_OUT_OF_RANGE")
    assert refusal.message.startswith(f"{field}: ") and (not allowed or f"allowed: {allowed}" in refusal.message)
    again, = draft.ask(proposal(bad, branching(2, 2)))
    assert [n.token for n in again.nodes] == [n.token for n in one.nodes] and len(one.nodes) == 6


def test_a_tree_ends_at_the_context(draft: Stream, target: Stream) -> None:
    context = draft.info.max_context
    tokens = [300 + i % 50 for i in range(context - 3)]
    item = new_sequence(len(tokens)).propose(1, tokens, k=8)
    item.propose.tree.CopyFrom(branching(*[2, 1, 1, 1, 1]))
    result, = draft.ask(item)
    assert not result.HasField("status") and len(result.nodes) == 2 + 2 + 2
    # Slots are not positions: the tree has more nodes than there are positions left.
    judged, = target.ask(new_sequence(len(tokens)).verify(1, tokens, draft=forest([-1, -1, 0, 1, 1])))
    assert judged.HasField("verdict")
    refusal = target.refused(new_sequence(len(tokens)).verify(1, tokens, draft=forest([-1, -1, 0, 2])))
    assert (refusal.code, refusal.reason) == ("INVALID_ARGUMENT", "DRAFT_TOO_LONG")


def test_a_tree_that_no_step_has_room_for_is_refused() -> None:
    target, draft = start_target("--max-batch-tokens", "32"), start_draft("--max-batch-tokens", "32")
    with running(target, draft), target_stream(target) as verify, draft_stream(draft) as propose:
        sequence, other = new_sequence(len(PROMPT)), new_sequence(len(PROMPT))
        refusal = verify.refused(sequence.verify(1, PROMPT, draft=forest([-1] * 32)))
        assert (refusal.code, refusal.reason) == ("INVALID_ARGUMENT", "TREE_TOO_LARGE")
        assert "allowed: 0 to 31" in refusal.message
        assert propose.refused(proposal(other, branching(32))).reason == "TREE_OUT_OF_RANGE"
        assert verify.info.max_tree_nodes == propose.info.max_tree_nodes == 31
        largest, = verify.ask(sequence.verify(1, PROMPT, draft=forest([-1] * 31)))
        assert largest.HasField("verdict")
        assert len(propose.ask(proposal(other, branching(31)))[0].nodes) == 31
