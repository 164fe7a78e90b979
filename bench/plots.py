"""Plots the results of the benchmarks.

    python bench/plots.py [--results build/bench] [--out docs/images]

speed-by-k.png from pair.json, drafters.png and acceptance.png from drafters.json, trees.png from tree.json, alpha.png from alpha.json,
throughput.png from serve.json, shape.png from shape.json, schedule.png from schedule.json, questions.png from questions.json (of
questions.py --json), curves.png from draft_sizes.json (of draft_sizes.py --json); a file that is missing is reported.
"""

import argparse
import json
import math
from pathlib import Path

import matplotlib
import theorems

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Distinguishable with every kind of colour vision, and by their markers in greyscale.
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#aa4499", "#555555"
COLORS = (BLUE, ORANGE, GREEN, PURPLE, GREY, "#e69f00", "#56b4e9")
MARKERS = "osD^vPX"
STYLE = {"figure.dpi": 160, "font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left",
         "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e6e6",
         "axes.axisbelow": True, "legend.frameon": False, "lines.linewidth": 2, "lines.markersize": 5.5}


def subject(report: dict) -> str:
    if "step_ms" in report:
        hits = ", ".join(f"{share:g}" for share in report["hits"])
        return (f"timed pair, {report['step_ms']:g} ms a target step, c = {report['c']:g}, alpha {report['alpha']:g}, hits {hits}, "
                f"{report['machine']}")
    if "target" not in report:
        return f"SmolLM2-135M-Instruct, {report['machine']}"
    return f"{report['target']['model']} + {report['draft']['model']}, {report['target']['dtype']}, {report['machine']}"


def title(figure: Figure, heading: str, report: dict, top: float = 1.02) -> None:
    figure.suptitle(heading, x=0.01, ha="left", fontsize=13, fontweight="bold")
    figure.text(0.01, 0.01, subject(report), fontsize=8, color=GREY)
    figure.tight_layout(rect=(0, 0.035, 1, top))


def speed_by_k(report: dict) -> Figure:
    figure, axes = plt.subplots(figsize=(6.4, 4))
    for result, color, marker in zip(report["results"], (BLUE, ORANGE), MARKERS):
        name = f"temperature {result['temperature']:g}"
        fixed = [mode for mode in result["modes"] if "k" in mode]
        ks = [mode["k"] for mode in fixed]
        axes.plot(ks, [mode["ratio_to_plain"] for mode in fixed], color=color, marker=marker, label=name)
        axes.plot(ks, [mode["expected_ratio"] for mode in fixed], color=color, linestyle=":", linewidth=1.4,
                  label=f"Theorem 3.8, c = {result['c']:.2f}")
        policy = next(mode for mode in result["modes"] if mode["mode"] == "policy")
        axes.axhline(policy["ratio_to_plain"], color=color, linestyle="-.", linewidth=1.2, label=f"policy, {name}")
        top = max(fixed, key=lambda mode: mode["ratio_to_plain"])
        axes.annotate(f"{top['ratio_to_plain']:.2f}", (top["k"], top["ratio_to_plain"]), xytext=(0, 7),
                      textcoords="offset points", ha="center", color=color, fontweight="bold")
    axes.axhline(1, color=GREY, linestyle="--", linewidth=1.2, label="plain decoding = 1")
    axes.set(xlabel="K, tokens drafted in a round (0: plain)", ylabel="tokens/s, relative to plain decoding")
    axes.set_ylim(bottom=0)
    axes.set_xticks([mode["k"] for mode in report["results"][0]["modes"] if "k" in mode])
    handles, labels = axes.get_legend_handles_labels()
    for entries in (handles, labels):  # a column for each temperature
        entries.insert(3, entries.pop())
    axes.legend(handles, labels, loc="lower right", fontsize=8, ncols=2)
    title(figure, "Speed of one stream against K", report)
    return figure


