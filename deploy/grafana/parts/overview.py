"""Is it up, is it fast, does speculation pay, is there room."""

from parts.common import (
    ACCEPTANCE,
    acceptance_number,
    canary_number,
    first_token,
    kv_used,
    length,
    per_token,
    requests_by_code,
    running,
    speedup,
    utilisation,
)
from parts.frame import frame
from parts.panels import GONE_OR_UP, Query, graph, listing, number
from parts.promql import rate, series, total


def overview():
    return frame(
        "overview",
        "Outrider / Overview",
        "One page on coordinators, drafts and targets: state, traffic, speculation and room.",
        "outrider_build_info",
        {
            "State": [
                number(
                    "Target",
                    "Whether every coordinator can use its target. Without one, streams wait up to a minute.",
                    Query(total("target_up", function="min")),
                    unit="none",
                    names=GONE_OR_UP,
                ),
                number(
                    "Speculation",
                    "Degraded: a draft is configured but cannot be used, so decoding is plain.",
                    Query(total("degraded", function="max")),
                    unit="none",
                    names=(("available", "green"), ("degraded", "orange")),
                ),
                number(
                    "Requests in progress",
                    "Requests that run now.",
                    Query(total("requests_running")),
                    unit="short",
                ),
                number(
                    "Generated tokens",
                    "Tokens in answers, a second.",
                    Query(rate("generation_tokens_total")),
                    unit="cps",
                ),
                acceptance_number(),
                canary_number(),
                listing(
                    "What runs",
                    "Version of each process, and what the engines have loaded.",
                    f"group by (job, instance, version) ({series('build_info')})",
                    f"group by (job, instance, model, dtype, device) ({series('target_model_info')} or"
                    f" {series('draft_model_info')})",
                    columns=["job", "instance", "version", "model", "dtype", "device"],
                ),
            ],
            "Traffic": [
                requests_by_code(),
                graph(
                    "Tokens",
                    "Tokens of prompts taken in and tokens of answers given out, a second.",
                    Query(rate("prompt_tokens_total"), "prompt"),
                    Query(rate("generation_tokens_total"), "generated"),
                    unit="cps",
                ),
                running(),
                first_token(12),
                per_token(12),
            ],
            "Speculation": [
                graph(
                    "Acceptance rate",
                    "Accepted over drafted tokens, without the bonus token.",
                    Query(ACCEPTANCE, "acceptance"),
                    unit="percentunit",
                    top=1,
                ),
                length(),
                speedup(),
            ],
            "Engines": [utilisation(12), kv_used(12)],
        },
    )
