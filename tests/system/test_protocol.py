"""The protocols of draft and target, against servers without a coordinator."""

import itertools
import math

import pytest

from harness import (RemoteSequence, Refusal, Server, Stream, chain, draft_pb2, draft_stream, eventually, new_sequence, node, running,
                     sequence_pb2, sparse, start_draft, start_target, target_pb2, target_stream)

PROMPT = list(range(300, 340))
Distribution = sequence_pb2.Distribution


def continuation(target: Stream, count: int) -> list[int]:
    """The target's greedy continuation of PROMPT."""
    sequence, tokens = new_sequence(len(PROMPT)), list(PROMPT)
    for round in range(1, count + 1):
        result, = target.ask(sequence.verify(round, tokens, len(tokens) - 1 if round > 1 else 0))
        tokens.append(result.verdict.token)
    return tokens[len(PROMPT):]


def kind(result: target_pb2.VerifyResult) -> str:
    return sequence_pb2.TokenKind.Name(result.verdict.kind).removeprefix("TOKEN_KIND_")


def released(name: bytes) -> sequence_pb2.ReleaseItem:
    return sequence_pb2.ReleaseItem(sequence_id=name)


# --- both ------------------------------------------------------------------------------------------------------


def test_the_first_message_says_who_serves(target: Stream, draft: Stream) -> None:
    assert target.info.fingerprint == draft.info.fingerprint
    assert target.info.boot_id != draft.info.boot_id
    for info in (target.info, draft.info):
        assert info.vocab_size > 0 and info.max_context > 0 and info.max_draft_tokens >= 8
        assert info.kv_blocks * info.block_size >= info.max_context
        assert info.max_message_bytes > 4 << 20


# --- target: verdicts ------------------------------------------------------------------------------------------


def test_a_verdict_accepts_what_the_target_would_have_said_and_corrects_the_rest(target: Stream) -> None:
    said = continuation(target, 4)
    wrong = next(token for token in range(300, 310) if token != said[2])
    for draft, accepted, token, expected in (([], 0, said[0], "PLAIN"),
                                             (said[:3], 3, said[3], "BONUS"),
                                             ([*said[:2], wrong], 2, said[2], "CORRECTED"),
                                             ([*said[:2], wrong, said[3]], 2, said[2], "CORRECTED")):
        result, = target.ask(new_sequence(len(PROMPT)).verify(1, PROMPT, draft=chain(draft)))
        assert list(result.verdict.accepted) == list(range(accepted))
        assert (result.verdict.token, kind(result)) == (token, expected)
        assert result.cached == len(PROMPT) + accepted


def test_a_sequence_goes_on_from_what_the_target_holds(target: Stream) -> None:
    said = continuation(target, 6)
    sequence = new_sequence(len(PROMPT))
    first, = target.ask(sequence.verify(1, PROMPT, draft=chain(said[:2])))
    tokens = [*PROMPT, *said[:3]]
    second, = target.ask(sequence.verify(2, tokens, base=first.cached, draft=chain(said[3:5]), params=False))
    assert (list(second.verdict.accepted), second.verdict.token) == ([0, 1], said[5])


def test_a_smaller_base_truncates(target: Stream) -> None:
    said = continuation(target, 3)
    sequence = new_sequence(len(PROMPT))
    target.ask(sequence.verify(1, [*PROMPT, *said[:2]]))
    result, = target.ask(sequence.verify(2, [*PROMPT, said[0]], base=7))
    assert (result.verdict.token, result.cached) == (said[1], len(PROMPT) + 1)


def test_appending_alone_has_no_verdict(target: Stream) -> None:
    sequence = new_sequence(len(PROMPT))
    item = sequence.verify(1, PROMPT[:20])
    item.verify.append_only = True
    appended, = target.ask(item)
    assert not appended.HasField("verdict") and not appended.HasField("status") and appended.cached == 20
    result, = target.ask(sequence.verify(2, PROMPT, base=20))
    assert result.verdict.token == continuation(target, 1)[0]


# --- target: rounds --------------------------------------------------------------------------------------------


def test_the_same_item_twice_has_the_same_verdict(target: Stream, target_server: Server) -> None:
    sequence = new_sequence(len(PROMPT), temperature=1.0)
    item = sequence.verify(1, PROMPT, draft=chain([300, 301]))
    first, again = target.ask(item, item)
    later, = target.ask(item)
    with target_stream(target_server) as other:
        elsewhere, = other.ask(item)
    assert first.verdict == again.verdict == later.verdict == elsewhere.verdict


