"""Edge cases of the OpenAI API's HTTP server: models, health, refusals, clients that leave or do not read."""

import contextlib
import http.client
import json
import urllib.error
import urllib.request
from typing import Any

import openai
import pytest

from harness import (PATIENCE, TARGET_MODEL, Cluster, cluster, eventually, inference_pb2, refusal, running,
                     start_coordinator)
from http_clients import MODEL, connect, post, send, status_of


@pytest.fixture(scope="module")
def client(pair: Cluster) -> openai.OpenAI:
    return connect(pair)


# --- models, health, refusals ---------------------------------------------------------------------------------


def test_models_and_health(pair: Cluster, client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert (model.id, model.object) == (MODEL, "model")
    assert model.model_extra["max_model_len"] == pair.stub.Describe(inference_pb2.DescribeRequest()).target.max_context
    assert client.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("another")
    assert error.value.code == "model_not_found"
    with urllib.request.urlopen(f"http://{pair.coordinator.http_address}/health", timeout=PATIENCE) as response:
        assert response.status == 200


def test_metrics_are_at_the_port_of_the_model_too(pair: Cluster) -> None:
    def families(address: str) -> list[str]:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return [line for line in response.read().decode().splitlines() if line.startswith("# TYPE")]

    assert "# TYPE vllm:num_requests_waiting gauge" in families(pair.coordinator.http_address)
    assert families(pair.coordinator.http_address) == families(pair.coordinator.metrics_address)


BAD_FOR_ANY_MODEL: dict[str, tuple[str, dict[str, Any]]] = {
    "temperature": ("temperature", {"temperature": -1}),
    "temperature of another kind": ("temperature", {"extra_body": {"temperature": "hot"}}),
    "top_p": ("top_p", {"top_p": 2}),
    "presence_penalty": ("presence_penalty", {"presence_penalty": 3}),
    "max_tokens": ("max_tokens", {"max_tokens": -1}),
    "n": ("n", {"n": 0}),
    "stop": ("stop", {"stop": [""]}),
    "logprobs": ("logprobs", {"logprobs": 21}),
    "logit_bias": ("logit_bias", {"logit_bias": {"1000000": 1}}),
    "token ids": ("prompt", {"prompt": [10**6]}),
    "an empty prompt": ("prompt", {"prompt": ""}),
    "best_of": ("best_of", {"best_of": 2}),
    "draft_tokens": ("draft_tokens", {"extra_body": {"draft_tokens": 1000}}),
    "drafter": ("drafter", {"extra_body": {"drafter": "oracle"}}),
    "rule": ("rule", {"extra_body": {"rule": "luck"}}),
}
BAD = BAD_FOR_ANY_MODEL | {"a prompt that fills the context": ("prompt", {"prompt": [300] * 2000})}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_value_is_refused_by_its_name(case: str, client: openai.OpenAI) -> None:
    field, options = BAD[case]
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(**({"model": MODEL, "prompt": "Once"} | options))
    code = "context_length_exceeded" if case == "a prompt that fills the context" else "invalid_value"
    assert (error.value.param, error.value.type, error.value.code) == (field, "invalid_request_error", code)
    assert error.value.message and field in error.value.message
    with pytest.raises(openai.BadRequestError) as streamed:
        client.completions.create(**({"model": MODEL, "prompt": "Once", "stream": True} | options))
    assert streamed.value.param == field, "a stream that cannot begin is an error and no stream"


def test_what_is_not_supported_is_refused_and_what_is_unknown_ignored(client: openai.OpenAI) -> None:
    options = {"model": MODEL, "prompt": "Once", "temperature": 0, "max_tokens": 4}
    for unsupported in ({"suffix": "end"}, {"extra_body": {"guided_whitespace_pattern": " "}},
                        {"extra_body": {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}}):
        with pytest.raises(openai.BadRequestError) as error:
            client.completions.create(**options, **unsupported)
        assert error.value.code == "unsupported_parameter"
    plain = client.completions.create(**options)
    strange = client.completions.create(**options, user="ada", extra_body={"some_day": {"a": [1]}, "metadata": {}})
    assert strange.choices[0].text == plain.choices[0].text


def test_a_request_can_be_followed_through_the_log(pair: Cluster, client: openai.OpenAI) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answer = client.completions.create(model=MODEL, prompt="Once", extra_headers={
        "X-Request-Id": "order-18", "traceparent": trace})
    assert answer._request_id == "order-18"
    assert pair.coordinator.wait_for_event("request", request_id="order-18")["traceparent"] == trace
    # An invalid id is not passed on.
    nameless = client.completions.create(model=MODEL, prompt="Once", extra_headers={"X-Request-Id": "a b"})
    assert nameless._request_id not in ("a b", None)
    assert pair.coordinator.wait_for_event("request", request_id=nameless._request_id)
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model=MODEL, prompt=[], extra_headers={"X-Request-Id": "order-19"})
    assert error.value.request_id == "order-19"