def drafters(report: dict) -> Figure:
    figure, panels = plt.subplots(1, len(report["results"]), figsize=(8, 4), sharex=True, squeeze=False)
    for axes, result in zip(panels[0], report["results"]):
        # The fastest of its chains, of its trees, and what the coordinator chooses.
        rows = [(row["drafter"], row.get("chain", {}), row.get("tree", {}), row.get("policy")) for row in result["drafters"]]
        rows.sort(key=lambda row: (row[1].get("ratio_to_plain") or row[3])["median"])
        for place, (name, chain, tree, policy) in enumerate(rows):
            for label, ratio, color, marker, offset in (("chain", chain.get("ratio_to_plain"), BLUE, "o", 0.16),
                                                        ("tree", tree.get("ratio_to_plain"), GREEN, "D", 0),
                                                        ("policy", policy, ORANGE, "s", -0.16)):
                if ratio is None:
                    continue
                axes.errorbar(ratio["median"], place + offset, color=color, marker=marker, capsize=2, linewidth=1.4,
                              xerr=[[ratio["median"] - ratio["least"]], [ratio["most"] - ratio["median"]]],
                              label=label)
        axes.axvline(1, color=GREY, linestyle="--", linewidth=1.2)
        axes.set_yticks(range(len(rows)), [f"{name}, K = {chain['k']}" if chain else name for name, chain, *_ in rows])
        axes.set(title=f"temperature {result['temperature']:g}", xlabel="tokens/s, relative to plain decoding")
        axes.set_xlim(left=0)
    title(figure, "Speed of one stream by drafter", report, top=0.95)
    handles, labels = panels[0][0].get_legend_handles_labels()
    unique = dict(zip(labels, handles))
    figure.legend([unique[name] for name in ("chain", "tree", "policy")], ("fastest chain", "fastest tree", "policy"),
                  loc="upper left", bbox_to_anchor=(0, 0.94), ncols=3)
    return figure


def nodes_of(tree: str) -> int:
    """How many nodes a tree such as 2x1 has."""
    widths = [int(width) for width in tree.split("x")]
    return sum(math.prod(widths[:depth]) for depth in range(1, len(widths) + 1))


def questions(report: dict) -> Figure:
    """Speed by drafted tokens. Theorem 3.8 has alpha from the first tokens, and c from the times of a drafted token and of plain rounds."""
    figure, panels = plt.subplots(1, len(report["results"]), figsize=(8, 4), sharey=True, squeeze=False)
    for axes, result in zip(panels[0], report["results"]):
        modes = {mode["mode"]: mode for mode in result["modes"]}
        plain = modes["none"]
        for drafter, color, marker in (("eagle", BLUE, "o"), ("model", PURPLE, "s"), ("ngram", GREEN, "^")):
            chains = {int(name.partition(":")[2]): mode for name, mode in modes.items()
                      if name.startswith(f"{drafter}:") and "@" not in name}
            axes.plot(list(chains), [mode["ratio"] for mode in chains.values()], color=color, marker=marker, label=drafter)
            alpha, c = chains[1]["acceptance"], chains[max(chains)]["draft_token_us"] / plain["verify_us"]
            axes.plot(list(chains), [theorems.speed(alpha, c, k) for k in chains], color=color, linestyle=":", linewidth=1.4,
                      label=f"Theorem 3.8: alpha {alpha:.2f}, c {c:.2f}")
        trees = {nodes_of(name.partition("@")[2]): mode for name, mode in modes.items() if "@" in name}
        axes.plot(list(trees), [mode["ratio"] for mode in trees.values()], color=ORANGE, marker="D", linestyle="", label="eagle, trees")
        axes.axhline(modes["auto"]["ratio"], color=GREY, linestyle="-.", linewidth=1.2, label="auto")
        axes.axhline(1, color=GREY, linestyle="--", linewidth=1.2)
        axes.set(title=f"temperature {result['temperature']:g}", xlabel="tokens drafted in a round")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7)
    panels[0][0].set_ylabel("tokens/s, relative to plain decoding")
    title(figure, "Speed of one stream, answering questions", report)
    return figure


