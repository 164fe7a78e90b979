"""Random options together, each with a value that may be used. A request is answered, or refused because its options exclude each
other, and a greedy answer is that of plain decoding.

OUTRIDER_ANY_REQUESTS is the number of requests, and OUTRIDER_ANY_SEED their seed.
"""

import random
from typing import Any

from outrider import Client, InvalidArgument

from harness import PATIENCE, cluster
from heads import FLAGS
from test_any_request import COUNT, SEED

PROMPTS = ["It was a dark evening", "The", "yes yes yes yes yes", [5, 6, 7, 8, 9, 10], [300]]
# Options of the answer, and those of its speed alone.
ANSWER: dict[str, list[Any]] = {
    "top_k": [1, 2, 40], "top_p": [1e-6, 0.3, 1], "min_p": [0, 0.05, 1], "repetition_penalty": [0.5, 1.3], "presence_penalty": [-2, 1.5],
    "frequency_penalty": [-2, 0.7], "logit_bias": [{5: 100}, {10: -100, 11: 3.5}], "allowed_ids": [[10], [10, 11, 12, 300], range(3, 4000)],
    "bad_ids": [[2], range(200)], "min_tokens": [0, 5, 12], "stop": ["e", [" the", "zq"]], "stop_token_ids": [[260], [5, 6, 7]],
    "ignore_eos": [True, False], "lenience": [0.3, 0.9, 1], "logprobs": [0, 3, 20], "logprobs_before_controls": [True, False],
    "prompt_logprobs": [0, 4], "echo": [True], "seed": [1, 2**63], "sample_index": [3]}
SPEED: dict[str, list[Any]] = {
    "drafter": ["model", "ngram", "copy", "auto", "eagle", "medusa", "look_ahead", "layer_skip", "none"], "draft_tokens": [0, 1, 2, 4, 7],
    "rule": ["token", "block", "coupled"], "schedule": ["lockstep", "run_ahead", "auto"],
    "tree": ["2x2x1", "chains:3", "budget:6", "auto", "none"], "sibling_order": ["given", "random"], "draft_top_n": [1, 8, 4096],
    "draft_temperature": [0.3, 1, 2], "max_context": [1, 8, 30], "prediction": ["the old man said that he would come", "aaaa"],
    "trace": [True]}
GRAMMARS: dict[str, list[Any]] = {
    "json_schema": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}], "regex": ["[a-z ]{3,9}"],
    "choices": [["yes", "no", "maybe so"]], "grammar": ['root ::= "a" | "b" root']}
BEAM: dict[str, list[Any]] = {"beam_width": [2, 4], "beam_draft_width": [1, 2], "length_penalty": [0, 1.5], "beam_stop": ["auto", "first"]}


def options(r: random.Random) -> dict[str, Any]:
    share = r.choice([0.06, 0.2])
    chosen = {name: r.choice(values) for name, values in (ANSWER | SPEED).items() if r.random() < share}
    if r.random() < 0.15:
        name = r.choice(list(GRAMMARS))
        chosen[name] = r.choice(GRAMMARS[name])
    if r.random() < 0.1:
        chosen |= {name: r.choice(values) for name, values in BEAM.items() if name == "beam_width" or r.random() < 0.5}
    return chosen | {"temperature": r.choice([0, 0, 0.7, 1, 1.9]), "max_tokens": r.choice([1, 2, 7, 14])}


def test_any_options_go_together_or_are_refused() -> None:
    r = random.Random(SEED)
    answered = compared = 0
    with cluster(target=FLAGS) as pair, Client(pair.coordinator.address, timeout=PATIENCE) as client:
        for _ in range(4 * COUNT):
            prompt, n, wanted = r.choice(PROMPTS), r.choice([1, 1, 2]), options(r)
            try:
                samples = client.generate_samples(prompt, n, **wanted)
            except InvalidArgument:
                continue
            answered += 1
            if wanted["temperature"] == 0 and wanted.get("lenience", 1) == 1 and "beam_width" not in wanted:
                plain = {name: value for name, value in wanted.items() if name not in SPEED} | {"draft_tokens": 0}
                expected = client.generate_samples(prompt, n, **plain)
                assert [(s.tokens, s.text, s.finish_reason) for s in samples] == \
                    [(s.tokens, s.text, s.finish_reason) for s in expected], (prompt, n, wanted)
                compared += 1
    assert answered > 2 * COUNT and compared > COUNT // 2, "hardly anything was valid"