def test_the_same_item_said_otherwise_has_the_same_verdict(target: Stream) -> None:
    sequence = new_sequence(len(PROMPT), temperature=1.0)
    first, = target.ask(sequence.verify(1, PROMPT))
    again, = target.ask(sequence.verify(1, PROMPT, base=30))
    assert first.verdict == again.verdict


def test_another_item_in_the_same_round_is_aborted(target: Stream) -> None:
    sequence = new_sequence(len(PROMPT))
    target.ask(sequence.verify(1, PROMPT))
    for other in (sequence.verify(1, PROMPT, draft=chain([300])), sequence.verify(1, PROMPT[:-1])):
        refusal = target.refused(other)
        assert (refusal.code, refusal.reason) == ("ABORTED", "ROUND_CONFLICT")


def test_an_older_round_is_aborted(target: Stream) -> None:
    sequence = new_sequence(len(PROMPT))
    target.ask(sequence.verify(5, PROMPT))
    refusal = target.refused(sequence.verify(4, PROMPT))
    assert (refusal.code, refusal.reason) == ("ABORTED", "ROUND_STALE")


def test_a_base_beyond_what_is_held_says_what_is_held(target: Stream) -> None:
    sequence = new_sequence(len(PROMPT))
    target.ask(sequence.verify(1, PROMPT))
    result, = target.ask(sequence.verify(2, [*PROMPT, *range(400, 410)], base=len(PROMPT) + 5))
    assert Refusal.parse(result.status).code == "FAILED_PRECONDITION"
    assert result.cached == len(PROMPT)


def test_another_prefix_is_not_continued(target: Stream) -> None:
    sequence = new_sequence(len(PROMPT))
    target.ask(sequence.verify(1, PROMPT))
    refusal = target.refused(sequence.verify(2, PROMPT, base=20, hash=1))
    assert (refusal.code, refusal.reason) == ("FAILED_PRECONDITION", "PREFIX_MISMATCH")
    repaired, = target.ask(sequence.verify(3, PROMPT))
    assert repaired.verdict.token == continuation(target, 1)[0]


def test_an_unknown_sequence_is_not_found(target: Stream) -> None:
    assert target.refused(new_sequence(len(PROMPT)).verify(1, PROMPT, base=10)).code == "NOT_FOUND"


def test_a_round_from_an_earlier_boot_is_not_found_and_can_be_sent_whole() -> None:
    sequence = new_sequence(len(PROMPT))
    address, verdicts = "", []
    for _ in range(2):
        server = start_target(listen=address)
        address = server.address
        with running(server), target_stream(server) as stream:
            if verdicts:
                tokens = [*PROMPT, verdicts[0].token]
                assert stream.refused(sequence.verify(2, tokens, base=len(PROMPT))).code == "NOT_FOUND"
            result, = stream.ask(sequence.verify(len(verdicts) + 1, PROMPT))
            verdicts.append(result.verdict)
    assert verdicts[0] == verdicts[1]


def test_a_sequence_begins_with_its_parameters(target: Stream) -> None:
    refusal = target.refused(new_sequence(len(PROMPT)).verify(1, PROMPT, params=False))
    assert (refusal.code, refusal.reason) == ("FAILED_PRECONDITION", "PARAMS_UNKNOWN")


def test_a_released_sequence_is_never_known_again(target: Stream, draft: Stream) -> None:
    sequence = new_sequence(len(PROMPT))
    target.ask(sequence.verify(1, PROMPT))
    target.send(target_pb2.TargetItem(release=released(sequence.id)))
    assert target.refused(sequence.verify(2, PROMPT)).code == "NOT_FOUND"
    draft.ask(sequence.propose(1, PROMPT))
    draft.send(draft_pb2.DraftItem(release=released(sequence.id)))
    assert draft.refused(sequence.propose(2, PROMPT)).code == "NOT_FOUND"


