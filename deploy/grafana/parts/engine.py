"""The engines of drafts and targets: batches, time, blocks of the KV cache, prefix cache."""

from parts.common import both, kv_used, sequences_held, utilisation
from parts.frame import frame
from parts.panels import Query, graph, spread
from parts.promql import mean, quantile, rate, ratio, total


def engine():
    return frame(
        "engine",
        "Outrider / Engine",
        "What the draft and target servers compute, and how much room they have.",
        "outrider_(target|draft)_sequences",
        {"Work": work_panels(), "KV cache": kv_panels(), "Prefixes found again": prefix_panels()},
    )


def work_panels() -> list:
    return [
        utilisation(),
        graph(
            "Forward passes",
            "Forward passes per second.",
            *both(lambda server: rate(f"{server}_step_duration_seconds_count", "instance")),
            unit="ops",
        ),
        graph(
            "Duration of a forward pass",
            "p50 and p99 of the duration.",
            *[
                query
                for q in (0.5, 0.99)
                for query in _named(
                    f"p{q * 100:g}",
                    both(lambda server, q=q: quantile(q, f"{server}_step_duration_seconds", "instance")),
                )
            ],
            unit="s",
        ),
        graph(
            "Sequences in a pass",
            "Mean number of sequences that share a forward pass: the batch size.",
            *both(lambda server: mean(f"{server}_batch_sequences", "instance")),
            unit="none",
        ),
        graph(
            "Rows in a pass",
            "Mean number of tokens that a forward pass feeds. Prompts and drafts make it large.",
            *both(lambda server: mean(f"{server}_batch_rows", "instance")),
            unit="none",
        ),
        graph(
            "Items in progress",
            "Items that are processed or wait for the engine. Many more than the batch size mean that work waits.",
            *both(lambda server: total(f"{server}_items_in_progress", "instance")),
            unit="short",
        ),
        spread(
            "Sequences in a pass of the target",
            "Forward passes per second by the number of their sequences.",
            rate("target_batch_sequences_bucket", "le"),
            unit="none",
        ),
        spread(
            "Rows in a pass of the target",
            "Forward passes per second by the number of tokens that they feed.",
            rate("target_batch_rows_bucket", "le"),
            unit="none",
        ),
        graph(
            "Engine stalled",
            "1 while items wait and no forward pass has ended for --stall-timeout seconds: the engine hangs.",
            *both(lambda server: total(f"{server}_engine_stalled", "instance")),
            unit="none",
            top=1,
        ),
    ]


def kv_panels() -> list:
    def blocks(server: str):
        return graph(
            f"Blocks of the {server}",
            "Used blocks belong to sequences. Cached blocks wait for a prompt with the same prefix and are evicted "
            "when their room is needed.",
            *[Query(total(f"{server}_kv_blocks_{state}"), state) for state in ("used", "cached", "free")],
            unit="short",
            stacked=True,
        )

    return [
        kv_used(),
        blocks("target"),
        blocks("draft"),
        sequences_held(12),
        graph(
            "Preemptions",
            "Sequences per second that lose their cache because blocks run out. Their tokens are sent and computed "
            "again.",
            *both(lambda server: rate(f"{server}_preemptions_total", "instance")),
            unit="ops",
            width=12,
        ),
    ]


def prefix_panels() -> list:
    return [
        graph(
            "Prefix hit rate",
            "Share of the prompt tokens looked up in the prefix cache that were found there and not computed again.",
            *both(
                lambda server: ratio(
                    rate(f"{server}_prefix_cache_hits_total", "instance"),
                    rate(f"{server}_prefix_cache_queries_total", "instance"),
                )
            ),
            unit="percentunit",
            width=12,
            top=1,
        ),
        graph(
            "Tokens not computed",
            "Prompt tokens per second that were found in the prefix cache.",
            *both(lambda server: rate(f"{server}_prefix_cache_hits_total", "instance")),
            unit="cps",
            width=12,
        ),
    ]


def _named(name: str, queries: list[Query]) -> list[Query]:
    return [Query(query.expr, f"{name} {query.legend}") for query in queries]
