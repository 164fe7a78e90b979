"""Measures one mode of vLLM for compare_systems.py, which runs this script in vLLM's own environment.

Writes a JSON object that maps each temperature to tokens per second after the first token, for one stream.
"""

import argparse
import json
import time
from pathlib import Path

from vllm import LLM, SamplingParams


def rate(llm: LLM, prompts: list[str], sampling: SamplingParams) -> float:
    tokens, seconds = 0, 0.0
    for prompt in prompts:
        llm.llm_engine.add_request("prompt", prompt, sampling)
        arrivals: list[tuple[float, int]] = []  # times, and the number of tokens by then
        while llm.llm_engine.has_unfinished_requests():
            for output in llm.llm_engine.step():
                arrivals.append((time.perf_counter(), len(output.outputs[0].token_ids)))
        (first, before), (last, after) = arrivals[0], arrivals[-1]
        tokens, seconds = tokens + after - before, seconds + last - first
    return tokens / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True, help="model folder")
    parser.add_argument("--speculation", type=json.loads, help="vLLM's speculative_config as JSON; default: plain decoding")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON file with a list of prompts")
    parser.add_argument("--temperatures", type=float, nargs="+", required=True)
    parser.add_argument("--max-tokens", type=int, required=True)
    parser.add_argument("--json", type=Path, required=True, help="file for the rates")
    options = parser.parse_args()
    prompts = json.loads(options.prompts.read_text())
    # vLLM's own sampling defaults apply, not those of the model's folder.
    llm = LLM(options.target, dtype="bfloat16", max_num_seqs=1, generation_config="vllm",
              speculative_config=options.speculation)
    rates = {}
    for temperature in options.temperatures:
        sampling = SamplingParams(temperature=temperature, max_tokens=options.max_tokens, ignore_eos=True)
        rate(llm, prompts[:1], sampling)  # warm-up
        rates[temperature] = rate(llm, prompts, sampling)
    options.json.write_text(json.dumps(rates))


if __name__ == "__main__":
    main()  # vLLM's processes import this file
