"""Measures on the shipped pair what Leviathan et al. (arXiv 2211.17192) report of theirs.

    .venv/bin/python bench/papers.py --corpus TEXT [--tokens 200] [--json build/bench/papers.json]

The target continues the prompts without drafting, at temperature 0 and 1. Both models then read these texts, so that p and q are known at
every position of an answer, and not only where a round judges a token. Other drafters draft one token after each of the text. Speeds with
lenience are those of the three services, in turns with plain decoding. TEXT is the text that unigrams and bigrams are counted in.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Unpack

import numpy as np
from outrider import Client, Completion, Options
from overlap import MODELS, PROGRAMS, ROOT, start_pair
from tokenizers import Tokenizer

TARGET, DRAFT = MODELS / "tiny-target", MODELS / "tiny-draft"
LENIENCES = (1, 0.5, 0.3, 0.1)  # those of Table 5
K, LONG_K = 4, 8
GUESS = 4  # most tokens that a hierarchical draft guesses at a time
DRAFTERS = ("model", "eagle", "medusa", "blockwise", "layer_skip", "pass", "ngram", "copy")
HEADS = [flag for folder in sorted((MODELS / "tiny-heads").iterdir()) for flag in ("--heads", str(folder))]
Rows = np.ndarray  # probabilities [positions, vocab]
Text = tuple[list[int], list[int]]  # tokens of a prompt and of its answer


def serve(stack: contextlib.ExitStack, *draft_flags: str) -> Client:
    """Starts the pair and connects to it."""
    return stack.enter_context(Client(start_pair(stack, str(TARGET), str(DRAFT), "--top-n=256", *draft_flags, target_flags=HEADS)))


def continued(client: Client, prompt: list[int], seed: int, temperature: float, tokens: int, **speculation: Unpack[Options]) -> Completion:
    """The answer to a prompt, of exactly `tokens` tokens."""
    return client.generate(prompt, temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True, **speculation)


def speed_of_lenience(client: Client, prompts: list[list[int]], temperature: float, lenience: float, tokens: int) -> dict[str, float]:
    """Tokens a call, and the median over the prompts of the speed relative to plain decoding."""
    ratios, emitted, rounds = [], 0, 0
    for seed, prompt in enumerate(prompts):
        plain = continued(client, prompt, seed, temperature, tokens, draft_tokens=0)
        lenient = continued(client, prompt, seed, temperature, tokens, drafter="model", draft_tokens=K, rule="token", lenience=lenience)
        ratios.append(plain.usage.decode_seconds / lenient.usage.decode_seconds)
        emitted += len(lenient.tokens)
        rounds += lenient.speculation.rounds
    return {"tokens_per_call": emitted / rounds, "speed": statistics.median(ratios)}


def accepted_everywhere(client: Client, texts: list[Text], temperature: float, drafter: str) -> float:
    """How often a token that is drafted after each token of the answers is accepted. One that is not drafted is not."""
    accepted = positions = 0
    for prompt, text in texts:
        for i in range(len(text)):
            rounds = continued(client, prompt + text[:i], i, temperature, 3, drafter=drafter, draft_tokens=1, rule="token", trace=True).trace
            accepted += next((each.accepted for each in rounds if each.drafted), 0)
            positions += 1
    return accepted / positions


def accepted_where_judged(client: Client, prompts: list[list[int]], temperature: float, drafter: str, tokens: int) -> float:
    """The accepted share of the drafted tokens up to the first that is rejected."""
    rounds = [each for seed, prompt in enumerate(prompts)
              for each in continued(client, prompt, seed, temperature, tokens, drafter=drafter, draft_tokens=K, rule="token", trace=True).trace]
    return sum(each.accepted for each in rounds) / sum(min(each.accepted + 1, len(each.drafted)) for each in rounds)


def draft_time(client: Client, prompt: list[int], seed: int, temperature: float, tokens: int) -> float:
    """Microseconds that the draft takes for each of its tokens."""
    rounds = continued(client, prompt, seed, temperature, tokens, drafter="model", draft_tokens=LONG_K, rule="token", trace=True).trace
    return sum(each.draft_compute_us for each in rounds) / sum(len(each.drafted) for each in rounds)


def hierarchical(client: Client, guessing: Client, prompts: dict[str, list[list[int]]], temperature: float, tokens: int) -> Iterator[dict]:
    """For each kind of prompts, the time of a drafted token if the draft guesses ahead, relative to the time if it does not."""
    for kind, some in prompts.items():
        ratios = [draft_time(guessing, prompt, seed, temperature, tokens) / draft_time(client, prompt, seed, temperature, tokens)
                  for seed, prompt in enumerate(some)]
        yield {"temperature": temperature, "prompts": kind, "draft_time_with_guesses": statistics.median(ratios)}


def distributions(model: Path, texts: list[Text]) -> Rows:
    """The model's distributions of the answers' tokens, at temperature 1."""
    steps = [[{"sequence": i, "tokens": (prompt + answer)[:-1], "logit_rows": len(answer)}] for i, (prompt, answer) in enumerate(texts)]
    found = subprocess.run([PROGRAMS / "bench_logits", model, "cpu", "auto"], input=json.dumps(steps).encode(), capture_output=True, check=True)
    logits = np.frombuffer(found.stdout, np.float32).reshape(sum(len(answer) for _, answer in texts), -1).astype(np.float64)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def greedy(rows: Rows) -> Rows:
    """Temperature 0: all probability on the likeliest token."""
    return np.eye(rows.shape[1])[rows.argmax(axis=1)]


def alpha(p: Rows, q: Rows) -> float:
    """The mean acceptance sum_x min(p, q) (Corollary 3.6)."""
    return float(np.minimum(p, q).sum(axis=1).mean())


def by_rejection_sampling(p: Rows, q: Rows) -> float:
    """The mean acceptance of rejection sampling, 1 / max_x p / q (appendix A.2)."""
    ratio = np.divide(p, q, out=np.where(p > 0, np.inf, 0), where=q > 0).max(axis=1)
    return float((1 / ratio).mean())


def with_lenience(p: Rows, q: Rows, lenience: float) -> dict[str, float]:
    """Acceptance when q is compared as lenience * q, and the total variation between p and what is emitted (appendix A.5)."""
    accepted = np.minimum(q, p / lenience)
    residual = np.maximum(p - q, 0)
    rejected = 1 - accepted.sum(axis=1, keepdims=True)
    emitted = accepted + rejected * residual / np.maximum(residual.sum(axis=1, keepdims=True), 1e-300)
    return {"alpha": float(accepted.sum(axis=1).mean()), "moved": float(np.abs(emitted - p).sum(axis=1).mean() / 2)}


def with_greedy_lenience(p: Rows, q: Rows, lenience: float) -> dict[str, float]:
    """The same at temperature 0, where a token is accepted if p(x) >= lenience * max p. p is still that of temperature 1."""
    every = np.arange(len(p))
    token, best = q.argmax(axis=1), p.argmax(axis=1)
    accepted = p[every, token] >= lenience * p[every, best]
    return {"alpha": float(accepted.mean()), "moved": float((accepted & (token != best)).mean())}


class Counts:
    """How often tokens, and pairs of them, occur in a text."""

    def __init__(self, ids: list[int], vocab: int) -> None:
        self.ids, self.vocab = np.array(ids), vocab
        self.unigrams = np.bincount(self.ids, minlength=vocab) / len(ids)

    def bigrams(self, before: list[int]) -> Rows:
        """The distributions of the tokens after these, by frequency; of all tokens after one that the text lacks."""
        rows = np.zeros((len(before), self.vocab))
        for row, token in zip(rows, before, strict=True):
            following = self.ids[1:][self.ids[:-1] == token]
            row[:] = np.bincount(following, minlength=self.vocab) / len(following) if len(following) else self.unigrams
        return rows


def measure(client: Client, prompts: list[list[int]], temperature: float, counts: Counts, tokens: int) -> Iterator[dict]:
    """The rows of a temperature: one for each draft, one for each drafter, and one for each lenience with the draft model."""
    texts = [(prompt, list(continued(client, prompt, seed, temperature, tokens, draft_tokens=0).tokens)) for seed, prompt in enumerate(prompts)]
    p, q = distributions(TARGET, texts), distributions(DRAFT, texts)
    before = [token for prompt, text in texts for token in [prompt[-1], *text[:-1]]]
    drafts = {"model": q, "bigram": counts.bigrams(before), "unigram": np.broadcast_to(counts.unigrams, p.shape)}
    law = greedy if temperature == 0 else lambda rows: rows
    wanted = law(p)
    for name, rows in drafts.items():
        proposed = law(rows)
        yield {"temperature": temperature, "draft": name, "alpha": alpha(wanted, proposed),
               "by_rejection_sampling": by_rejection_sampling(wanted, proposed)}
    for drafter in DRAFTERS:
        yield {"temperature": temperature, "drafter": drafter, "everywhere": accepted_everywhere(client, texts, temperature, drafter),
               "where_judged": accepted_where_judged(client, prompts, temperature, drafter, tokens)}
    lenient = with_greedy_lenience if temperature == 0 else with_lenience
    for lenience in LENIENCES:
        yield {"temperature": temperature, "lenience": lenience, **lenient(p, q, lenience),
               **speed_of_lenience(client, prompts, temperature, lenience, tokens)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="text that unigrams and bigrams are counted in")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each answer")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    prompts = {kind: [tokenizer.encode(prompt).ids for prompt in some["prompts"]]
               for kind, some in json.loads((ROOT / "bench/prompts.json").read_text()).items()}
    counts = Counts(tokenizer.encode(args.corpus.read_text(), add_special_tokens=False).ids, tokenizer.get_vocab_size())
    with contextlib.ExitStack() as stack:
        client, guessing = serve(stack), serve(stack, "--lookup-tokens", str(GUESS))
        rows = [row for temperature in (0, 1)
                for row in [*measure(client, prompts["prose"], temperature, counts, args.tokens),
                            *hierarchical(client, guessing, prompts, temperature, args.tokens)]]
    for row in rows:
        print(", ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