def test_a_cancelled_round_is_not_answered_and_the_sequence_stays(target: Stream) -> None:
    sequence, tokens = new_sequence(len(PROMPT)), [300 + i % 50 for i in range(target.info.max_context - 1)]
    cancel = target_pb2.TargetItem(cancel=sequence_pb2.CancelItem(sequence_id=sequence.id, round=1))
    # So many tokens take several steps, and the cancellation comes with them. Without the cancellation, round 1 is
    # answered first, as superseded.
    target.send(sequence.verify(1, tokens), cancel, sequence.verify(2, PROMPT))
    assert target.receive().round == 2
    third, = target.ask(sequence.verify(3, PROMPT, base=len(PROMPT) - 1, params=False))
    assert third.HasField("verdict")


# --- target: bad items -----------------------------------------------------------------------------------------

def dense(weights: int) -> Distribution:
    return Distribution(dense=Distribution.Dense(weights=[1.0] * weights))


NAN, INF = math.nan, math.inf
BAD_DRAFTS = {
    "token out of the vocabulary": (lambda: [node(10**6, 0)], "DRAFT_TOKEN_OUT_OF_RANGE"),
    "no q": (lambda: [node(300, 0, Distribution())], "DRAFT_DISTRIBUTION_INVALID"),
    "no q for the second token": (lambda: [node(300, 0), node(301, 1, Distribution())], "DRAFT_DISTRIBUTION_INVALID"),
    "q is NaN": (lambda: [node(300, 0, sparse({300: NAN}))], "DRAFT_DISTRIBUTION_INVALID"),
    "q is NaN elsewhere": (lambda: [node(300, 0, sparse({300: 1.0, 301: NAN}))], "DRAFT_DISTRIBUTION_INVALID"),
    "q is infinite": (lambda: [node(300, 0, sparse({300: INF}))], "DRAFT_DISTRIBUTION_INVALID"),
    "q is negative": (lambda: [node(300, 0, sparse({300: 1.0, 301: -1.0}))], "DRAFT_DISTRIBUTION_INVALID"),
    "q is zero for its token": (lambda: [node(300, 0, sparse({300: 0.0, 301: 1.0}))], "DRAFT_DISTRIBUTION_INVALID"),
    "q without its token": (lambda: [node(300, 0, sparse({301: 1.0}))], "DRAFT_DISTRIBUTION_INVALID"),
    "q is empty": (lambda: [node(300, 0, sparse({}))], "DRAFT_DISTRIBUTION_INVALID"),
    "q is not ascending": (lambda: [node(300, 0, sparse({301: 0.5, 300: 0.5}))], "DRAFT_DISTRIBUTION_INVALID"),
    "q has a token out of the vocabulary": (lambda: [node(300, 0, sparse({300: 0.5, 10**6: 0.5}))],
                                            "DRAFT_DISTRIBUTION_INVALID"),
    "q is dense and ends before its token": (lambda: [node(300, 0, dense(300))], "DRAFT_DISTRIBUTION_INVALID"),
    "q has more weights than there are tokens": (lambda: [node(300, 0, dense(5000))], "DRAFT_DISTRIBUTION_INVALID"),
    "a node that follows itself": (lambda: [node(300, 1)], "DRAFT_PARENT_OUT_OF_RANGE"),
    "a tree that is too large": (lambda: [node(300 + i, 0) for i in range(65)], "TREE_TOO_LARGE"),
    "too many": (lambda: chain([300] * 100), "DRAFT_TOO_LONG"),
}


@pytest.mark.parametrize("case", BAD_DRAFTS)
def test_a_bad_draft_fails_its_item_and_no_other(case: str, target: Stream) -> None:
    draft, reason = BAD_DRAFTS[case]
    before, bad, after = (new_sequence(len(PROMPT)) for _ in range(3))
    one, failed, other = target.ask(before.verify(1, PROMPT), bad.verify(1, PROMPT, draft=draft()),
                                    after.verify(1, PROMPT))
    refusal = Refusal.parse(failed.status)
    assert (refusal.code, refusal.reason) == ("INVALID_ARGUMENT", reason)
    assert not failed.HasField("verdict")
    assert one.verdict.token == other.verdict.token == continuation(target, 1)[0]
    # Nothing has changed: a valid item of the same round is accepted.
    again, = target.ask(bad.verify(1, PROMPT))
    assert again.verdict.token == one.verdict.token


def test_a_draft_may_not_reach_beyond_the_context(target: Stream) -> None:
    context = target.info.max_context
    tokens = [300 + i % 50 for i in range(context - 3)]
    result, = target.ask(new_sequence(len(tokens)).verify(1, tokens, draft=chain([300, 301])))
    assert result.HasField("verdict")
    refusal = target.refused(new_sequence(len(tokens)).verify(1, tokens, draft=chain([300, 301, 302])))
    assert (refusal.code, refusal.reason) == ("INVALID_ARGUMENT", "DRAFT_TOO_LONG")


