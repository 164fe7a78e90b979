"""Tracing of requests through the logs of all three services, and the state as seen from outside."""

import json
import subprocess

from harness import BIN, PATIENCE, Cluster, cluster, request

REQUEST_ID = "order-17"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
DEBUG = ["--log-level", "debug"]


def outrider(*arguments: str) -> str:
    done = subprocess.run([BIN / "outrider", *arguments], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_request_can_be_followed_through_all_three_logs(prompts: list[str]) -> None:
    with cluster(target=DEBUG, draft=DEBUG, coordinator=DEBUG) as c:
        call = c.stub.Generate(request(prompts[0], k=3, max_tokens=12, temperature=0, ignore_eos=True), timeout=PATIENCE,
                               metadata=[("x-request-id", REQUEST_ID), ("traceparent", TRACEPARENT)])
        finish = list(call)[-1].finish
        assert dict(call.initial_metadata())["x-request-id"] == REQUEST_ID
        record = c.coordinator.wait_for_event("request", request_id=REQUEST_ID)
        assert record["traceparent"] == TRACEPARENT
        assert record["accepted"] == finish.speculation.accepted
        assert record["acceptance_rate"] == finish.speculation.acceptance_rate
        for server in (c.target, c.draft):
            line = server.wait_for_event("sequence", request_id=REQUEST_ID)
            assert line["traceparent"] == TRACEPARENT
            assert line["sequence"] == record["sequence"]
        rounds = [r for r in c.coordinator.events("round") if r["request_id"] == REQUEST_ID]
        assert [r["round"] for r in rounds] == list(range(finish.speculation.rounds))
        assert sum(r["drafted"] for r in rounds) == finish.speculation.drafted
        assert sum(r["accepted"] for r in rounds) == finish.speculation.accepted


def test_a_request_without_a_name_gets_one(pair: Cluster, prompts: list[str]) -> None:
    calls = [pair.stub.Generate(request(prompts[0], max_tokens=1), timeout=PATIENCE) for _ in range(2)]
    names = [dict(call.initial_metadata())["x-request-id"] for call in calls]
    for call in calls:
        list(call)
    assert len(set(names)) == 2
    for name in names:
        assert pair.coordinator.wait_for_event("request", request_id=name)["code"] == "OK"


def test_a_refused_request_is_named_too(pair: Cluster) -> None:
    call = pair.stub.Generate(request("", max_tokens=1), timeout=PATIENCE, metadata=[("x-request-id", "refused-1")])
    assert call.code().name == "INVALID_ARGUMENT"
    assert pair.coordinator.wait_for_event("request refused", request_id="refused-1")["code"] == "INVALID_ARGUMENT"


def test_rounds_are_not_in_the_log_unless_asked_for(pair: Cluster, prompts: list[str]) -> None:
    pair.generate(prompts[0], k=2, max_tokens=5)
    assert not pair.coordinator.events("round") and not pair.target.events("sequence")


def test_describe_and_top_say_how_it_goes(prompts: list[str]) -> None:
    with cluster() as c:
        answers = [c.generate(prompt, k=4, temperature=1, seed=1, max_tokens=40) for prompt in prompts[:4]]
        accepted = sum(answer.speculation.accepted for answer in answers)
        drafted = sum(answer.speculation.drafted for answer in answers)
        totals = json.loads(outrider("describe", "--address", c.coordinator.address, "--json"))["totals"]
        assert (totals["accepted"], totals["drafted"]) == (accepted, drafted)
        assert totals["emitted"] == sum(len(answer.tokens) for answer in answers)
        assert totals["observed_accepted"] == accepted
        assert abs(totals["expected_accepted"] - accepted) < 6 * accepted ** 0.5
        described = outrider("describe", "--address", c.coordinator.address)
        assert f"{100 * accepted / drafted:.1f} % of {drafted} drafted tokens accepted" in described

        top = ["top", "--once", "--interval", "0.5", "--coordinator-metrics", c.coordinator.metrics_address,
               "--target-metrics", c.target.metrics_address, "--draft-metrics", c.draft.metrics_address]
        screen = outrider(*top)
        for part in ("0 running of at most 256", "target up, draft up", "observed / expected", "K chosen", "KV blocks"):
            assert part in screen, screen
        assert "nan" not in screen and "no answer" not in screen
        c.kill(c.draft)
        assert "draft       no answer" in outrider(*top)


def test_top_without_a_coordinator_says_so() -> None:
    done = subprocess.run([BIN / "outrider", "top", "--coordinator-metrics", "127.0.0.1:1"], capture_output=True,
                          text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no metrics at http://127.0.0.1:1/metrics") and done.stderr.count("\n") == 1
