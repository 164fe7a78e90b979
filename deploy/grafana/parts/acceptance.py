"""What the target thinks of the drafts, whether the result is lossless, and whether it pays."""

from parts.common import (
    ACCEPTANCE,
    CANARY_WINDOW,
    DEVIATIONS,
    EXPECTED,
    OBSERVED,
    PLAIN_SECONDS_A_TOKEN,
    SPECULATIVE_SECONDS_A_TOKEN,
    acceptance_number,
    canary_number,
    length,
    length_number,
    speedup,
    speedup_number,
)
from parts.frame import frame
from parts.panels import Query, bars, graph, number, spread
from parts.promql import growth, mean, rate, ratio, total

K = "spec_decode_chosen_draft_tokens"
SURPRISAL = ratio(growth("spec_decode_surprisal_nats_total"), growth("spec_decode_entropy_nats_total"))


def acceptance_by(labels: str) -> str:
    kind = "per_pos" if labels == "position" else "by_drafter"
    return ratio(
        rate(f"spec_decode_num_accepted_tokens_{kind}_total", labels),
        rate(f"spec_decode_num_draft_tokens_{kind}_total", labels),
    )


# Two digits, so that names sort as numbers.
BY_POSITION = f'label_replace({acceptance_by("position")}, "position", "0$1", "position", "(.)")'
PLAIN_ON_PURPOSE = ratio(rate(f"{K}_bucket", where='le=~"0|0.0"'), rate(f"{K}_count"))


def acceptance():
    return frame(
        "acceptance",
        "Outrider / Acceptance",
        "Acceptance of drafted tokens, the canaries of losslessness, the choice of K, and what speculation gains.",
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
                    "Tokens asked of the drafter, a round after the prompt's; rounds that are plain on purpose "
                    "count as 0.",
                    Query(mean(K)),
                    unit="none",
                    decimals=2,
                ),
            ],
            "Acceptance": accepted_panels(),
            "Lossless": lossless_panels(),
            "Choice of K and gain": gain_panels(),
        },
    )


def surprisal_number():
    return number(
        "Surprisal over entropy",
        "-ln p of the emitted tokens over what it should come to. Tends to 1 whenever sampling is right.",
        Query(SURPRISAL),
        unit="none",
        decimals=3,
        window=CANARY_WINDOW,
    )


def accepted_panels() -> list:
    return [
        graph(
            "Acceptance rate",
            "Accepted over drafted tokens, without the bonus token, over all drafters and rules.",
            Query(ACCEPTANCE, "acceptance"),
            unit="percentunit",
            top=1,
        ),
        graph(
            "Acceptance by drafter and rule",
            "The same by who drafted and by the rule that decided. A drafter's fall alone "
            "points at that drafter, a fall of all at the prompts.",
            Query(acceptance_by("drafter, rule"), "{{drafter}}, {{rule}}"),
            unit="percentunit",
            top=1,
        ),
        length(),
        bars(
            "Acceptance by position",
            "Accepted over drafted tokens at each position of the draft, from 0. A token counts as "
            "accepted only if all before it are, so that the bars fall while K stays the same.",
            Query(BY_POSITION, "{{position}}"),
            unit="percentunit",
            width=12,
            top=1,
        ),
        graph(
            "Acceptance by position over time",
            "The same over time.",
            Query(BY_POSITION, "{{position}}"),
            unit="percentunit",
            width=12,
            top=1,
        ),
        graph(
            "Emitted tokens by kind",
            "Tokens in answers, a second: accepted from the draft, corrected after a rejection, bonus "
            "after full acceptance, plain from rounds without a draft.",
            Query(rate("spec_decode_num_emitted_tokens_total", "kind"), "{{kind}}"),
            unit="cps",
            width=12,
            stacked=True,
        ),
        graph(
            "Drafted tokens by drafter",
            "Tokens sent to the target, a second, by who drafted them.",
            Query(rate("spec_decode_num_draft_tokens_by_drafter_total", "drafter"), "{{drafter}}"),
            unit="cps",
            width=12,
            stacked=True,
        ),
    ]


def lossless_panels() -> list:
    window = f" Each point covers at least {CANARY_WINDOW}."
    return [
        graph(
            "Acceptance canary, in standard deviations",
            "Accepted tokens less what p and q make one expect, in units of its own "
            "noise. Stays within 5 as long as the drafts were drawn from the q that was sent."
            + window,
            Query(DEVIATIONS, "deviations"),
            unit="none",
            from_zero=False,
            width=6,
            window=CANARY_WINDOW,
            steps=("red", ((-5, "transparent"), (5, "red"))),
        ),
        graph(
            "Acceptance canary, ratio",
            "Observed over expected accepted tokens, token rule only. Tends to 1." + window,
            Query(ratio(growth(OBSERVED), growth(EXPECTED)), "observed / expected"),
            unit="none",
            from_zero=False,
            width=6,
            window=CANARY_WINDOW,
        ),
        graph(
            "Surprisal canary",
            "-ln p of the emitted tokens over the entropy of p at the same places. Tends to 1 whatever the "
            "rule; it shows a wrong residual, which the acceptance canary cannot."
            + window,
            Query(SURPRISAL, "surprisal / entropy"),
            unit="none",
            from_zero=False,
            width=6,
            window=CANARY_WINDOW,
        ),
        graph(
            "Empty residuals",
            "Share of corrections drawn from p because the residual had no mass. Rounding only, so nearly none.",
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
            "Mean of the tokens asked of the drafter, and the share of rounds that are plain on purpose (K = 0).",
            Query(mean(K), "mean K"),
            Query(PLAIN_ON_PURPOSE, "share with K = 0"),
            unit="none",
        ),
        spread(
            "K chosen, all rounds",
            "How many rounds a second asked for at most so many tokens and for more than the row below.",
            rate(f"{K}_bucket", "le"),
            unit="none",
        ),
        speedup(),
        graph(
            "Seconds a token",
            "Duration of rounds over the tokens they emitted, by kind of round, prompts left out.",
            Query(PLAIN_SECONDS_A_TOKEN, "plain"),
            Query(SPECULATIVE_SECONDS_A_TOKEN, "speculative"),
            unit="s",
        ),
        graph(
            "Draft availability",
            "Whether coordinators can use their draft; degraded means that they have one and cannot.",
            Query(total("draft_up", "instance"), "up, {{instance}}"),
            Query(total("degraded", "instance"), "degraded, {{instance}}"),
            unit="none",
            top=1,
        ),
        graph(
            "Failed proposals",
            "Proposals that failed, a second, by reason. The round is plain then.",
            Query(rate("draft_errors_total", "reason"), "{{reason}}"),
            unit="ops",
            stacked=True,
        ),
    ]
