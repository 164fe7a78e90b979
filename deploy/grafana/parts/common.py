"""Panels that more than one dashboard shows, and the definitions behind them."""

from parts.panels import Query, graph, number
from parts.promql import growth, quantile, rate, ratio, total

# The canaries, and comparisons with plain rounds, which may be few, need much data: each point covers at least this much
# time.
LONG_WINDOW = "10m"

ACCEPTED, DRAFTED = "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"
ACCEPTANCE = ratio(rate(ACCEPTED), rate(DRAFTED))
MEAN_LENGTH = f"1 + {ratio(rate(ACCEPTED), rate('spec_decode_num_drafts_total'))}"



def of_rounds(unit: str, mode: str) -> str:
    """Seconds or tokens per second of the rounds that are compared, by the number of generations in progress."""
    return rate(f"spec_decode_round_{unit}_total", "running", where=f'mode="{mode}"')


PLAIN_BY_RUNNING = ratio(of_rounds("seconds", "plain"), of_rounds("tokens", "plain"))
COMPARED_TOKENS = f"sum ({of_rounds('tokens', 'speculative')} and {PLAIN_BY_RUNNING})"
SECONDS_IF_PLAIN = f"sum ({of_rounds('tokens', 'speculative')} * ({PLAIN_BY_RUNNING}))"
SECONDS_TAKEN = f"sum ({of_rounds('seconds', 'speculative')} and {PLAIN_BY_RUNNING})"
SPEEDUP = ratio(SECONDS_IF_PLAIN, SECONDS_TAKEN)
SPEEDUP_DESCRIPTION = (
    "The time that the tokens of speculative rounds would have taken in plain rounds, divided by the time that they "
    "took, failed drafts included. Compares rounds of as many generations in progress, without prompts; no data where "
    "there are no plain ones."
)

OBSERVED, EXPECTED = (f"spec_decode_{kind}_accepted_tokens_total" for kind in ("observed", "expected"))
VARIANCE = "spec_decode_expected_accepted_tokens_variance_total"
# By instance, so that a wrong pair cannot hide among right ones.
DEVIATIONS = (
    f"({growth(OBSERVED, 'instance')} - {growth(EXPECTED, 'instance')}) / sqrt({growth(VARIANCE, 'instance')} > 0)"
)

QUANTILES = (0.5, 0.9, 0.99)


def quantiles(histogram: str) -> list[Query]:
    return [Query(quantile(q, histogram), f"p{q * 100:g}") for q in QUANTILES]


def first_token(width: int = 8):
    return graph(
        "Time to first token",
        "From receipt of a request to its first committed token, p50, p90 and p99. Includes computing the prompt and "
        "waiting.",
        *quantiles("time_to_first_token_seconds"),
        unit="s",
        width=width,
    )


def per_token(width: int = 8):
    return graph(
        "Time per output token",
        "Decoding time divided by the number of tokens after the first, one value per sample; p50, p90 and p99.",
        *quantiles("time_per_output_token_seconds"),
        unit="s",
        width=width,
    )


def requests_by_code(width: int = 8):
    return graph(
        "Requests that ended",
        "Requests per second by status code. CANCELLED comes from the client. RESOURCE_EXHAUSTED means that "
        "too many were waiting.",
        Query(rate("requests_total", "code"), "{{code}}"),
        unit="reqps",
        width=width,
        stacked=True,
    )


def running(width: int = 8):
    return graph(
        "Requests in progress",
        "Requests that run, those that wait for their turn, and --max-requests, above which requests wait. Each "
        "sample of a request counts towards the limit.",
        Query(total("requests_running"), "running"),
        Query(total("requests_waiting"), "waiting"),
        Query(total("requests_limit"), "limit"),
        unit="short",
        width=width,
    )


def acceptance_number():
    return number(
        "Acceptance rate",
        "Accepted tokens divided by drafted tokens. Bonus tokens do not count.",
        Query(ACCEPTANCE),
        unit="percentunit",
        decimals=1,
    )


def length_number():
    return number(
        "Mean accepted length",
        "Tokens per target call in rounds with a draft: 1 + accepted / drafts.",
        Query(MEAN_LENGTH),
        unit="none",
        decimals=2,
    )


def speedup_number():
    return number(
        "Speed-up",
        SPEEDUP_DESCRIPTION,
        Query(SPEEDUP),
        unit="none",
        decimals=2,
        window=LONG_WINDOW,
        steps=("red", ((1, "green"),)),
    )


def length(width: int = 8):
    return graph(
        "Mean accepted length",
        "Tokens per target call in rounds with a draft: 1 + accepted / drafts.",
        Query(MEAN_LENGTH, "tokens"),
        unit="none",
        width=width,
    )


def speedup(width: int = 8):
    return graph(
        "Speed-up against plain decoding",
        SPEEDUP_DESCRIPTION,
        Query(SPEEDUP, "speed-up"),
        unit="none",
        width=width,
        window=LONG_WINDOW,
        steps=("red", ((1, "green"),)),
    )


def canary_number():
    return number(
        "Acceptance canary",
        "Accepted tokens minus the number that p and q predict, in standard deviations, for each coordinator. Beyond 5 "
        "the text does not have the target's distribution.",
        Query(DEVIATIONS, "{{instance}}"),
        unit="none",
        decimals=1,
        window=LONG_WINDOW,
        steps=("red", ((-5, "green"), (5, "red"))),
    )


def utilisation(width: int = 8):
    return graph(
        "Engine utilisation",
        "Share of the time in which an engine computes forward passes. At 1, work waits.",
        *both(lambda server: rate(f"{server}_step_duration_seconds_sum", "instance")),
        unit="percentunit",
        width=width,
        top=1,
    )


def kv_used(width: int = 8):
    def used(server: str) -> str:
        blocks = [total(f"{server}_kv_blocks_{state}", "instance") for state in ("used", "cached", "free")]
        return f"{blocks[0]} / ({' + '.join(blocks)} > 0)"

    return graph(
        "KV cache in use",
        "Share of the blocks that sequences hold. Cached blocks count as available: they are evicted when their room "
        "is needed.",
        *both(used),
        unit="percentunit",
        width=width,
        top=1,
    )


def sequences_held(width: int = 8):
    return graph(
        "Sequences held",
        "Sequences whose cache a server holds. They are freed when their request ends or their lease expires. Servers of "
        "a pool should hold about as many.",
        *both(lambda server: total(f"{server}_sequences", "instance")),
        unit="short",
        width=width,
    )


def both(expr) -> list[Query]:
    """The query for the target and for the draft, by instance."""
    return [Query(expr(server), f"{server} {{{{instance}}}}") for server in ("target", "draft")]
