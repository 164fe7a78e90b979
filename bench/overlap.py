"""Measures how much of the draft's time run-ahead hides, for the shipped pair with draft and target on a core each.

    .venv/bin/python bench/overlap.py [--turns 8] [--max-k 4] [--tokens 160] [--json build/bench/overlap.json]

Plain decoding, lockstep, run-ahead and the coordinator's choice of schedule take turns over the same prompts, for each K and for K
chosen by the coordinator. With perfect overlap, the shorter half of a lockstep round costs no time; the halves are the proposal and
the verification, each with its wire. Reports the share of the gain from lockstep to perfect overlap that run-ahead reaches, and the
share of outcomes that the draft predicted. The coordinator has no core of its own, so it takes time from both.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from outrider.v1 import inference_pb2, inference_pb2_grpc, sequence_pb2

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "build/release/bin"
MODELS = ROOT / "models"
PROMPTS = ["It was a dark evening in November, and the old house by the river", "The first law of the country is",
           "My dear friend, I have received your letter and", "In the beginning of the year the king"]
WAYS = {"greedy": {"temperature": 0.0}, "token": {"temperature": 1.0, "rule": sequence_pb2.RULE_TOKEN},
        "block": {"temperature": 1.0, "rule": sequence_pb2.RULE_BLOCK},
        "coupled": {"temperature": 1.0, "rule": sequence_pb2.RULE_COUPLED}}


def start(stack: contextlib.ExitStack, cores: str, program: str, *flags: str) -> str:
    """Starts a service on these cores and returns its address."""
    process = subprocess.Popen(["taskset", "-c", cores, PROGRAMS / program, "--listen", "127.0.0.1:0", "--metrics-listen", "",
                                "--log-format", "json", *flags], stderr=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    assert process.stderr is not None
    for line in process.stderr:
        if "listen" in (event := json.loads(line)):
            break
    threading.Thread(target=lambda: [None for _ in process.stderr or ()], daemon=True).start()
    return str(event["listen"])


def start_pair(stack: contextlib.ExitStack, target: str, draft: str, *draft_flags: str, target_flags: Sequence[str] = (),
               cores: tuple[str, str, str] = ("0,1", "0,1", "0,1")) -> str:
    """Starts draft, target and coordinator on these cores, and returns the coordinator's address."""
    drafting = start(stack, cores[0], "outrider-draft", "--model", draft, *draft_flags)
    serving = start(stack, cores[1], "outrider-target", "--model", target, *target_flags)
    return start(stack, cores[2], "outrider-coordinator", "--tokenizer", target, "--target", serving, "--draft", drafting,
                 "--http-listen", "")


@dataclass
class Sums:
    """Sums over all turns of one way of decoding."""

    seconds: list[float] = field(default_factory=list)  # per token, by turn
    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    draft_us: int = 0
    verify_us: int = 0
    ahead: int = 0
    hits: int = 0


def generate(stub: inference_pb2_grpc.InferenceStub, prompt: str, way: dict, k: int | None, schedule: int, tokens: int, sums: Sums) -> float:
    """Seconds for each token after the first."""
    request = inference_pb2.GenerateRequest(
        text=prompt, trace=True, sampling=sequence_pb2.SamplingParams(temperature=way["temperature"]),
        speculation=inference_pb2.SpeculationOptions(draft_tokens=k, schedule=schedule, rule=way.get("rule", 0)),
        stop=inference_pb2.StopOptions(max_tokens=tokens, ignore_eos=True))
    for chunk in stub.Generate(request):
        if chunk.HasField("trace") and chunk.trace.round > 0:
            sums.rounds += 1
            sums.tokens += len(chunk.tokens)
            sums.drafted += len(chunk.trace.drafted)
            sums.draft_us += chunk.trace.draft_us
            sums.verify_us += chunk.trace.verify_us
        if chunk.HasField("finish"):
            sums.ahead += chunk.finish.speculation.ahead_rounds
            sums.hits += chunk.finish.speculation.ahead_hits
            return chunk.finish.usage.decode_seconds / (tokens - 1)
    raise AssertionError("no last chunk")


