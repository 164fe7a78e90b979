"""The conversations that converse.py wrote, as tokens, and the target's states for them."""

import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from optim import DTYPE
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

HELD_OUT = 40  # one conversation in this many is never trained on
TAPS = (2, 15, 27)  # numbers of layers after which EAGLE-3 reads the residual stream
MASK = 3  # a token that no conversation has, <repo_name>; it stands for those that a draft has not drawn yet
ROPE_THETA = 1e5  # the target's, and EAGLE's
BATCH = 2048  # tokens that the target reads at once
COLUMNS = 2048  # of the head's logits computed at once, so that they fit a processor's cache


def load_target(file: Path) -> nn.Module:
    """The weights of a GGUF file, unpacked."""
    unpacked = GgufConfig(gguf_file=file.name, dequantize=True)
    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, quantization_config=unpacked,
                                                dtype=DTYPE).eval()


def fast_products() -> torch.autocast:
    """A context in which matrices are multiplied in DTYPE."""
    return torch.autocast("cpu", torch.bfloat16, enabled=DTYPE == torch.bfloat16)


def normalised(question: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in question.lower()).split())


class Lesson:
    """The tokens of a conversation, whose answer begins at `begin`; the states of its tokens begin at `at`."""

    def __init__(self, tokens: list[int], begin: int, at: int, held_out: bool) -> None:
        self.tokens, self.begin, self.at, self.held_out = tokens, begin, at, held_out

    @property
    def judged(self) -> slice:
        """The states that predict the answer's tokens."""
        return slice(self.at + self.begin - 1, self.at + len(self.tokens) - 1)


def read_lessons(file: Path, target: Path, longest: int) -> list[Lesson]:
    """Lessons in the order of the file. Each question appears once at each temperature, whatever its case and punctuation."""
    tokenizer = AutoTokenizer.from_pretrained(target.parent, gguf_file=target.name)
    lessons: list[Lesson] = []
    seen: set[tuple[str, int]] = set()
    at = 0
    for line in file.open():
        record = json.loads(line)
        key = (normalised(record["question"]), record.get("temperature", 0))
        if not record.get("answer") or key in seen:
            continue
        seen.add(key)
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": record["question"]}],
                                               add_generation_prompt=True, tokenize=False)
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        tokens = (ids + record["answer"])[:longest]
        if len(tokens) > len(ids):
            lessons.append(Lesson(tokens, len(ids), at, record["id"] % HELD_OUT == 0))
            at += len(tokens)
    return lessons


def batches(lessons: list[Lesson], tokens: int, seed: int) -> list[list[Lesson]]:
    """Batches of lessons with similar lengths, of at most about `tokens` tokens with padding, in random order."""
    shuffled = random.Random(seed)
    order = sorted(lessons, key=lambda lesson: (len(lesson.tokens) + shuffled.random() * 32))
    made: list[list[Lesson]] = []
    for lesson in order:
        if not made or (len(made[-1]) + 1) * len(lesson.tokens) > tokens:
            made.append([])
        made[-1].append(lesson)
    shuffled.shuffle(made)
    return made