def curves(report: dict) -> Figure:
    """Figures 2, 3 and 4 of Leviathan et al., with what was measured of several drafts."""
    figure, (tokens, lengths, costs) = plt.subplots(1, 3, figsize=(11, 3.8))
    alphas = [step / 100 for step in range(100)]
    for k, color in zip((1, 2, 3, 5, 10), COLORS):
        tokens.plot(alphas, [theorems.expected_tokens(each, k) for each in alphas], color=color, label=f"K = {k}")
        for row in (row for result in report["results"] for row in result["rows"] if row["k"] == k):
            tokens.plot(row["alpha"], row["tokens_per_call"], color=color, marker="o", linestyle="")
    tokens.set(title="Tokens of a round", xlabel="alpha", ylim=(1, 6))
    for c, color in zip((0.01, 0.05, 0.1, 0.2), COLORS):
        best = [max(range(31), key=lambda k: theorems.speed(each, c, k)) for each in alphas]
        lengths.plot(alphas, best, color=color, label=f"c = {c:g}")
    lengths.set(title="Best K", xlabel="alpha")
    for k, color in zip((1, 3, 5), COLORS):
        costs.plot(alphas, [theorems.speed(each, 0.1, k) for each in alphas], color=color, label=f"speed, K = {k}")
        costs.plot(alphas, [theorems.operations(each, 0.1, k) for each in alphas], color=color, linestyle=":", label=f"operations, K = {k}")
    for row in (row for result in report["results"] for row in result["rows"] if row["k"] == 1):
        costs.plot(row["alpha"], row["speed"], color=BLUE, marker="o", linestyle="")
        costs.plot(row["alpha"], row["operations"], color=BLUE, marker="^", linestyle="")
    costs.set(title="Relative to plain decoding, c = .1", xlabel="alpha", ylim=(0, 4))
    for axes in (tokens, lengths):
        axes.legend(fontsize=7)
    costs.legend(fontsize=7, ncols=2, loc="lower right")
    title(figure, "What drafting gains: the formulas, and three drafts (points)", report)
    return figure


def acceptance(report: dict) -> Figure:
    figure, panels = plt.subplots(1, len(report["results"]), figsize=(8, 4), sharey=True, squeeze=False)
    for axes, result in zip(panels[0], report["results"]):
        rows = [row for row in result["drafters"] if "acceptance_by_position" in row]
        for i, row in enumerate(rows):
            shares = row["acceptance_by_position"]
            axes.plot(range(1, len(shares) + 1), shares, color=COLORS[i % len(COLORS)], marker=MARKERS[i % len(MARKERS)],
                      label=row["drafter"])
        axes.set(title=f"temperature {result['temperature']:g}", xlabel="position in the draft", ylim=(-0.02, 1.02))
        axes.set_xticks(range(1, 1 + max(len(row["acceptance_by_position"]) for row in rows)))
    panels[0][0].set_ylabel("share that is accepted")
    title(figure, "Acceptance by position and drafter", report, top=0.95)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(0, 0.94), ncols=7)
    return figure