def test_bad_items_are_refused_one_by_one(target: Stream) -> None:
    sequence = new_sequence(len(PROMPT))
    no_tokens = sequence.verify(1, PROMPT, base=len(PROMPT))
    bad_token = sequence.verify(1, [*PROMPT, 10**6])
    no_rule = sequence.verify(1, PROMPT)
    no_rule.verify.sequence.params.rule = 99
    hot = sequence.verify(1, PROMPT)
    hot.verify.sequence.params.sampling.temperature = -1
    short_id = sequence.verify(1, PROMPT)
    short_id.verify.sequence.sequence_id = b"short"
    for item in (no_tokens, bad_token, no_rule, hot, short_id):
        assert target.refused(item).code == "INVALID_ARGUMENT", item
    target.send(target_pb2.TargetItem())
    empty = Refusal.parse(target.receive().status)
    assert (empty.code, empty.reason) == ("INVALID_ARGUMENT", "ITEM_EMPTY")
    good, = target.ask(sequence.verify(1, PROMPT))
    assert good.HasField("verdict")


# --- draft -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 4])
def test_a_proposal_is_a_chain_with_its_distributions(k: int, draft: Stream) -> None:
    result, = draft.ask(new_sequence(len(PROMPT), temperature=1.0).propose(1, PROMPT, k=k))
    assert len(result.nodes) == k
    assert result.cached == len(PROMPT) + max(k - 1, 0)
    for index, drafted in enumerate(result.nodes):
        assert drafted.parent == index - 1
        ids, weights = list(drafted.q.sparse.ids), list(drafted.q.sparse.weights)
        assert ids == sorted(set(ids)) and len(ids) == len(weights) <= 64
        assert all(weight > 0 and math.isfinite(weight) for weight in weights)
        assert drafted.token in ids


def test_a_greedy_proposal_is_certain_of_itself(draft: Stream) -> None:
    result, = draft.ask(new_sequence(len(PROMPT)).propose(1, PROMPT, k=3))
    for drafted in result.nodes:
        assert drafted.q.WhichOneof("form") == "point_mass" or list(drafted.q.sparse.ids) == [drafted.token]


def test_a_coupled_proposal_has_no_distributions(draft: Stream) -> None:
    result, = draft.ask(new_sequence(len(PROMPT), rule="coupled", temperature=1.0).propose(1, PROMPT, k=3))
    assert [drafted.HasField("q") for drafted in result.nodes] == [False] * 3


def test_the_draft_follows_what_was_accepted(draft: Stream) -> None:
    sequence = new_sequence(len(PROMPT), temperature=1.0)
    first, = draft.ask(sequence.propose(1, PROMPT, k=4))
    x = [drafted.token for drafted in first.nodes]
    # All accepted and a bonus: the last drafted token was never computed.
    tokens = [*PROMPT, *x, 777]
    full, = draft.ask(sequence.propose(2, tokens, base=first.cached, params=False))
    # Another sequence that starts drafting in round 2 gives the same result.
    fresh = new_sequence(len(PROMPT), temperature=1.0)
    same, = draft.ask(fresh.propose(2, tokens))
    assert list(full.nodes) == list(same.nodes)
    # One accepted and a correction.
    tokens = [*tokens, full.nodes[0].token, 888]
    part, = draft.ask(sequence.propose(3, tokens, base=len(tokens) - 1, params=False))
    same, = draft.ask(new_sequence(len(PROMPT), temperature=1.0).propose(3, tokens))
    assert list(part.nodes) == list(same.nodes)


def test_the_draft_refuses_like_the_target(draft: Stream) -> None:
    sequence = new_sequence(len(PROMPT))
    first, = draft.ask(sequence.propose(3, PROMPT))
    again, = draft.ask(sequence.propose(3, PROMPT))
    assert list(first.nodes) == list(again.nodes)
    assert draft.refused(sequence.propose(3, PROMPT, k=1)).reason == "ROUND_CONFLICT"
    assert draft.refused(sequence.propose(2, PROMPT)).reason == "ROUND_STALE"
    assert draft.refused(sequence.propose(4, PROMPT, base=9, hash=1)).reason == "PREFIX_MISMATCH"
    beyond, = draft.ask(sequence.propose(4, [*PROMPT, *range(400, 420)], base=55))
    assert Refusal.parse(beyond.status).code == "FAILED_PRECONDITION" and beyond.cached == first.cached
    assert draft.refused(sequence.propose(4, PROMPT, k=1000)).reason == "K_OUT_OF_RANGE"
    assert draft.refused(new_sequence(1).propose(1, PROMPT, base=10)).code == "NOT_FOUND"
    draft.send(draft_pb2.DraftItem())
    assert Refusal.parse(draft.receive().status).reason == "ITEM_EMPTY"