def test_another_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.completions.create(model="gpt-4", prompt="Once")
    assert (error.value.code, error.value.param) == ("model_not_found", "model") and MODEL in error.value.message


@pytest.mark.parametrize("path, body, status, code", [
    ("/v1/completions", b"{", 400, "invalid_json"), ("/v1/completions", b"[1]", 400, "invalid_json"),
    ("/v1/completions", b'{"prompt": "\xff"}', 400, "invalid_json"),
    ("/v1/completions", b'{"prompt": "' + b"x" * (5 << 20) + b'"}', 413, "invalid_http"),
    ("/v1/embeddings", b"{}", 404, "unknown_url"), ("/", b"{}", 404, "unknown_url")])
def test_what_is_no_request_is_answered_with_an_error_object(path: str, body: bytes, status: int, code: str,
                                                            pair: Cluster) -> None:
    with pytest.raises(urllib.error.HTTPError) as error, post(pair, path, body):
        pass
    assert error.value.code == status
    told = json.loads(error.value.read())["error"]
    assert told["code"] == code and told["message"] and told["type"] == "invalid_request_error"


def test_a_page_of_another_host_does_not_reach_a_listener_on_loopback(pair: Cluster) -> None:
    models = f"http://{pair.coordinator.http_address}/v1/models"
    assert status_of(models, headers={"Host": "localhost"}) == 200
    for foreign in ({"Host": "evil.example"}, {"Host": "evil.example:8070"}, {"Origin": "https://evil.example"}):
        assert status_of(models, headers=foreign) == 403, foreign


def test_pages_of_origins_that_are_named_may_ask() -> None:
    def preflight(origin: str) -> http.client.HTTPResponse:
        with contextlib.closing(http.client.HTTPConnection(coordinator.http_address, timeout=PATIENCE)) as connection:
            connection.request("OPTIONS", "/v1/chat/completions", headers={
                "Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"})
            return connection.getresponse()

    origins = ["https://page.example", "https://another.example:8443"]
    flags = [part for origin in origins for part in ("--allowed-origins", origin)]
    with running(start_coordinator("127.0.0.1:1", "", *flags)) as [coordinator]:
        for origin in origins:
            asked = preflight(origin)
            assert (asked.status, asked.headers["Access-Control-Allow-Origin"]) == (204, origin)
            assert "POST" in asked.headers["Access-Control-Allow-Methods"]
            assert asked.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
        for origin in ("https://evil.example", "https://another.example", "http://localhost:3000"):
            assert "Access-Control-Allow-Origin" not in preflight(origin).headers


def test_a_refused_request_leaves_nothing_behind(pair: Cluster, client: openai.OpenAI) -> None:
    for _, options in BAD.values():
        with pytest.raises(openai.BadRequestError):
            client.completions.create(**({"model": MODEL, "prompt": "Once"} | options))
    pair.wait_idle()


def test_more_requests_than_allowed_are_told_when_to_come_back(prompts: list[str]) -> None:
    with cluster(draft=None, coordinator=["--max-requests", "1", "--max-waiting-requests", "0"]) as c:
        client = connect(c)
        stream = client.completions.create(model=MODEL, prompt=prompts[0], max_tokens=1000, stream=True,
                                           extra_body={"ignore_eos": True})
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as error:
            client.completions.create(model=MODEL, prompt=prompts[1])
        assert error.value.code == "queue_full" and int(error.value.response.headers["Retry-After"]) >= 1
        stream.close()
        c.wait_idle()
        assert client.completions.create(model=MODEL, prompt=prompts[1]).choices


