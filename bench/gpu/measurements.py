"""The pieces of bench/gpu/run that measure."""

import json
import re
from typing import Any

from piece import Context, Failed, LeftOut, Result, needs, peak_memory, python_piece

CONTEXT = 256  # bench_step's context
AIMS = {("3B", "bfloat16"): 0.85, ("1B", "bfloat16"): 0.75}  # shares of the copy rate, one sequence


def kv_bytes(shape: dict[str, int]) -> int:
    """Bytes of a token's keys and values in bfloat16, a tensor each."""
    return 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"] * 2


def copy_rate(context: Context) -> tuple[float | None, str]:
    """Bytes per second that a copy within the GPU's memory reads and writes, and the same in words, or why it is unknown."""
    try:
        needs(context, "torch")
        rate = python_piece(context, "copy_rate", "--device", context.device)["bytes_per_second"]
    except (Failed, LeftOut) as reason:
        return None, f"left out, and so are shares of it: {reason}"
    return rate, f"{rate / 1e12:.2f} TB/s"


def steps(context: Context) -> Result:
    """Measures forward passes, and how close the reading of weights, keys and values comes to the rate of a copy."""
    pair = context.pair()
    rate, said = copy_rate(context)
    result = Result(rows=[("copying within the GPU's memory, read and written", said)],
                    data={"copy_bytes_per_second": rate, "models": []})
    seconds = "0.01" if context.dry else "0.05" if context.quick else "0.2"
    only = ["--benchmark_filter=^(sequences:8/)?(rows:1|draft:4)/"] if context.dry else []
    for model, shape in context.shapes.items():
        for dtype in context.dtypes:
            file = context.scratch / "step.json"
            with peak_memory(context.device) as peak:
                context.program("bench_step", pair / f"shape-{model}", dtype, "0", f"--device={context.device}",
                                f"--benchmark_min_time={seconds}", f"--benchmark_out={file}",
                                "--benchmark_out_format=json", *only)
            report = json.loads(file.read_text())
            weights, kv = (int(report["context"][name]) for name in ("weight_bytes", "kv_bytes_per_token"))
            if kv != kv_bytes(shape):
                raise Failed(f"{model} takes {kv} bytes of KV a token, not {kv_bytes(shape)}")
            figures, drafts = [], []
            for row in report["benchmarks"]:
                found = re.match(r"(?:sequences:(\d+)/)?(rows|draft):(\d+)", row["name"])
                sequences, rows = int(found[1] or 1), int(found[3])
                if found[2] == "draft":
                    drafts.append({"sequences": sequences, "k": rows, "microseconds": row["real_time"]})
                    continue
                bytes_read = weights + kv * (CONTEXT + rows) * sequences
                figures.append({"sequences": sequences, "rows": rows, "microseconds": row["real_time"],
                                "share": bytes_read / rate / row["real_time"] * 1e6 if rate else None})
            result.data["models"].append({"model": model, "dtype": dtype, "weight_bytes": weights,
                                          "kv_bytes_per_token": kv, "peak_mib": peak[0], "steps": figures,
                                          "drafts": drafts})
            result.rows += rows_of_steps(model, dtype, figures, drafts)
    return result


