"""The values of metrics, and when they change: for requests that run, end badly, have several samples, or are refused."""

import grpc
import pytest

from harness import Cluster, cluster, eventually, request

LONG = {"temperature": 0, "k": 0, "max_tokens": 200, "ignore_eos": True}
FIRST, LATENCY = "outrider_time_to_first_token_seconds", "outrider_e2e_request_latency_seconds"
PER_TOKEN = "outrider_time_per_output_token_seconds"


class Counts:
    """How much the coordinator's metrics have grown since this was made."""

    def __init__(self, c: Cluster) -> None:
        self._server, self._before = c.coordinator, c.coordinator.metrics()

    def __call__(self, name: str) -> float:
        return self._server.value(name) - self._before.value(name)

    def become(self, wanted: float, name: str) -> None:
        eventually(lambda: self(name) == wanted, f"{name} grows by {wanted}")


def test_the_first_token_counts_when_it_comes_and_the_rest_however_the_request_ends(pair: Cluster,
                                                                                  prompts: list[str]) -> None:
    counts = Counts(pair)
    stream = pair.stream(prompts[0], **LONG)
    for _ in range(3):
        next(stream)
    assert counts(f"{FIRST}_count") == 1
    assert counts("outrider_prompt_tokens_total") > 0
    assert counts(f"{LATENCY}_count") == 0
    stream.cancel()
    counts.become(1, f"{LATENCY}_count")
    assert counts(f"{PER_TOKEN}_count") == 1
    assert counts(f"{FIRST}_count") == 1


def test_a_request_has_one_prompt_however_many_samples(pair: Cluster, prompts: list[str]) -> None:
    counts = Counts(pair)
    list(pair.stub.Generate(request(prompts[1], n=3, temperature=1.0, max_tokens=5, ignore_eos=True)))
    pair.wait_idle()
    one = counts("outrider_prompt_tokens_total")
    assert (counts(f"{FIRST}_count"), counts(f"{LATENCY}_count"), counts(f"{PER_TOKEN}_count")) == (1, 1, 3)
    pair.generate(prompts[1], temperature=1.0, max_tokens=5)
    assert counts("outrider_prompt_tokens_total") == 2 * one > 0


def test_a_refusal_has_no_latency(pair: Cluster, prompts: list[str]) -> None:
    counts = Counts(pair)
    with pytest.raises(grpc.RpcError):
        pair.generate(prompts[0], temperature=-1.0)
    counts.become(1, "outrider_requests_total")
    assert (counts(f"{LATENCY}_count"), counts(f"{FIRST}_count")) == (0, 0)


def test_a_request_that_waited_in_vain_has_a_latency() -> None:
    with cluster(coordinator=["--target-wait", "0.2"]) as c:
        c.kill(c.target)
        c.coordinator.wait_value("outrider_target_up", 0)
        counts = Counts(c)
        with pytest.raises(grpc.RpcError) as refused:
            c.generate("Once", max_tokens=3)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        counts.become(1, f"{LATENCY}_count")
        assert counts(f"{LATENCY}_sum") >= 0.2
        assert counts(f"{FIRST}_count") == 0
        c.restart_target()


def test_items_are_in_progress_while_the_target_works_for_them(pair: Cluster, prompts: list[str]) -> None:
    streams = [pair.stream(prompt, **LONG | {"max_tokens": 600}) for prompt in prompts[:4]]
    eventually(lambda: pair.target.value("outrider_target_items_in_progress") > 0, "the target works for them")
    for stream in streams:
        stream.cancel()
    pair.wait_idle()
    pair.target.wait_value("outrider_target_items_in_progress", 0)


def test_every_series_names_the_model(pair: Cluster) -> None:
    for server, model in ((pair.coordinator, "tiny-target"), (pair.target, "tiny-target"), (pair.draft, "tiny-draft")):
        unnamed = [name for name, labels in server.metrics()
                   if name.startswith("outrider_") and ("model_name", model) not in labels]
        assert unnamed == []


def test_plain_and_speculative_rounds_are_timed_by_how_many_run(pair: Cluster, prompts: list[str]) -> None:
    def tokens() -> dict[str, float]:
        return {mode: pair.coordinator.value("outrider_spec_decode_round_tokens_total", mode=mode, running="1")
                for mode in ("plain", "speculative")}

    pair.wait_idle()
    for k, modes in ((0, {"plain"}), (4, {"plain", "speculative"})):  # the last token has no room for a draft
        before = tokens()
        answer = pair.generate(prompts[0], **LONG | {"k": k})
        grown = {mode: count - before[mode] for mode, count in tokens().items()}
        assert {mode for mode, count in grown.items() if count > 0} <= modes
        assert sum(grown.values()) == len(answer.tokens) - 1, "the prompt's round has one token"
    assert grown["speculative"] > grown["plain"]
    assert pair.coordinator.value("outrider_spec_decode_round_seconds_total", running="1") > 0
