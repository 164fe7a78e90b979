"""Acceptance of the drafts, whether the output is lossless, and whether speculation pays."""

from parts.common import (
    ACCEPTANCE,
    COMPARED_TOKENS,
    DEVIATIONS,
    EXPECTED,
    LONG_WINDOW,
    OBSERVED,
    SECONDS_IF_PLAIN,
    SECONDS_TAKEN,
    acceptance_number,
    canary_number,
    length,
    length_number,
    speedup,
    speedup_number,
)
from parts.frame import frame
from parts.panels import Query, bars, graph, number, spread
from parts.promql import growth, mean, quantile, rate, ratio, total

K = "spec_decode_chosen_draft_tokens"
SURPRISAL = ratio(*(growth(f"spec_decode_{part}_nats_total", "instance") for part in ("surprisal", "entropy")))


def acceptance_by(labels: str) -> str:
    kind = "per_pos" if labels == "position" else "by_drafter"
    return ratio(
        rate(f"spec_decode_num_accepted_tokens_{kind}_total", labels),
        rate(f"spec_decode_num_draft_tokens_{kind}_total", labels),
    )


# Two digits, so that names sort as numbers.
BY_POSITION = f'label_replace({acceptance_by("position")}, "position", "0$1", "position", "(.)")'
BY_RANK = ratio(
    rate("spec_decode_num_accepted_tokens_per_rank_total", "rank"),
    rate("spec_decode_num_offered_tokens_per_rank_total", "rank"),
)
PLAIN_ON_PURPOSE = ratio(rate(f"{K}_bucket", where='le=~"0|0.0"'), rate(f"{K}_count"))


def acceptance():
    return frame(
        "acceptance",
        "Outrider / Acceptance",
        "Acceptance of drafted tokens, the canaries for losslessness, the choice of K, and the gain of speculation.",
        "outrider_rounds_total",
        {
            "Now": [
                acceptance_number(),
                length_number(),
                speedup_number(),
                canary_number(),
                surprisal_number(),
                number(
                    "Mean K",
                    "Tokens requested from the drafter per round, without the prompt's round. Rounds that are plain "
                    "on purpose count as 0.",
                    Query(mean(K)),
                    unit="none",
                    decimals=2,
                ),
            ],
            "Acceptance": accepted_panels(),
            "Lossless": lossless_panels(),
            "Choice of K and gain": gain_panels(),
            "Running ahead": ahead_panels(),
            "Trees": tree_panels(),
        },
    )


def tree_panels() -> list:
    return [
        bars(
            "Acceptance by rank",
            "How often a child of a tree was accepted if its parent was, by its place among its siblings, from 0. The sum of the "
            "bars is the acceptance of a position.",
            Query(BY_RANK, "{{rank}}"),
            unit="percentunit",
            width=12,
            top=1,
        ),
        graph(
            "Trees among drafts",
            "Rounds whose draft was a tree, divided by rounds with a draft.",
            Query(ratio(rate("spec_decode_num_trees_total"), rate("spec_decode_num_drafts_total")), "trees"),
            unit="percentunit",
            width=12,
            top=1,
        ),
        graph(
            "Beam search: tokens for each call",
            "Tokens by which beam searches took their texts on, divided by the calls of the target. Without a draft it is 1.",
            Query(ratio(rate("beam_search_steps_total"), rate("beam_search_rounds_total")), "tokens"),
            unit="none",
            width=12,
        ),
        graph(
            "Beam searches",
            "Searches that found their texts, a second.",
            Query(rate("beam_searches_total"), "searches"),
            unit="reqps",
            width=12,
        ),
    ]


def surprisal_number():
    return number(
        "Surprisal over entropy",
        "-ln p of the emitted tokens divided by its expectation, the entropy of p, for each coordinator. Tends to 1 "
        "if sampling is right.",
        Query(SURPRISAL, "{{instance}}"),
        unit="none",
        decimals=3,
        window=LONG_WINDOW,
    )


def accepted_panels() -> list:
    return [
        graph(
            "Acceptance rate",
            "Accepted tokens divided by drafted tokens, over all drafters and rules. Bonus tokens do not count.",
            Query(ACCEPTANCE, "acceptance"),
            unit="percentunit",
            top=1,
        ),
        graph(
            "Acceptance by drafter and rule",
            "Acceptance rate by drafter and by rule. If one drafter falls, look at that drafter; if all fall, look at "
            "the prompts.",
            Query(acceptance_by("drafter, rule"), "{{drafter}}, {{rule}}"),
            unit="percentunit",
            top=1,
        ),
        length(),
        bars(
            "Acceptance by position",
            "Accepted tokens divided by drafted tokens at each position of the draft, from 0. A token is accepted "
            "only if all tokens before it are, so the bars fall as long as K stays the same.",
            Query(BY_POSITION, "{{position}}"),
            unit="percentunit",
            width=12,
            top=1,
        ),
        graph(
            "Acceptance by position over time",
            "Acceptance by position of the draft.",
            Query(BY_POSITION, "{{position}}"),
            unit="percentunit",
            width=12,
            top=1,
        ),
        graph(
            "Emitted tokens by kind",
            "Tokens in answers per second: accepted from the draft, corrected after a rejection, bonus "
            "after full acceptance, plain from rounds without a draft.",
            Query(rate("spec_decode_num_emitted_tokens_total", "kind"), "{{kind}}"),
            unit="cps",
            width=12,
            stacked=True,
        ),
        graph(
            "Drafted tokens by drafter",
            "Drafted tokens sent to the target per second, by drafter.",
            Query(rate("spec_decode_num_draft_tokens_by_drafter_total", "drafter"), "{{drafter}}"),
            unit="cps",
            width=12,
            stacked=True,
        ),
    ]


