"""Spans as a collector gets them over OTLP. The collector here uses OpenTelemetry's own stubs; `make test-tracing` has a real one."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import openai
import pytest
from certificates import Authority
from harness import PATIENCE, Cluster, cluster, eventually, request
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED, UNTRACED = (f"00-{TRACE}-{PARENT}-{flags}" for flags in ("01", "00"))


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans, each with the name of the service that sent it."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        self.resources: list[dict[str, str]] = []
        self.metadata: list[dict[str, str]] = []
        self.answer: grpc.StatusCode | None = None  # the error to answer with, if any
        self._lock = threading.Lock()

    def Export(self, request: trace_service_pb2.ExportTraceServiceRequest,
               context: grpc.ServicerContext) -> trace_service_pb2.ExportTraceServiceResponse:
        if self.answer is not None:
            context.abort(self.answer, "not now")
        with self._lock:
            self.metadata.append({key: value for key, value in context.invocation_metadata()})
            for process in request.resource_spans:
                resource = {one.key: one.value.string_value for one in process.resource.attributes}
                self.resources.append(resource)
                self.spans += [(resource["service.name"], span) for scope in process.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, service: str, name: str = "") -> list[Span]:
        return [span for sender, span in self.spans if sender == service and span.name.startswith(name)]

    def wait_request(self) -> Span:
        """The span of the first request. The spans of its rounds have come by then."""
        return eventually(lambda: self.of("outrider-coordinator", "text_completion"), "a span of the request")[0]


@contextlib.contextmanager
def collector(monkeypatch: pytest.MonkeyPatch, identity: tuple[Path, Path] | None = None, **variables: str) -> Iterator[Collector]:
    """A collector. Variables lead services that start within the block to it."""
    server, kept = grpc.server(futures.ThreadPoolExecutor(4)), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(kept, server)
    if identity is None:
        port, scheme = server.add_insecure_port("127.0.0.1:0"), "http"
    else:
        certificate, key = (file.read_bytes() for file in identity)
        port, scheme = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)])), "https"
    server.start()
    for name, value in {"EXPORTER_OTLP_ENDPOINT": f"{scheme}://localhost:{port}", "BSP_SCHEDULE_DELAY": "20", **variables}.items():
        monkeypatch.setenv(f"OTEL_{name}", value)
    try:
        yield kept
    finally:
        server.stop(None)


def attributes(span: Span) -> dict[str, object]:
    def value(any_value: object) -> object:
        kind = any_value.WhichOneof("value")
        found = getattr(any_value, kind)
        return [value(one) for one in found.values] if kind == "array_value" else found

    return {one.key: value(one.value) for one in span.attributes}


def generate(c: Cluster, prompt: str, traceparent: str = "", **options: object) -> None:
    metadata = [("traceparent", traceparent)] if traceparent else []
    list(c.stub.Generate(request(prompt, **options), timeout=PATIENCE, metadata=metadata))


def test_a_request_its_rounds_and_the_work_of_both_servers_are_one_trace(monkeypatch: pytest.MonkeyPatch, prompts: list[str]) -> None:
    with collector(monkeypatch) as spans:
        with cluster() as c:
            generate(c, prompts[0], TRACED, k=3, temperature=0, max_tokens=100, ignore_eos=True, seed=5)
        # All services have sent their spans before they ended.
        (whole,) = spans.of("outrider-coordinator", "text_completion tiny-target")
        assert (whole.trace_id.hex(), whole.parent_span_id.hex(), whole.kind) == (TRACE, PARENT, Span.SPAN_KIND_SERVER)
        said = attributes(whole)
        assert {name: said[name] for name in said if name.startswith("gen_ai")} == {
            "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "outrider", "gen_ai.request.model": "tiny-target",
            "gen_ai.response.model": "tiny-target", "gen_ai.response.id": said["gen_ai.response.id"], "gen_ai.request.max_tokens": 100,
            "gen_ai.request.choice.count": 1, "gen_ai.request.temperature": 0, "gen_ai.request.top_p": 1, "gen_ai.request.seed": 5,
            "gen_ai.usage.input_tokens": said["gen_ai.usage.input_tokens"], "gen_ai.usage.output_tokens": 100,
            "gen_ai.response.finish_reasons": ["length"]}
        assert said["outrider.drafted"] > said["outrider.accepted"] > 0 < said["outrider.first_token_seconds"]

        rounds = spans.of("outrider-coordinator", "round")
        numbers = [attributes(span)["outrider.round"] for span in rounds]
        # The first sixteen, then one in sixteen.
        assert numbers == [*range(16), *range(16, said["outrider.rounds"], 16)] and len(rounds) > 16
        assert attributes(rounds[1])["outrider.drafter"] == "model" and attributes(rounds[1])["outrider.drafted"] == 3
        of_rounds = {span.span_id: span for span in rounds}
        verified, drafted = spans.of("outrider-target"), spans.of("outrider-draft")
        assert {span.name for span in verified} == {"verify"} and {span.name for span in drafted} == {"draft"}
        assert {span.parent_span_id for span in verified} == of_rounds.keys()
        assert len(drafted) >= len(rounds) - 1 and {span.parent_span_id for span in drafted} <= of_rounds.keys()
        for span in [*rounds, *verified, *drafted]:
            assert span.trace_id == whole.trace_id and span.status.code == Status.STATUS_CODE_UNSET
            above = of_rounds.get(span.parent_span_id, whole)
            # The prompt goes to the draft during the first round.
            end = whole.end_time_unix_nano if span.name == "draft" else above.end_time_unix_nano
            assert above.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano <= end
        assert len({span.span_id for _, span in spans.spans}) == len(spans.spans)
        assert all(attributes(span)["outrider.batch_rows"] >= 1 for span in verified)


def test_a_conversation_over_http_has_the_client_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector(monkeypatch, SERVICE_NAME="front", RESOURCE_ATTRIBUTES="deployment.environment.name=a%20test,team=x") as spans:
        with cluster(draft=None) as c:
            client = openai.OpenAI(base_url=f"http://{c.coordinator.http_address}/v1", api_key="none", timeout=PATIENCE)
            client.completions.create(model="tiny-target", prompt="Once", n=2, max_tokens=4, extra_headers={"traceparent": TRACED})
        assert {resource["service.name"] for resource in spans.resources} == {"front"}
        assert spans.resources[0]["deployment.environment.name"] == "a test" and spans.resources[0]["team"] == "x"
        (whole,) = spans.of("front", "text_completion")
        assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)
        assert attributes(whole)["gen_ai.request.choice.count"] == len(attributes(whole)["gen_ai.response.finish_reasons"]) == 2
        assert {attributes(span)["outrider.sample"] for span in spans.of("front", "round")} == {0, 1}


def test_who_asks_decides_what_is_traced(monkeypatch: pytest.MonkeyPatch, prompts: list[str]) -> None:
    with collector(monkeypatch) as spans, cluster() as c:
        generate(c, prompts[0], UNTRACED, k=2, max_tokens=6)
        generate(c, prompts[0], k=2, max_tokens=6)
        root = spans.wait_request()
        assert not root.parent_span_id and root.trace_id.hex() != TRACE
        assert {span.trace_id for _, span in spans.spans} == {root.trace_id}
        logged = c.coordinator.wait_for_event("request", traceparent=UNTRACED)
        assert logged["code"] == "OK"


@pytest.mark.parametrize(("sampler", "asked", "is_traced"), [
    ("always_off", TRACED, False), ("always_on", UNTRACED, True), ("parentbased_always_off", "", False),
    ("parentbased_always_off", TRACED, True)])
def test_the_sampler_decides(monkeypatch: pytest.MonkeyPatch, sampler: str, asked: str, is_traced: bool) -> None:
    with collector(monkeypatch, TRACES_SAMPLER=sampler) as spans:
        with cluster(draft=None) as c:
            generate(c, "Once", asked, max_tokens=3)
        assert bool(spans.of("outrider-coordinator", "text_completion")) == is_traced


def test_an_error_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector(monkeypatch) as spans, cluster(draft=None) as c:
        with pytest.raises(grpc.RpcError):
            generate(c, "", TRACED)
        refused = spans.wait_request()
        assert refused.status.code == Status.STATUS_CODE_ERROR and refused.status.message.startswith("text: empty")
        assert attributes(refused)["error.type"] == "INVALID_ARGUMENT"


def test_headers_compression_and_tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    with collector(monkeypatch, authority.sign("collector"), EXPORTER_OTLP_CERTIFICATE=str(authority.ca), EXPORTER_OTLP_COMPRESSION="gzip",
                   EXPORTER_OTLP_HEADERS="Authorization=Bearer%20abc,x-tenant=7") as spans, cluster(draft=None) as c:
        generate(c, "Once", max_tokens=3)
        spans.wait_request()
        assert spans.metadata[0]["authorization"] == "Bearer abc" and spans.metadata[0]["x-tenant"] == "7"


def test_answers_do_not_wait_for_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector(monkeypatch, BSP_MAX_QUEUE_SIZE="8") as spans, cluster(draft=None) as c:
        spans.answer = grpc.StatusCode.PERMISSION_DENIED
        for _ in range(3):
            generate(c, "Once", max_tokens=20, ignore_eos=True)
        lost = c.coordinator.wait_for_event("spans are lost")
        assert lost["spans"] > 0 and lost["error"] == "not now"
        spans.answer = None

        def sent() -> list[Span]:
            """The spans of requests. Those of one request are lost while the queue is still full of older ones."""
            generate(c, "Once", max_tokens=2)
            return spans.of("outrider-coordinator", "text_completion")

        eventually(sent, "a span of a request")


@pytest.mark.parametrize(("name", "value", "error"), [
    ("EXPORTER_OTLP_PROTOCOL", "http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL: http/protobuf; allowed: grpc"),
    ("TRACES_SAMPLER_ARG", "2", "OTEL_TRACES_SAMPLER_ARG: 2; allowed: 0 to 1"),
    ("EXPORTER_OTLP_ENDPOINT", "collector", "OTEL_EXPORTER_OTLP_ENDPOINT: collector is not of the form http://HOST:PORT")])
def test_a_variable_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, error: str) -> None:
    with collector(monkeypatch, TRACES_SAMPLER="traceidratio", **{name: value}) as spans:
        with cluster(draft=None) as c:
            generate(c, "Once", max_tokens=3)
            assert c.coordinator.wait_for_event("no traces")["error"] == error
        assert not spans.spans