def test_without_a_target_nothing_is_ready() -> None:
    coordinator = start_coordinator("127.0.0.1:1", "", "--target-wait", "0.2")
    with running(coordinator):
        client = openai.OpenAI(base_url=f"http://{coordinator.http_address}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.InternalServerError) as error:
            client.completions.create(model=MODEL, prompt="Once")
        assert (error.value.status_code, error.value.code) == (503, "target_unavailable")
        assert client.models.list().data == []
        with pytest.raises(urllib.error.HTTPError) as unready:
            urllib.request.urlopen(f"http://{coordinator.http_address}/health", timeout=PATIENCE)
        assert unready.value.code == 503


def test_an_address_that_cannot_be_had_is_named(pair: Cluster) -> None:
    start = ("outrider-coordinator", "--tokenizer", str(TARGET_MODEL), "--listen", "127.0.0.1:0",
             "--metrics-listen", "127.0.0.1:0", "--log-format", "json", "--http-listen")
    assert pair.coordinator.http_address in refusal(*start, pair.coordinator.http_address)
    for wrong in ("127.0.0.1", "127.0.0.1:70000"):
        assert "--http-listen" in refusal(*start, wrong)


def test_there_need_be_no_http() -> None:
    with running(start_coordinator("127.0.0.1:1", "", "--http-listen", "")) as [coordinator]:
        assert coordinator.http_address == ""


# --- clients that go away, do not read, or are there when it ends -----------------------------------------------


def cancelled(c: Cluster) -> float:
    return c.coordinator.value("outrider_requests_total", code="CANCELLED")


def test_a_stream_that_is_closed_frees_its_blocks(pair: Cluster, client: openai.OpenAI, prompts: list[str]) -> None:
    before = cancelled(pair)
    streams = [client.completions.create(model=MODEL, prompt=prompt, max_tokens=1000, stream=True,
                                         extra_body={"ignore_eos": True, "draft_tokens": 2}) for prompt in prompts[:4]]
    for stream in streams:
        next(iter(stream))
    assert pair.target.value("outrider_target_kv_blocks_used") > 0
    for stream in streams:
        stream.close()
    pair.wait_idle()
    assert cancelled(pair) - before == 4


def test_a_client_that_leaves_before_its_whole_answer_frees_its_blocks(pair: Cluster, prompts: list[str]) -> None:
    before = cancelled(pair)
    connection = send(pair, {"prompt": prompts[0], "max_tokens": 1000, "n": 8, "ignore_eos": True, "draft_tokens": 1})
    pair.coordinator.wait_value("outrider_requests_running", 1)
    connection.close()
    pair.wait_idle()
    assert cancelled(pair) - before == 1


def test_a_client_that_does_not_read_is_waited_for(pair: Cluster, prompts: list[str]) -> None:
    # More than socket buffers hold: 800 tokens per sample, with 20 alternatives.
    big = {"prompt": prompts[0], "max_tokens": 800, "n": 8, "ignore_eos": True, "logprobs": 20, "stream": True,
           "draft_tokens": 1, "temperature": 1}
    slow = send(pair, big)
    pair.coordinator.wait_value("outrider_requests_running", 1)
    # The same amount of work, requested later and read.
    with post(pair, "/v1/completions", big) as response:
        assert len(response.read()) > 4_000_000
    assert pair.coordinator.value("outrider_requests_running") == 1, "the answer that nobody reads went on"
    received = bytearray()
    while piece := slow.recv(1 << 20):
        received += piece
    slow.close()
    assert received.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in received[-100:]
    pair.wait_idle()


def test_a_coordinator_told_to_end_finishes_its_streams(prompts: list[str]) -> None:
    with cluster() as c:
        client = connect(c)
        options = {"model": MODEL, "prompt": prompts[7], "temperature": 0, "extra_body": {"ignore_eos": True}}
        stream = iter(client.completions.create(stream=True, max_tokens=800,
                                                stream_options={"include_usage": True}, **options))
        next(stream)
        c.coordinator.terminate()
        c.coordinator.wait_for_event("draining")
        with pytest.raises(openai.InternalServerError) as error:
            client.completions.create(**options)
        assert (error.value.status_code, error.value.code) == (503, "draining")
        *_, last = stream
        assert last.usage.completion_tokens == 800
        assert c.coordinator.wait_end() == 0


def test_a_stream_that_is_cut_off_says_why(prompts: list[str]) -> None:
    with cluster(coordinator=["--drain", "0"]) as c:
        stream = iter(connect(c).completions.create(model=MODEL, prompt=prompts[7], max_tokens=800, stream=True,
                                                    extra_body={"ignore_eos": True, "draft_tokens": 1}))
        next(stream)
        c.coordinator.terminate()
        with pytest.raises(openai.APIError) as error:
            list(stream)
        assert error.value.code == "draining"
        assert c.coordinator.wait_end() == 0


def test_a_target_that_restarts_is_waited_for(prompts: list[str]) -> None:
    with cluster() as c:
        client = connect(c)
        options = {"model": MODEL, "prompt": prompts[3], "temperature": 0, "max_tokens": 1500,
                   "extra_body": {"ignore_eos": True, "draft_tokens": 1}}
        whole = client.completions.create(**options).choices[0].text
        stream = iter(client.completions.create(stream=True, **options))
        text = next(stream).choices[0].text
        c.kill(c.target)
        c.restart_target()
        assert text + "".join(event.choices[0].text for event in stream) == whole
        assert c.lost_target_during(2), "not killed in the middle"
        eventually(lambda: client.models.list().data, "the target is known again")
