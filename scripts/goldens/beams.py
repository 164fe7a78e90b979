"""Beam search as transformers does it.

Writes
  tests/data/beams/tables.json  over tables of log-probabilities, which C++ can replay without a model
  tests/data/system/beams.json  with the shipped target, in float32, from prompts of prompts.json

torch.topk leaves the order of tied values open. Here the first one wins: the lowest token of the best beam.
"""

import json
import random

import paths
import torch
from transformers import (AutoTokenizer, GenerationMixin, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList,
                          PreTrainedConfig, PreTrainedModel)
from transformers.modeling_outputs import CausalLMOutput

TABLES = paths.DATA / "beams" / "tables.json"
PAIR = paths.DATA / "system" / "beams.json"

STOPS = {"auto": False, "first": True, "never": "never"}
PENALTIES = [1.0, 1.0, 0.0, 0.7, 2.0, -0.5]
# Log-probabilities are whole multiples of these, so sums are exact, even in float32: the order of addition does not matter.
FINE, COARSE = 2.0**-12, 0.5
SETTINGS_PER_TABLE = 9

PROMPTS = [0, 2, 5, 7, 9, 11, 13, 16, 18]
NEW_TOKENS = 24


def first_of_tied(values, k, dim=-1):
    ordered = torch.sort(values, dim=dim, descending=True, stable=True)
    return ordered.values.narrow(dim, 0, k), ordered.indices.narrow(dim, 0, k)


class TableModel(PreTrainedModel, GenerationMixin):
    """A model whose log-probabilities all come from a Table."""

    config_class = PreTrainedConfig

    def __init__(self, vocab_size):
        super().__init__(PreTrainedConfig(vocab_size=vocab_size))
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def prepare_inputs_for_generation(self, input_ids, attention_mask, **_):
        return {"input_ids": input_ids}

    def forward(self, input_ids, **_):
        return CausalLMOutput(logits=torch.zeros(*input_ids.shape, self.config.vocab_size))


class Table(LogitsProcessor):
    """The row depends on the last two tokens: (stride * one before + last) modulo the number of rows."""

    def __init__(self, seed, vocab, rows, stride, step):
        generator = torch.Generator().manual_seed(seed)
        logits = 2.5 * torch.randn(rows, vocab, generator=generator, dtype=torch.float64)
        self.steps = (logits.log_softmax(-1) / step).round().to(torch.int64)
        self.step, self.stride = step, stride

    def __call__(self, input_ids, scores):
        before = input_ids[:, -2] if input_ids.shape[1] > 1 else torch.zeros_like(input_ids[:, -1])
        rows = (self.stride * before + input_ids[:, -1]) % len(self.steps)
        return self.steps[rows].to(torch.float32) * self.step

    def json(self):
        return {"step": self.step, "stride": self.stride, "rows": self.steps.tolist()}


def search(model, prompt, case, **options):
    out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64), do_sample=False,
                         num_beams=case["width"], num_return_sequences=case["n"], length_penalty=case["penalty"],
                         early_stopping=STOPS[case["stop"]], max_new_tokens=case["max_tokens"], eos_token_id=case["eos"] or None,
                         pad_token_id=0, return_dict_in_generate=True, output_scores=True, **options)
    if case["width"] == 1:  # transformers treats this as greedy decoding
        tokens = out.sequences[0, len(prompt):]
        scores = [row[0].log_softmax(-1)[token].item() for row, token in zip(out.scores, tokens)]
        return [{"tokens": tokens.tolist(), "score": sum(scores) / len(tokens) ** case["penalty"]}]
    lengths = (out.beam_indices >= 0).sum(-1)
    return [{"tokens": sequence[len(prompt):len(prompt) + length].tolist(), "score": float(f"{score:.9g}")}
            for sequence, length, score in zip(out.sequences, lengths, out.sequences_scores.tolist())]


def tables():
    draw = random.Random(19)
    found = []
    for seed in range(15):
        vocab, step = draw.choice([8, 11, 16]), FINE if seed % 3 else COARSE
        table = Table(seed, vocab, draw.choice([vocab, 2 * vocab]), draw.choice([0, 3]), step)
        cases = []
        for _ in range(SETTINGS_PER_TABLE):
            eos = sorted(draw.sample(range(vocab), draw.choice([0, 1, 1, 2])))
            width = draw.randint(2, min(5, vocab - len(eos)))
            case = {"prompt": [draw.randrange(vocab) for _ in range(draw.randint(1, 3))], "width": width,
                    "n": draw.randint(1, width), "penalty": draw.choice(PENALTIES), "stop": draw.choice(list(STOPS)), "eos": eos,
                    "max_tokens": draw.choice([1, 2, 5, 12])}
            processors = LogitsProcessorList([table])
            case["answers"] = search(TableModel(vocab), case["prompt"], case, logits_processor=processors, use_cache=False)
            cases.append(case)
        found.append({**table.json(), "cases": cases})
    TABLES.parent.mkdir(parents=True, exist_ok=True)
    TABLES.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    answers = [answer["tokens"][-1] in case["eos"] for table in found for case in table["cases"] for answer in case["answers"]]
    print(f"{TABLES}: {sum(len(table['cases']) for table in found)} searches, {sum(answers)} of {len(answers)} answers end with an EOS")


def pair(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    exact = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    prompts = json.loads((paths.DATA / "system" / "prompts.json").read_text())
    comma, stop = (tokenizer.encode(text, add_special_tokens=False)[-1] for text in ("a,", "a."))
    draw = random.Random(7)
    cases = []
    for index, prompt in enumerate(PROMPTS):
        width = 1 + index % 5
        case = {"prompt": prompt, "width": width, "n": (width + 1) // 2, "penalty": draw.choice(PENALTIES),
                "stop": draw.choice(list(STOPS)), "eos": [tokenizer.eos_token_id, *([], [stop], [stop, comma])[index % 3]],
                "max_tokens": NEW_TOKENS}
        ids = tokenizer(prompts[prompt]).input_ids
        case["prompt_ids"] = ids
        case["answers"] = search(model, ids, case)
        same = [answer["tokens"] for answer in search(exact, ids, case)] == [answer["tokens"] for answer in case["answers"]]
        if not same:
            raise SystemExit(f"prompt {prompt}: two beams are so close that rounding decides; choose another")
        cases.append(case)
    PAIR.write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    print(f"{PAIR}: {len(cases)} searches")


def main(folder):
    torch.set_num_threads(1)
    torch.topk = first_of_tied
    tables()
    pair(folder)