def trees(report: dict) -> Figure:
    figure, panels = plt.subplots(1, len(report["acceptance"]), figsize=(8, 4), sharey=True, squeeze=False)
    for axes, result in zip(panels[0], report["acceptance"]):
        axes.axhline(1, color=GREY, linestyle="--", linewidth=1.2, label="the chain of that depth")
        trees_only = [row for row in result["rows"] if not row["mode"].startswith("K")]
        for family, color, marker in (("budget", BLUE, "o"), ("branching", ORANGE, "s"), ("chains", GREEN, "D")):
            rows = [row for row in trees_only if row["mode"].startswith(family) or (family == "branching" and ":" not in row["mode"])]
            axes.plot([row["nodes_per_call"] for row in rows], [row["ratio_to_chain"] for row in rows], color=color,
                      marker=marker, linestyle="none", label=family)
            for row in rows if family == "budget" else ():
                axes.annotate(row["k"], (row["nodes_per_call"], row["ratio_to_chain"]), xytext=(6, -3),
                              textcoords="offset points", fontsize=7, color=color)
        axes.set_xscale("log", base=2)
        axes.set_xticks([4, 8, 16, 32, 64], ["4", "8", "16", "32", "64"])
        axes.minorticks_off()
        axes.set(title=f"temperature {result['temperature']:g}", xlabel="nodes of a tree (depth of budgets beside)")
    panels[0][0].set_ylabel("tokens a target call / chain's of that depth")
    title(figure, "Tokens a target call of trees", report, top=0.95)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(0, 0.94), ncols=4)
    return figure


def alpha(report: dict) -> Figure:
    rows = report["rows"]
    sets, drafters = ([*dict.fromkeys(row[key] for row in rows)] for key in ("set", "drafter"))
    settings = [*dict.fromkeys((row["temperature"], row["top_k"]) for row in rows)]
    figure, panels = plt.subplots(1, len(settings), figsize=(10, 4), sharey=True, squeeze=False)
    for axes, (temperature, top_k) in zip(panels[0], settings):
        for i, drafter in enumerate(drafters):
            found = {row["set"]: row["alpha"] for row in rows
                     if (row["drafter"], row["temperature"], row["top_k"]) == (drafter, temperature, top_k)}
            # Side by side, since many lie close together.
            places = [place + 0.09 * (i - (len(drafters) - 1) / 2) for place in range(len(sets))]
            axes.plot(places, [found[name] for name in sets], color=COLORS[i % len(COLORS)], linestyle="none",
                      marker=MARKERS[i % len(MARKERS)], label=drafter)
        axes.set_xticks(range(len(sets)), sets, rotation=20)
        axes.set(title=f"temperature {temperature:g}" + (f", top-k {top_k}" if top_k else ""), ylim=(-0.02, 1.02))
    panels[0][0].set_ylabel("alpha, mean of sum min(p, q)")
    title(figure, "Acceptance by prompts and drafter", report, top=0.95)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(0, 0.94), ncols=7)
    return figure


def shape(report: dict) -> Figure:
    figure, axes = plt.subplots(figsize=(6.4, 4))
    for result, color, marker in zip(report["alphas"], COLORS, MARKERS):
        ks = [row["k"] for row in result["rows"]]
        axes.plot(ks, [row["ratio_to_plain"] for row in result["rows"]], color=color, marker=marker,
                  label=f"alpha = {result['alpha']:g}, measured")
        axes.plot(ks, [row["expected_ratio"] for row in result["rows"]], color=color, linestyle=":",
                  label="estimate: Theorem 3.8")
    axes.axhline(1, color=GREY, linestyle="--", linewidth=1.2, label="plain decoding = 1")
    axes.set(xlabel="K, tokens drafted in a round", ylabel="tokens/s, relative to plain decoding")
    axes.set_ylim(bottom=0)
    axes.set_xticks([row["k"] for row in report["alphas"][0]["rows"]])
    axes.legend(loc="lower right", fontsize=8)
    cut = f", layers / {report['scale']}" if report["scale"] > 1 else ""
    title(figure, f"Llama 3.2 3B and 1B in shape{cut}, c = {report['c']:.2f}", report)
    return figure