def test_a_proposal_ends_at_the_context(draft: Stream) -> None:
    context = draft.info.max_context
    tokens = [300 + i % 50 for i in range(context - 3)]
    result, = draft.ask(new_sequence(len(tokens)).propose(1, tokens, k=8))
    assert not result.HasField("status") and len(result.nodes) == 3


# --- blocks ----------------------------------------------------------------------------------------------------


def test_releasing_frees_the_blocks(target: Stream, target_server: Server) -> None:
    sequence = new_sequence(len(PROMPT))
    used = target_server.value("outrider_target_kv_blocks_used")
    target.ask(sequence.verify(1, PROMPT))
    eventually(lambda: target_server.value("outrider_target_kv_blocks_used") > used, "it has blocks")
    target.send(target_pb2.TargetItem(release=released(sequence.id)))
    eventually(lambda: target_server.value("outrider_target_kv_blocks_used") <= used, "its blocks are free")


def test_a_lease_that_ends_frees_the_blocks_and_the_sequence_may_come_back() -> None:
    target = start_target("--lease", "0.5")
    draft = start_draft("--lease", "0.5")
    with running(target, draft), target_stream(target) as verify, draft_stream(draft) as propose:
        sequence = new_sequence(len(PROMPT))
        first, = verify.ask(sequence.verify(1, PROMPT))
        propose.ask(sequence.propose(1, PROMPT))
        target.wait_value("outrider_target_kv_blocks_used", 0)
        draft.wait_value("outrider_draft_kv_blocks_used", 0)
        assert verify.refused(sequence.verify(2, PROMPT, base=20)).code == "NOT_FOUND"
        back, = verify.ask(sequence.verify(3, PROMPT))
        assert back.verdict.token == first.verdict.token


def test_more_alternatives_than_allowed_are_refused_by_name(target: Stream) -> None:
    item = new_sequence(4).verify(1, PROMPT)
    item.verify.prompt_logprobs = 21
    assert target.refused(item).metadata == {"field": "prompt_logprobs", "range": "0 to 20"}
    item = new_sequence(4).verify(1, PROMPT)
    item.verify.sequence.params.logprobs = 21
    assert target.refused(item).metadata == {"field": "logprobs", "range": "0 to 20"}


def test_what_cannot_fit_the_cache_is_refused_and_the_rest_makes_room() -> None:
    target = start_target("--kv-blocks", "6", "--block-size", "8")
    with running(target), target_stream(target) as verify:
        refusal = verify.refused(new_sequence(60).verify(1, [300] * 60))
        assert refusal.code == "INVALID_ARGUMENT"
        one, two = new_sequence(len(PROMPT)), new_sequence(len(PROMPT))
        rounds = itertools.count(1)

        def until_there_is_room(sequence: RemoteSequence, tokens: list[int]) -> target_pb2.VerifyResult:
            def ask() -> target_pb2.VerifyResult | None:
                result, = verify.ask(sequence.verify(next(rounds), tokens))
                if result.HasField("verdict"):
                    return result
                refusal = Refusal.parse(result.status)
                assert (refusal.code, refusal.retry) == ("RESOURCE_EXHAUSTED", True)
                return None

            return eventually(ask, "room")

        first = until_there_is_room(one, PROMPT)
        # The second sequence waits until the first counts as abandoned, and then preempts it.
        until_there_is_room(two, PROMPT[::-1])
        tokens = [*PROMPT, first.verdict.token]
        lost, = verify.ask(one.verify(next(rounds), tokens, base=len(PROMPT)))
        assert Refusal.parse(lost.status).code in {"FAILED_PRECONDITION", "NOT_FOUND"} and lost.cached == 0
        until_there_is_room(one, tokens)
        assert target.value("outrider_target_preemptions_total") >= 2