def rows_of_steps(model: str, dtype: str, figures: list[dict[str, Any]],
                  drafts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    rows = []
    for figure in figures:
        shape = figure["sequences"], figure["rows"]
        if shape not in ((1, 1), (1, 5), (8, 1), (64, 1)):
            continue
        shown = f"{figure['microseconds'] / 1e3:.3f} ms"
        if figure["share"]:
            shown += f", {figure['share']:.0%} of the copy rate"
            if shape == (1, 1) and (model, dtype) in AIMS:
                shown += f" (aim: {AIMS[model, dtype]:.0%})"
        rows.append((f"{model} {dtype}, {shape[0]} sequences, {shape[1]} rows", shown))
    return rows + [(f"{model} {dtype}, {draft['sequences']} sequences, drafting {draft['k']}",
                    f"{draft['microseconds'] / 1e3:.3f} ms") for draft in drafts if model == "1B" and draft["k"] == 4]


def bench_shape(context: Context, *flags: str, max_k: int, max_tokens: int, slice_seconds: float) -> dict[str, Any]:
    """Runs bench_shape; returns its report on the pair with the peak memory."""
    file, streams = context.scratch / "shape.json", ["8", "32"]
    if context.dry:
        max_k, max_tokens, streams = 1, 32, ["2"]
    with peak_memory(context.device) as peak:
        context.program("bench_shape", "--pair", context.pair(), *context.tiny, "--alpha", *context.alphas, "--device",
                        context.device, "--dtype", "bfloat16", "--max-k", str(max_k), "--max-tokens", str(max_tokens),
                        "--streams", *streams, "--slice", str(slice_seconds), *flags, "--json", file)
    return json.loads(file.read_text()) | {"peak_mib": peak[0]}


def pair(context: Context, draft_dtype: str) -> Result:
    report = bench_shape(context, "--draft-dtype", draft_dtype, max_k=6, max_tokens=96 if context.quick else 192,
                         slice_seconds=0.5 if context.quick or context.dry else 1)
    result = Result(data=report)
    plain_rate = report["plain_tokens_per_second"]
    result.rows.append(("plain, one stream", f"{plain_rate:.0f} tokens/s; c = {report['c']:.3f}"))
    for world in report["alphas"]:
        best = max(world["rows"], key=lambda row: row["ratio_to_plain"])
        result.rows.append((f"alpha {world['alpha']:.1f}, best K = {best['k']}",
                            f"{best['ratio_to_plain']:.2f} x plain (Theorem 3.8: {best['expected_ratio']:.2f}); "
                            f"policy {world['policy']['ratio_to_plain']:.2f}; "
                            f"overhead {best['overhead_microseconds']:.0f} us"))
    for load in report["loads"]:
        plain, policy = load["rows"][0], load["rows"][-1]
        result.rows.append((f"alpha {load['alpha']:.1f}, {load['streams']} streams",
                            f"{plain['tokens_per_second']:.0f} tokens/s plain; "
                            f"policy {policy['ratio_to_plain']:.2f} x"))
    result.rows.append(("most memory in use", f"{report['peak_mib']} MiB"))
    return result


def pair_bfloat16(context: Context) -> Result:
    return pair(context, "bfloat16")


def pair_fp8(context: Context) -> Result:
    return pair(context, "fp8")


def rates(report: dict[str, Any]) -> dict[str, float]:
    """Tokens per second, by what was measured."""
    found = {"plain, one stream": report["plain_tokens_per_second"]}
    for world in report["alphas"]:
        found[f"alpha {world['alpha']:.1f}, one stream, best K"] = max(row["tokens_per_second"] for row in world["rows"])
    for load in report["loads"]:
        what = f"alpha {load['alpha']:.1f}, {load['streams']} streams"
        found |= {f"{what}, {row['mode']}": row["tokens_per_second"] for row in (load["rows"][0], load["rows"][-1])}
    return found


def one_process(context: Context) -> Result:
    """Both models in outrider-pair, against one process for each model."""
    reports = [bench_shape(context, *flags, max_k=4, max_tokens=96, slice_seconds=0.5)
               for flags in ([], ["--one-process"])]
    two, one = map(rates, reports)
    result = Result(data={"two_processes": reports[0], "one_process": reports[1]})
    result.rows = [(what, f"{one[what]:.0f} tokens/s, {one[what] / two[what]:.2f} x that of two processes") for what in two]
    result.rows.append(("most memory in use", f"{reports[1]['peak_mib']} MiB, by two processes {reports[0]['peak_mib']}"))
    return result


def others(context: Context) -> Result:
    """The same pair in a minimal loop of torch, and in transformers."""
    needs(context, "torch")
    data: dict[str, list[Any]] = {"rows": [], "left_out": []}
    # transformers takes about ten times as long for a token.
    for system, tokens, share in (("torch-loop", 128, 0.4), ("transformers", 48, 1.0)):
        found = python_piece(context, "other_systems", system, "--pair", context.pair(), "--device", context.device,
                             "--alphas", *context.alphas, "--tokens", str(tokens),
                             "--seconds", f"{share * context.seconds_left() - 5:.0f}")
        for part in data:
            data[part] += found[part]
    own = context.out / "pair.json"
    ours = {}
    if own.is_file() and (report := json.loads(own.read_text())["data"]):
        ours = {world["alpha"]: max(row["tokens_per_second"] for row in world["rows"]) for world in report["alphas"]}
    result = Result(data=data)
    for row in data["rows"]:
        figure = f"{row['tokens_per_second']:.0f} tokens/s"
        if row.get("alpha") in ours:
            figure += f"; Outrider's best K: {ours[row['alpha']] / row['tokens_per_second']:.2f} x"
        result.rows.append((f"{row['system']}, {row['mode']}", figure))
    for row in data["left_out"]:
        result.rows.append((f"{row['system']}, {row['mode']}", f"left out: {row['reason']}"))
    return result


def real(context: Context) -> Result:
    """Real weights: greedy parity, sampling, acceptance; one stream and several."""
    single, many, prompts = (context.scratch / f"real-{name}.json" for name in ("single", "many", "prompts"))
    target, draft, chosen = context.target, context.draft, []
    max_k, load = "2" if context.quick else "5", ["--streams", "8", "--streams", "32", "--slice", "1.5"]
    if context.dry:
        target, draft = (context.random_pair() / f"shape-{size}" for size in ("3B", "1B"))
        prompts.write_text(json.dumps({"prose": {"prompts": ["In a hole"]}}))
        max_k, chosen, load = "1", ["--prompts", prompts], ["--streams", "2", "--slice", "0.5", "--fixed-k", "1"]
    models = ["--target-model", target, "--draft-model", draft, "--device", context.device, "--dtype", "bfloat16"]
    with peak_memory(context.device) as peak:
        context.program("bench_pair", *models, *chosen, "--max-tokens", "64", "--max-k", max_k, "--repeats", "1",
                        "--json", single)
        context.program("bench_serve", *models, *chosen, *load, "--temperature", "1", "--turns", "1", "--json", many)
    report, served = json.loads(single.read_text()), json.loads(many.read_text())
    result = Result(data={"one_stream": report, "streams": served, "peak_mib": peak[0]})
    for run in report["results"]:
        best = max(run["modes"], key=lambda mode: mode["ratio_to_plain"])
        result.rows.append((f"temperature {run['temperature']:g}, {best['mode']}",
                            f"{best['tokens_per_second']:.0f} tokens/s, {best['ratio_to_plain']:.2f} x plain; alpha "
                            f"{best['alpha']:.3f}"))
        others_tokens = run.get("other_tokens_than_plain", 0)
        if others_tokens:
            result.outcome = "FAILED"
            result.rows.append(("greedy answers with other tokens than plain decoding", str(others_tokens)))
    result.rows.append(("most memory in use", f"{peak[0]} MiB"))
    return result