def compare(stub: inference_pb2_grpc.InferenceStub, name: str, k: int | None, turns: int, tokens: int) -> dict:
    way = WAYS[name]
    plan = {"plain": (0, inference_pb2.SCHEDULE_LOCKSTEP), "lockstep": (k, inference_pb2.SCHEDULE_LOCKSTEP),
            "run_ahead": (k, inference_pb2.SCHEDULE_RUN_AHEAD), "auto": (k, inference_pb2.SCHEDULE_AUTO)}
    sums = {label: Sums() for label in plan}
    for turn in range(turns + 1):
        for label in list(plan) if turn % 2 == 0 else list(plan)[::-1]:
            into = Sums() if turn == 0 else sums[label]  # the first turn fills caches and lets the coordinator learn
            seconds = [generate(stub, prompt, way, *plan[label], tokens, into) for prompt in PROMPTS]
            into.seconds.append(sum(seconds) / len(seconds))
    speed = {label: statistics.median(p / s for p, s in zip(sums["plain"].seconds, of.seconds, strict=True))
             for label, of in sums.items()}
    lockstep, ahead = sums["lockstep"], sums["run_ahead"]
    # The rest of a lockstep round, outside its two halves, stays the same.
    per_round = statistics.median(lockstep.seconds) * lockstep.tokens / lockstep.rounds
    draft, verify = (us / lockstep.rounds * 1e-6 for us in (lockstep.draft_us, lockstep.verify_us))
    perfect = speed["lockstep"] * per_round / (per_round - min(draft, verify))
    gain = (speed["run_ahead"] - speed["lockstep"]) / (perfect - speed["lockstep"])
    return {"way": name, "k": "auto" if k is None else k, "draft_ms": draft * 1e3, "verify_ms": verify * 1e3, "round_ms": per_round * 1e3,
            "tokens_a_round": lockstep.tokens / lockstep.rounds, "foreseen": ahead.hits / max(ahead.ahead, 1),
            "exposed_ms": ahead.draft_us / max(ahead.rounds, 1) * 1e-3, "verify_ahead_ms": ahead.verify_us / max(ahead.rounds, 1) * 1e-3,
            **{f"{label}_speed": value for label, value in speed.items()}, "perfect_speed": perfect, "share_of_gain": gain,
            "auto_over_lockstep": speed["auto"] / speed["lockstep"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8, help="measured turns, after one warm-up turn")
    parser.add_argument("--max-k", type=int, default=4, help="largest fixed K")
    parser.add_argument("--tokens", type=int, default=160, help="tokens per generation")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS),
                        help="what to measure: greedy decoding, or a rule at temperature 1")
    parser.add_argument("--branches", type=int, default=8, help="the coordinator's --run-ahead-branches")
    parser.add_argument("--cores", nargs=3, default=["0", "1", "0,1"], metavar=("DRAFT", "TARGET", "COORDINATOR"),
                        help="cores of draft, target and coordinator")
    parser.add_argument("--json", type=Path, help="file for the results")
    flags = parser.parse_args()
    rows = []
    with contextlib.ExitStack() as stack:
        draft = start(stack, flags.cores[0], "outrider-draft", "--model", str(MODELS / "tiny-draft"), "--threads", "1")
        target = start(stack, flags.cores[1], "outrider-target", "--model", str(MODELS / "tiny-target"), "--threads", "1")
        address = start(stack, flags.cores[2], "outrider-coordinator", "--tokenizer", str(MODELS / "tiny-target"), "--target", target,
                        "--draft", draft, "--http-listen", "", "--run-ahead-branches", str(flags.branches))
        channel = stack.enter_context(grpc.insecure_channel(address))
        stub = inference_pb2_grpc.InferenceStub(channel)
        while stub.Describe(inference_pb2.DescribeRequest(), wait_for_ready=True).degraded:
            time.sleep(0.05)
        print(f"{'':14}{'draft':>8}{'verify':>8}{'foreseen':>10}{'exposed':>9}{'lockstep':>10}{'ahead':>8}{'perfect':>9}"
              f"{'of gain':>9}{'auto/lockstep':>15}")
        for name in flags.ways:
            for k in [*range(1, flags.max_k + 1), None]:
                row = compare(stub, name, k, flags.turns, flags.tokens)
                rows.append(row)
                print(f"{name:8}K={row['k']!s:4}{row['draft_ms']:6.2f}ms{row['verify_ms']:6.2f}ms{row['foreseen']:10.2f}{row['exposed_ms']:7.2f}ms"
                      f"{row['lockstep_speed']:9.2f}x{row['run_ahead_speed']:7.2f}x{row['perfect_speed']:8.2f}x{row['share_of_gain']:9.2f}"
                      f"{row['auto_over_lockstep']:15.2f}", flush=True)
    if flags.json:
        flags.json.parent.mkdir(parents=True, exist_ok=True)
        flags.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