def padded(batch: list[Lesson]) -> tuple[Tensor, Tensor]:
    """Tokens [lessons, width], and a mask of those whose next token is an answer's."""
    width = max(len(lesson.tokens) for lesson in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    judged = torch.zeros(len(batch), width, dtype=torch.bool)
    for row, lesson in enumerate(batch):
        ids[row, : len(lesson.tokens)] = torch.tensor(lesson.tokens)
        judged[row, lesson.begin - 1 : len(lesson.tokens) - 1] = True
    return ids, judged


def log_sums_of(h: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
    """For each row of logits: the logarithm of the sum of their exponentials, and the largest logit."""
    log_sums, largest = [], []
    for columns in head.split(COLUMNS):
        logits = nn.functional.linear(h, columns).float()
        largest.append(logits.amax(-1))
        log_sums.append(largest[-1] + logits.sub_(largest[-1][:, None]).exp_().sum(-1).log())
    return torch.stack(log_sums).logsumexp(0), torch.stack(largest).amax(0)


class States:
    """The target's states for each token of the lessons, in files that are filled once and continued where they ended.

    For each token: h, the output of the final norm [hidden], and the streams after TAPS, [taps * hidden]. If the next
    token is an answer's, also the largest logit, and the logarithm of the sum of all logits' exponentials. The lessons must
    begin with those of earlier runs.
    """

    def __init__(self, folder: Path, lessons: list[Lesson], hidden: int) -> None:
        tokens = lessons[-1].at + len(lessons[-1].tokens)
        folder.mkdir(parents=True, exist_ok=True)

        def array(name: str, dtype: torch.dtype, count: int) -> Tensor:
            return torch.from_file(str(folder / name), True, count, dtype=dtype)

        self.h = array("h.bin", torch.bfloat16, tokens * hidden).view(tokens, hidden)
        self.taps = array("taps.bin", torch.bfloat16, tokens * hidden * len(TAPS)).view(tokens, -1)
        self.log_sums = array("log-sums.bin", torch.float32, tokens)
        self.largest = array("largest.bin", torch.float32, tokens)
        self.known = array("known.bin", torch.uint8, tokens)

    @torch.no_grad()
    def fill(self, target: nn.Module, lessons: list[Lesson]) -> None:
        missing = [lesson for lesson in lessons if not self.known[lesson.at]]
        todo = batches(missing, BATCH, 0)
        for done, batch in enumerate(todo):
            ids, _ = padded(batch)
            streams = target.model(ids, use_cache=False, output_hidden_states=True).hidden_states
            for row, lesson in enumerate(batch):
                at, length = slice(lesson.at, lesson.at + len(lesson.tokens)), len(lesson.tokens)
                self.h[at] = streams[-1][row, :length]
                self.taps[at] = torch.cat([streams[tap][row, :length] for tap in TAPS], -1)
                self.log_sums[lesson.judged], self.largest[lesson.judged] = log_sums_of(
                    streams[-1][row, lesson.begin - 1 : length - 1], target.lm_head.weight)
                self.known[at] = 1
            if done % 50 == 0:
                print(f"states: {done} of {len(todo)} batches", flush=True)

    def of_answers(self, batch: list[Lesson]) -> tuple[Tensor, Tensor, Tensor]:
        """h, log_sums and largest of the judged tokens, lesson after lesson."""
        h, log_sums, largest = ([rows[lesson.judged] for lesson in batch] for rows in (self.h, self.log_sums, self.largest))
        return torch.cat(h).to(DTYPE), torch.cat(log_sums), torch.cat(largest)


def same_best(p: Tensor, log_q: Tensor, best: Tensor) -> Tensor:
    """For each row of frequent tokens, whether q's likeliest token is the target's, whose probability is `best`."""
    at_q = p.gather(1, log_q.argmax(-1, keepdim=True))[:, 0]
    return at_q >= 0.999 * best  # the two were rounded to bfloat16 differently


def frequent_tokens(lessons: list[Lesson], vocab: int, count: int, file: Path) -> Tensor:
    """The most frequent tokens of the answers that are trained on, in ascending order. If an earlier run wrote `file`, its
    tokens are used; otherwise they are written to `file`, the most frequent first."""
    if not file.exists():
        counts = np.zeros(vocab, dtype=np.int64)
        for lesson in lessons:
            if not lesson.held_out:
                counts += np.bincount(lesson.tokens[lesson.begin :], minlength=vocab)
        order = np.argsort(-counts, kind="stable")[:count]
        print(f"{len(lessons)} lessons, {counts.sum()} tokens of answers; {count} of them are "
              f"{counts[order].sum() / counts.sum():.4f} of these", flush=True)
        file.write_text(json.dumps({"tokens": order.tolist()}) + "\n")
    return torch.tensor(sorted(json.loads(file.read_text())["tokens"]))
