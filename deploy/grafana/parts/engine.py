"""The engines of drafts and targets: batches, time, blocks of the KV cache, prefixes found again."""

from parts.common import both, kv_used, utilisation
from parts.frame import frame
from parts.panels import Query, graph, spread
from parts.promql import mean, quantile, rate, ratio, total


def engine():
    return frame(
        "engine",
        "Outrider / Engine",
        "What the draft and target servers compute, and what room they have.",
        "outrider_(target|draft)_sequences",
        {"Work": work_panels(), "KV cache": kv_panels(), "Prefixes found again": prefix_panels()},
    )


def work_panels() -> list:
    return [
        utilisation(),
        graph(
            "Forward passes",
            "Forward passes a second.",
            *both(lambda server: rate(f"{server}_step_duration_seconds_count", "instance")),
            unit="ops",
        ),
        graph(
            "Duration of a forward pass",
            "Half of the passes, and 99 of 100, were at least as fast.",
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
            "Mean number of sequences that shared a forward pass: the batch.",
            *both(lambda server: mean(f"{server}_batch_sequences", "instance")),
            unit="none",
        ),
        graph(
            "Rows in a pass",
            "Mean number of tokens that a forward pass fed; prompts and drafts make it large.",
            *both(lambda server: mean(f"{server}_batch_rows", "instance")),
            unit="none",
        ),
        graph(
            "Items in progress",
            "Items that are worked on or wait for the engine. Well above the batch means that work waits.",
            *both(lambda server: total(f"{server}_items_in_progress", "instance")),
            unit="short",
        ),
        spread(
            "Sequences in a pass of the target",
            "How many passes a second held at most so many sequences and more than the row below.",
            rate("target_batch_sequences_bucket", "le"),
            unit="none",
            width=12,
        ),
        spread(
            "Rows in a pass of the target",
            "How many passes a second fed at most so many tokens and more than the row below.",
            rate("target_batch_rows_bucket", "le"),
            unit="none",
            width=12,
        ),
    ]


def kv_panels() -> list:
    def blocks(server: str):
        return graph(
            f"Blocks of the {server}",
            "Used blocks belong to sequences; cached ones wait for a prompt that begins alike and "
            "go when their room is needed.",
            *[Query(total(f"{server}_kv_blocks_{state}"), state) for state in ("used", "cached", "free")],
            unit="short",
            stacked=True,
        )

    return [
        kv_used(),
        blocks("target"),
        blocks("draft"),
        graph(
            "Sequences held",
            "Sequences of which a server holds a cache; freed when their request ends or their lease runs out.",
            *both(lambda server: total(f"{server}_sequences", "instance")),
            unit="short",
            width=12,
        ),
        graph(
            "Preemptions",
            "Sequences that lost their cache because blocks ran out, a second. Their tokens are sent and computed "
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
            "Share of the looked-for prompt tokens that were found and not computed again.",
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
            "Prompt tokens found in the prefix cache, a second.",
            *both(lambda server: rate(f"{server}_prefix_cache_hits_total", "instance")),
            unit="cps",
            width=12,
        ),
    ]


def _named(name: str, queries: list[Query]) -> list[Query]:
    return [Query(query.expr, f"{name} {query.legend}") for query in queries]
