"""Spans of all three services through OpenTelemetry's own collector. Run by `make test-tracing`."""

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from harness import PATIENCE, ROOT, cluster, eventually, request, reserve_address

COLLECTOR = ROOT / ".tools" / "bin" / "collector"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Backend(ThreadingHTTPServer):
    """The server to which the collector sends. Keeps the spans, each with its service."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans: list[dict] = []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        for process in json.loads(self.rfile.read(int(self.headers["Content-Length"])))["resourceSpans"]:
            (service,) = [one["value"]["stringValue"] for one in process["resource"]["attributes"] if one["key"] == "service.name"]
            self.server.spans += [span | {"service": service} for scope in process["scopeSpans"] for span in scope["spans"]]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict]]:
    """The spans that come through a collector to which this test's services send."""
    with Backend() as backend:
        threading.Thread(target=backend.serve_forever, daemon=True).start()
        address, config = reserve_address(), tmp_path / "collector.yaml"
        out = {"endpoint": f"http://127.0.0.1:{backend.server_port}", "encoding": "json", "compression": "none"}
        config.write_text(yaml.safe_dump({
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": address}}}}, "exporters": {"otlp_http": out},
            "service": {"telemetry": {"metrics": {"level": "none"}},
                        "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlp_http"]}}}}))
        with subprocess.Popen([COLLECTOR, "--config", f"file:{config}"], stderr=subprocess.PIPE, text=True) as collector:
            log: list[str] = []
            reader = threading.Thread(target=lambda: log.extend(collector.stderr))
            reader.start()
            eventually(lambda: collector.poll() is not None or "Everything is ready" in "".join(log), "the collector is ready")
            assert collector.poll() is None, "".join(log)
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{address}")
            yield backend.spans
            collector.terminate()
            reader.join()
        backend.shutdown()
    assert not [line for line in log if "\terror\t" in line], "".join(log)


def test_the_collector_passes_on_one_trace_of_three_services(spans: list[dict]) -> None:
    with cluster() as c:
        list(c.stub.Generate(request("Once upon a time", k=3, temperature=0, max_tokens=40, ignore_eos=True), timeout=PATIENCE,
                             metadata=[("traceparent", f"00-{TRACE}-{PARENT}-01")]))
    # The services sent their spans before they ended.
    eventually(lambda: {span["service"] for span in spans} == {"outrider-coordinator", "outrider-draft", "outrider-target"}
               and any(span["parentSpanId"] == PARENT for span in spans), "spans of all services")
    assert {span["traceId"] for span in spans} == {TRACE}
    (whole,) = [span for span in spans if span["parentSpanId"] == PARENT]
    assert whole["name"] == "text_completion tiny-target" and whole["kind"] == 2
    rounds = {span["spanId"] for span in spans if span["parentSpanId"] == whole["spanId"]}
    assert {span["parentSpanId"] for span in spans if span["service"] == "outrider-target"} == rounds