def schedule(report: dict) -> Figure:
    figure, axes = plt.subplots(figsize=(6.4, 4))
    rows = [row for row in report["rows"] if not row["policy"]]
    delays = sorted({row["delay_ms"] for row in rows})

    def best(column: str, **wanted: str) -> list[float]:
        """The largest value over all K, by delay."""
        return [max(row[column] for row in rows
                    if row["delay_ms"] == delay and all(row[key] == value for key, value in wanted.items()))
                for delay in delays]

    ahead, lockstep = {"drafter": "model", "schedule": "run_ahead"}, {"drafter": "model", "schedule": "lockstep"}
    axes.plot(delays, best("perfect_overlap", **ahead), color=GREEN, linestyle=":", label="bound: perfect overlap")
    for name, expectation, wanted, color, marker in (("run-ahead", "expected", ahead, ORANGE, "s"),
                                                     ("lockstep", "Theorem 3.8", lockstep, BLUE, "o")):
        axes.plot(delays, best("expected", **wanted), color=color, linestyle=":", linewidth=1.4,
                  label=f"{name}, {expectation}")
        axes.plot(delays, best("ratio_to_undelayed_plain", **wanted), color=color, marker=marker,
                  label=f"{name}, measured")
    axes.plot(delays, best("ratio_to_undelayed_plain", drafter="none"), color=GREY, linestyle="--", linewidth=1.2,
              label="plain decoding")
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xticks(delays, [f"{delay:g}" for delay in delays])
    axes.minorticks_off()
    axes.set(xlabel="delay to draft and target, one way, ms", ylabel="tokens/s, relative to plain without delay")
    axes.set_ylim(bottom=0, top=1.3 * max(best("perfect_overlap", **ahead)))
    axes.legend(loc="upper right", fontsize=8, ncols=2)
    title(figure, "Speed against delay, with the best K of each", report)
    return figure


def throughput_panel(axes: Axes, results: list[dict]) -> None:
    names = [mode["mode"] for mode in results[0]["modes"]]
    streams = [result["streams"] for result in results]
    for i, name in enumerate(names):
        color = {"plain": GREY, "policy": ORANGE}.get(name, (BLUE, GREEN, PURPLE)[(i - 1) % 3])
        axes.plot(streams, [result["modes"][i]["tokens_per_second"] for result in results], color=color,
                  marker=MARKERS[i % len(MARKERS)], linestyle="--" if name == "plain" else "-",
                  label={"policy": "policy (K by measured time)"}.get(name, name))
    axes.set_xscale("log", base=2)
    axes.set_xticks(streams, [str(n) for n in streams])
    axes.minorticks_off()
    axes.set(title=f"temperature {results[0]['temperature']:g}", xlabel="concurrent streams")


def throughput(report: dict) -> Figure:
    temperatures = sorted({result["temperature"] for result in report["closed"]})
    figure, panels = plt.subplots(1, len(temperatures), figsize=(8, 4), sharey=True, squeeze=False)
    for axes, temperature in zip(panels[0], temperatures):
        throughput_panel(axes, [result for result in report["closed"] if result["temperature"] == temperature])
    panels[0][0].set_ylabel("tokens/s, all streams together")
    panels[0][0].set_ylim(bottom=0)
    title(figure, "Throughput against concurrent streams", report, top=0.95)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(0, 0.94), ncols=5)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("build/bench"), help="folder of the JSON files")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder for the plots")
    options = parser.parse_args()
    plt.rcParams.update(STYLE)
    for source, draw, picture in (("pair.json", speed_by_k, "speed-by-k.png"),
                                  ("drafters.json", drafters, "drafters.png"),
                                  ("drafters.json", acceptance, "acceptance.png"),
                                  ("tree.json", trees, "trees.png"),
                                  ("alpha.json", alpha, "alpha.png"),
                                  ("serve.json", throughput, "throughput.png"),
                                  ("shape.json", shape, "shape.png"),
                                  ("schedule.json", schedule, "schedule.png"),
                                  ("questions.json", questions, "questions.png"),
                                  ("draft_sizes.json", curves, "curves.png")):
        if not (options.results / source).exists():
            print(f"plots: no {options.results / source}, so no {picture}")
            continue
        draw(json.loads((options.results / source).read_text())).savefig(options.out / picture)
        print(f"plots: {options.out / picture}")


if __name__ == "__main__":
    main()
