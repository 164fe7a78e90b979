"""Whether the services are up and fast, whether speculation pays, and whether there is room."""

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
    sequences_held,
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
        "Coordinators, drafts and targets on one page: state, traffic, speculation and room.",
        "outrider_build_info",
        {
            "State": [
                number(
                    "Target",
                    "Whether every coordinator can use a target. Without one, streams wait up to a minute.",
                    Query(f"min ({total('target_up', 'instance', function='max')})"),
                    unit="none",
                    names=GONE_OR_UP,
                ),
                number(
                    "Speculation",
                    "Degraded means that a draft is configured but cannot be used. Decoding is then plain.",
                    Query(total("degraded", function="max")),
                    unit="none",
                    names=(("available", "green"), ("degraded", "orange")),
                ),
                number(
                    "Requests in progress",
                    "Requests that are running.",
                    Query(total("requests_running")),
                    unit="short",
                ),
                number(
                    "Generated tokens",
                    "Tokens in answers per second.",
                    Query(rate("generation_tokens_total")),
                    unit="cps",
                ),
                acceptance_number(),
                canary_number(),
                listing(
                    "What runs",
                    "The version of each process and the model that each engine has loaded.",
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
                    "Prompt tokens and generated tokens per second.",
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
                    "Accepted tokens divided by drafted tokens. Bonus tokens do not count.",
                    Query(ACCEPTANCE, "acceptance"),
                    unit="percentunit",
                    top=1,
                ),
                length(),
                speedup(),
            ],
            "Engines": [utilisation(12), kv_used(12)],
            "Pools": pools(),
        },
    )


def pools() -> list:
    def reached(server: str):
        return graph(
            f"{server.capitalize()}s by address",
            f"Share of the coordinators that can use each {server}.",
            Query(total(f"{server}_up", "address", function="avg"), "{{address}}"),
            unit="percentunit",
            top=1,
        )

    return [
        reached("target"),
        reached("draft"),
        sequences_held(),
    ]
