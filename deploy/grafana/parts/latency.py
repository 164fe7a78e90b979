"""How long requests and rounds take, and where the time of a round goes."""

from parts.common import first_token, per_token, quantiles, requests_by_code, running
from parts.frame import frame
from parts.panels import Query, graph, spread
from parts.promql import mean, quantile, rate

SERVERS = {"draft": "round_draft_seconds", "target": "round_verify_seconds"}


def latency():
    return frame(
        "latency",
        "Outrider / Latency",
        "Latency of requests, and the time of a round split into draft, verify, wire and queue.",
        "outrider_rounds_total",
        {
            "Requests": [
                first_token(),
                per_token(),
                graph(
                    "Whole request",
                    "From receipt of a request to its end.",
                    *quantiles("e2e_request_latency_seconds"),
                    unit="s",
                ),
                requests_by_code(),
                running(),
                graph(
                    "Failed verifications",
                    "Failed verifications per second, by reason. They are sent again while the request waits.",
                    Query(rate("target_errors_total", "reason"), "{{reason}}"),
                    unit="ops",
                    stacked=True,
                ),
            ],
            "Rounds": [
                graph(
                    "Where the time of a round goes",
                    "Mean over all rounds, prompts included. Computing: the server works on the item. Queue: the item"
                    " waits there for the engine. Wire: the way there and back. Rest: coordinator, local drafters and"
                    " failed proposals.",
                    *split(),
                    unit="s",
                    width=12,
                    stacked=True,
                ),
                graph(
                    "Mean duration of a round",
                    "By kind: prefill computes the prompt, plain wants no draft, draft_failed got none, speculative has one.",
                    Query(mean("round_duration_seconds", "kind"), "{{kind}}"),
                    unit="s",
                    width=12,
                ),
                spread(
                    "Duration of rounds",
                    "Rounds per second by their duration.",
                    rate("round_duration_seconds_bucket", "le"),
                    unit="s",
                ),
                graph(
                    "Waiting for the draft and the target",
                    "Time that a round waits for the proposal and for the verdict, p50 and p99.",
                    *[
                        Query(quantile(q, histogram), f"{server} p{q * 100:g}")
                        for server, histogram in SERVERS.items()
                        for q in (0.5, 0.99)
                    ],
                    unit="s",
                ),
                graph(
                    "Rounds",
                    "Calls of the target per second that returned a verdict.",
                    Query(rate("rounds_total"), "rounds"),
                    unit="ops",
                ),
                graph(
                    "Wire",
                    "Time spent waiting for a server minus the server's own time, p50 and p99.",
                    *by_server("round_wire_seconds"),
                    unit="s",
                    width=12,
                ),
                graph(
                    "Queue",
                    "Time that an item waits on the server for its engine, p50 and p99.",
                    *by_server("round_queue_seconds"),
                    unit="s",
                    width=12,
                ),
            ],
        },
    )


def by_server(histogram: str) -> list[Query]:
    return [Query(quantile(q, histogram, "server"), f"{{{{server}}}} p{q * 100:g}") for q in (0.5, 0.99)]


def split() -> list[Query]:
    """Seconds per round. Wire is cut off at 0 in each round, so rounding can make a difference slightly negative."""

    def per_round(expr: str, name: str) -> Query:
        return Query(f"clamp_min({expr}, 0) / ({rate('rounds_total')} > 0)", name)

    parts = []
    for server, histogram in SERVERS.items():
        wire, queue = (rate(f"round_{part}_seconds_sum", where=f'server="{server}"') for part in ("wire", "queue"))
        parts += [
            per_round(f"{rate(f'{histogram}_sum')} - {wire} - {queue}", f"{server}, computing"),
            per_round(queue, f"{server}, queue"),
            per_round(wire, f"{server}, wire"),
        ]
    rest = " - ".join(rate(f"{name}_sum") for name in ("round_duration_seconds", *SERVERS.values()))
    return [*parts, per_round(rest, "rest")]
