"""Items that kill a server or make it compute nonsense, servers that hang or stay away: one request never hurts another."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import DRAFT_MODEL, TARGET_MODEL, Answer, Cluster, cluster, eventually, request, sequence_pb2
from models import with_nan_for
from proxies import Proxy

# A token that occurs in no text of the tests.
MARK = 4001
POISON = [300, MARK, 301]
GREEDY = {"k": 2, "temperature": 0, "max_tokens": 800, "ignore_eos": True}


class Fatal:
    """Kills and restarts a server whenever the mark is sent to it.

    This happens on a thread of `reaper`, which outlives the server, since a process dies with the thread that started it.
    """

    def __init__(self, reaper: ThreadPoolExecutor, kill_and_restart: Callable[[], None]) -> None:
        self._reaper, self._kill_and_restart = reaper, kill_and_restart
        self.deaths = 0

    def __call__(self, sequence: sequence_pb2.SequenceUpdate) -> bool:
        if MARK not in sequence.tokens:
            return True
        self.deaths += 1
        self._reaper.submit(self._kill_and_restart).result()
        return False


def test_a_request_that_kills_the_target_ends_and_the_others_go_on(prompts: list[str]) -> None:
    proxy = Proxy("target")
    with ThreadPoolExecutor(1) as reaper, cluster(target_through=proxy) as c:
        wanted = [c.generate(prompt, **GREEDY).tokens for prompt in prompts[:4]]

        def kill() -> None:
            c.kill(c.target)
            c.restart_target()

        proxy.on_item = fatal = Fatal(reaper, kill)
        streams = [(c.stream(prompt, **GREEDY), Answer()) for prompt in prompts[:4]]
        for stream, answer in streams:
            answer.add(next(stream))
        with ThreadPoolExecutor() as pool:
            refused = pool.submit(c.refused, request(POISON, k=2, max_tokens=20))
            for stream, answer in streams:
                for chunk in stream:
                    answer.add(chunk)
        assert [answer.check().tokens for _, answer in streams] == wanted
        poisoned = refused.result()
        assert (poisoned.code, poisoned.reason) == ("INTERNAL", "ITEM_LOST")
        assert fatal.deaths == 3
        lost = c.coordinator.metrics().labelled("outrider_target_errors_total", "reason")
        assert lost["TARGET_UNAVAILABLE"] > fatal.deaths, "nobody else was in flight"
        assert lost["ITEM_LOST"] == 1
        assert c.generate(prompts[0], **GREEDY).tokens == wanted[0]


def test_a_request_that_kills_the_draft_goes_on_plain(prompts: list[str]) -> None:
    target, draft = Proxy("target"), Proxy("draft")
    with ThreadPoolExecutor(1) as reaper, cluster(target_through=target, through=draft) as c:
        options = GREEDY | {"max_tokens": 60}
        wanted = c.generate(POISON, **options | {"k": 0}).tokens
        others = c.generate(prompts[0], **options).tokens

        def kill() -> None:
            c.kill(c.draft)
            c.restart_draft()

        def has_draft(_: sequence_pb2.SequenceUpdate) -> bool:
            # Every round finds the draft up, until it has died of the request often enough.
            if fatal.deaths < 3:
                c.wait_draft_up(True)
            return True

        draft.on_item = fatal = Fatal(reaper, kill)
        target.on_item = has_draft
        answer = c.generate(POISON, **options)
        assert answer.tokens == wanted
        assert answer.speculation.drafted == 0
        assert fatal.deaths == 3
        assert c.coordinator.value("outrider_draft_errors_total", reason="ITEM_LOST") == 1
        assert len(c.coordinator.events("draft given up for a request")) == 1
        c.wait_draft_up(True)
        after = c.generate(prompts[0], **options)
        assert after.tokens == others
        assert after.speculation.accepted > 0


def test_a_target_that_hangs_is_connected_to_again(prompts: list[str]) -> None:
    proxy = Proxy("target")
    with cluster(target_through=proxy, coordinator=["--item-timeout", "1"]) as c:
        wanted = c.generate(prompts[7], **GREEDY).tokens
        stream, answer = c.stream(prompts[7], **GREEDY), Answer()
        answer.add(next(stream))
        proxy.on_item = lambda sequence: False
        c.coordinator.wait_for_event("silent", server="target")
        proxy.on_item = lambda sequence: True
        for chunk in stream:
            answer.add(chunk)
        assert answer.check().tokens == wanted


def test_a_request_without_a_deadline_does_not_wait_for_ever(prompts: list[str]) -> None:
    proxy = Proxy("target")
    with cluster(target_through=proxy, coordinator=["--item-timeout", "0.3", "--target-wait", "1"]) as c:
        proxy.on_item = lambda sequence: False
        calls = 3
        with ThreadPoolExecutor(calls) as pool:
            refusals = list(pool.map(c.refused, [request(prompt, k=2) for prompt in prompts[:calls]]))
        assert {r.reason for r in refusals} <= {"ITEM_LOST", "TARGET_UNAVAILABLE"}
        assert any(r.reason == "ITEM_LOST" for r in refusals)


def test_a_target_that_stays_away_makes_the_coordinator_unready(prompts: list[str]) -> None:
    with cluster(coordinator=["--target-wait", "0.5"]) as c:
        c.kill(c.target)
        eventually(lambda: c.coordinator.health() == "NOT_SERVING", "readiness follows the target")
        assert c.coordinator.health(service="live") == "SERVING"
        refused = c.refused(request(prompts[0], max_tokens=5))
        assert (refused.code, refused.reason) == ("UNAVAILABLE", "TARGET_UNAVAILABLE")
        c.restart_target()
        eventually(lambda: c.coordinator.health() == "SERVING", "the target is back")
        assert len(c.generate(prompts[0], max_tokens=5, ignore_eos=True).tokens) == 5


def rounds(c: Cluster, kind: str) -> float:
    return c.coordinator.value("outrider_round_duration_seconds_count", kind=kind)


def test_a_draft_that_hangs_costs_a_few_rounds_and_is_counted(prompts: list[str]) -> None:
    proxy, asked = Proxy("draft"), threading.Semaphore(0)
    with cluster(through=proxy, coordinator=["--draft-budget", "0.01"]) as c:
        wanted = c.generate(prompts[0], **GREEDY | {"k": 0}).tokens
        plain = rounds(c, "plain")

        def swallow(_: sequence_pb2.SequenceUpdate) -> bool:
            asked.release()
            return False

        proxy.on_item = swallow
        answer = c.generate(prompts[0], **GREEDY)
        assert answer.tokens == wanted
        assert answer.speculation.drafted == 0
        # Every round wanted a draft, except the prompt's and the last, which had no room for one.
        assert rounds(c, "draft_failed") == len(answer.tokens) - 2
        assert rounds(c, "plain") == plain + 1
        items = 0
        while asked.acquire(blocking=False):
            items += 1
        assert items < 20, "a draft that hangs is left alone"
        c.coordinator.wait_for_event("draft left alone")

        proxy.on_item = lambda sequence: True
        eventually(lambda: c.generate(prompts[0], **GREEDY | {"max_tokens": 50}).speculation.accepted > 0,
                   "the draft is asked again")
        c.coordinator.wait_for_event("draft asked again")


def test_logits_that_are_no_numbers_end_their_sequence_and_no_other(prompts: list[str], tmp_path: Path) -> None:
    calls = [(prompt, GREEDY | {"max_tokens": 200}) for prompt in prompts[:4]]
    with cluster(target=["--model", str(with_nan_for(MARK, TARGET_MODEL, tmp_path))]) as c:
        alone = [c.generate(prompt, **options).tokens for prompt, options in calls]
        with ThreadPoolExecutor() as pool:
            others = pool.submit(c.generate_all, calls)
            for k in (0, 2):
                refused = c.refused(request(POISON, k=k, max_tokens=20))
                assert (refused.code, refused.reason) == ("INTERNAL", "LOGITS_NOT_FINITE")
            assert [answer.tokens for answer in others.result()] == alone
        c.wait_idle()


def test_a_draft_whose_logits_are_no_numbers_costs_only_speculation(pair: Cluster, prompts: list[str], tmp_path: Path) -> None:
    options = GREEDY | {"max_tokens": 60}
    with cluster(draft=["--model", str(with_nan_for(MARK, DRAFT_MODEL, tmp_path))]) as c:
        answer = c.generate(POISON, **options)
        assert answer.tokens == pair.generate(POISON, **options).tokens
        assert answer.speculation.drafted == 0
        assert c.coordinator.value("outrider_draft_errors_total", reason="LOGITS_NOT_FINITE") > 0
        eventually(lambda: c.generate(prompts[0], **options).speculation.accepted > 0, "others have drafts")
        c.wait_idle()