def ahead_panels() -> list:
    rounds, hits = "run_ahead_rounds_total", "run_ahead_hits_total"
    return [
        graph(
            "Outcomes foreseen",
            "Share of the rounds whose outcome was drafted for while they were verified in which the outcome was among "
            "what was drafted for. No data where nothing runs ahead.",
            Query(ratio(rate(hits), rate(rounds)), "foreseen"),
            unit="percentunit",
            top=1,
        ),
        bars(
            "Outcomes foreseen by accepted tokens",
            "The same by the number of drafted tokens that were accepted.",
            Query(
                f'label_replace({ratio(rate(hits, "accepted"), rate(rounds, "accepted"))}, "accepted", "0$1", "accepted", "(.)")',
                "{{accepted}}",
            ),
            unit="percentunit",
            top=1,
        ),
        graph(
            "Exposed draft time",
            "Time that a round waits for its proposal: what running ahead does not hide.",
            Query(mean("round_draft_seconds"), "mean"),
            Query(quantile(0.5, "round_draft_seconds"), "median"),
            unit="s",
        ),
        graph(
            "Wasted tokens",
            "Drafted tokens per second for outcomes that did not come, as far as the draft had reported them, beside those "
            "that were verified.",
            Query(rate("run_ahead_wasted_tokens_total"), "wasted"),
            Query(rate("spec_decode_num_draft_tokens_total"), "verified"),
            unit="cps",
            width=12,
        ),
        graph(
            "Branches",
            "Outcomes drafted for, in each round that ran ahead.",
            Query(ratio(rate("run_ahead_branches_total"), rate(rounds)), "branches a round"),
            unit="none",
            width=12,
        ),
    ]


def lossless_panels() -> list:
    window = f" Each point covers at least {LONG_WINDOW}."
    return [
        graph(
            "Acceptance canary, in standard deviations",
            "Accepted tokens minus the number that p and q predict, in standard deviations. Stays within 5 as long as "
            "drafted tokens are drawn from the q that is sent." + window,
            Query(DEVIATIONS, "{{instance}}"),
            unit="none",
            from_zero=False,
            width=6,
            window=LONG_WINDOW,
            steps=("red", ((-5, "transparent"), (5, "red"))),
        ),
        graph(
            "Acceptance canary, ratio",
            "Accepted tokens divided by their expectation, token rule only. Tends to 1." + window,
            Query(ratio(growth(OBSERVED, "instance"), growth(EXPECTED, "instance")), "{{instance}}"),
            unit="none",
            from_zero=False,
            width=6,
            window=LONG_WINDOW,
        ),
        graph(
            "Surprisal canary",
            "-ln p of the emitted tokens divided by the entropy of p at the same positions. Tends to 1 under every "
            "rule. Shows a wrong residual, which the acceptance canary cannot." + window,
            Query(SURPRISAL, "{{instance}}"),
            unit="none",
            from_zero=False,
            width=6,
            window=LONG_WINDOW,
        ),
        graph(
            "Empty residuals",
            "Share of corrections drawn from p because the residual had no mass. Only rounding causes this, so it is "
            "nearly 0.",
            Query(
                ratio(
                    rate("spec_decode_empty_residuals_total"),
                    rate("spec_decode_num_emitted_tokens_total", where='kind="corrected"'),
                ),
                "empty",
            ),
            unit="percentunit",
            width=6,
        ),
    ]


def gain_panels() -> list:
    return [
        graph(
            "K chosen",
            "Mean number of tokens requested from the drafter, and the share of rounds that are plain on purpose "
            "(K = 0).",
            Query(mean(K), "mean K"),
            Query(PLAIN_ON_PURPOSE, "share with K = 0"),
            unit="none",
        ),
        spread(
            "K chosen, all rounds",
            "Rounds per second by the number of tokens that they requested.",
            rate(f"{K}_bucket", "le"),
            unit="none",
        ),
        speedup(),
        graph(
            "Seconds a token",
            "Time of speculative rounds divided by their tokens, and what a token would have taken in plain rounds of as "
            "many generations in progress; without prompts.",
            Query(ratio(SECONDS_IF_PLAIN, COMPARED_TOKENS), "plain"),
            Query(ratio(SECONDS_TAKEN, COMPARED_TOKENS), "speculative"),
            unit="s",
            window=LONG_WINDOW,
        ),
        graph(
            "Draft availability",
            "Whether coordinators can use a draft. Degraded means that a draft is configured but cannot be used.",
            Query(total("draft_up", "instance", function="max"), "up, {{instance}}"),
            Query(total("degraded", "instance"), "degraded, {{instance}}"),
            unit="none",
            top=1,
        ),
        graph(
            "Failed proposals",
            "Failed proposals per second, by reason. A round whose proposal fails is plain.",
            Query(rate("draft_errors_total", "reason"), "{{reason}}"),
            unit="ops",
            stacked=True,
        ),
    ]
