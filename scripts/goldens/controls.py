"""Results of the logits processors of Hugging Face `transformers`, which the tests of common/spec must match.

Writes tests/data/spec/controls.golden.txt. A golden is a few lines that end with an empty one:

  case NAME
  FIELD VALUE...          the sampling parameters, by the names of common/spec/controls.h; others keep their default
  prompt_length N         the number of prompt tokens in the context
  context ID...
  logits FLOAT...         multiples of 2^-12, so that they are exact in float32; no two are equal
  probabilities FLOAT...  softmax of the processed logits

Processors run in the order of common/spec/controls.h. `transformers` has none for presence and frequency penalties.
"""

import random

import torch
from paths import DATA
from transformers import generation

GOLDEN = DATA / "spec" / "controls.golden.txt"

# The processors compute in float32, so a mass this close to top_p could fall on either side of the cut.
TOO_CLOSE = 1e-5


def processors(case, prompt_length, vocabulary):
    """The processors of a case, in order."""
    if "logit_bias" in case:
        yield generation.SequenceBiasLogitsProcessor([[[token], bias] for token, bias in case["logit_bias"]])
    if "repetition_penalty" in case:
        yield generation.RepetitionPenaltyLogitsProcessor(case["repetition_penalty"])
    if "allowed_ids" in case:
        yield generation.PrefixConstrainedLogitsProcessor(lambda batch, ids: case["allowed_ids"], 1)
    if "bad_ids" in case:
        yield generation.NoBadWordsLogitsProcessor([[token] for token in case["bad_ids"]])
    if "min_tokens" in case:
        yield generation.MinNewTokensLengthLogitsProcessor(prompt_length, case["min_tokens"], case["eos_ids"])
    if "temperature" in case:
        yield generation.TemperatureLogitsWarper(case["temperature"])
    if "top_k" in case:
        yield generation.TopKLogitsWarper(case["top_k"])
    if "top_p" in case:
        yield generation.TopPLogitsWarper(case["top_p"])
    if "min_p" in case:
        yield generation.MinPLogitsWarper(case["min_p"])


def near_a_cut(scores, case):
    """Whether rounding could change what top_p or min_p decides about a token."""
    probabilities = torch.softmax(scores.double(), -1)[0]
    if "top_p" in case:
        removed = probabilities.sort().values.cumsum(0)
        if ((removed - (1 - case["top_p"])).abs() < TOO_CLOSE).any():
            return True
    if "min_p" in case:
        bound = case["min_p"] * probabilities.max()
        return bool(((probabilities / bound - 1).abs() < TOO_CLOSE).any())
    return False


def write_case(out, name, case, vocabulary, generator):
    while True:
        spread = generator.choice([1.0, 2.5, 6.0])
        logits = torch.tensor([round(generator.gauss(0, spread) * 4096) / 4096 for _ in range(vocabulary)])
        prompt_length = generator.randrange(1, 12)
        context = [generator.randrange(vocabulary) for _ in range(prompt_length + generator.randrange(0, 12))]
        if len(logits.unique()) < vocabulary:
            continue
        scores, ids = logits[None], torch.tensor([context])
        close = False
        for processor in processors(case, prompt_length, vocabulary):
            close = close or near_a_cut(scores, case)
            scores = processor(ids, scores)
        if not close:
            break
    probabilities = torch.softmax(scores, -1)[0].tolist()
    out.write(f"case {name}\n")
    for field, value in case.items():
        if field == "logit_bias":
            value = [part for pair in value for part in pair]
        out.write(f"{field} {' '.join(map(str, value)) if isinstance(value, list) else value}\n")
    out.write(f"prompt_length {prompt_length}\ncontext {' '.join(map(str, context))}\n")
    out.write(f"logits {' '.join(f'{x:.7g}' for x in logits.tolist())}\n")
    out.write(f"probabilities {' '.join(f'{p:.7g}' for p in probabilities)}\n\n")


def main():
    generator = random.Random(5)
    single = [
        {"temperature": 0.3}, {"temperature": 0.7}, {"temperature": 2.0},
        {"top_k": 1}, {"top_k": 7}, {"top_k": 30},
        {"top_p": 0.1}, {"top_p": 0.5}, {"top_p": 0.9}, {"top_p": 0.99},
        {"min_p": 0.02}, {"min_p": 0.2}, {"min_p": 0.7},
        {"repetition_penalty": 1.2}, {"repetition_penalty": 0.8}, {"repetition_penalty": 3.0},
        {"logit_bias": [[3, 2.5], [17, -4.0]]}, {"bad_ids": [0, 5, 9]}, {"allowed_ids": [2, 3, 11, 20]},
        {"min_tokens": 6, "eos_ids": [1, 4]},
    ]
    combined = [
        {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
        {"temperature": 1.5, "top_p": 0.8, "min_p": 0.05},
        {"temperature": 0.9, "top_k": 12, "min_p": 0.1},
        {"repetition_penalty": 1.3, "temperature": 0.8, "top_k": 16, "top_p": 0.95, "min_p": 0.02},
        {"logit_bias": [[8, 3.0]], "repetition_penalty": 1.1, "bad_ids": [2], "min_tokens": 4, "eos_ids": [1],
         "temperature": 1.2, "top_k": 24, "top_p": 0.85, "min_p": 0.01},
        {"allowed_ids": [1, 2, 3, 5, 8, 13, 21], "bad_ids": [8], "temperature": 0.6, "top_p": 0.7},
    ]
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    with open(GOLDEN, "w") as out:
        for case in single + combined:
            name = "+".join(field for field in case if field != "eos_ids")
            for repeat in range(2):
                write_case(out, name, case, 32, generator)
            write_case(out, name, case, 100, generator)
        # Large enough for the blocked loops and their remainders.
        for case in [{"top_p": 0.9}, {"top_k": 50, "top_p": 0.95}, combined[3]]:
            write_case(out, "large " + "+".join(case), case, 1111, generator)
    print(f"{GOLDEN}: {GOLDEN.stat().st_size} bytes")
