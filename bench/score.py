#!/usr/bin/env python3
"""Scores a model with EleutherAI's lm-evaluation-harness, through the API and with transformers; the scores must be equal.

    BENCH_PYTHON bench/score.py FILE.gguf

BENCH_PYTHON is a Python with the packages of models/train/requirements.txt, lm_eval[api]==0.4.13, accelerate==1.15.0 and gguf==0.19.0.
Starts `outrider up` with the file in float32 and asks it as the harness's `local-completions`; then has transformers unpack the same file
for the harness's `hf` model in float32. The tasks use the longest text in the corpus of models/train: choose which of four sentences comes
next, and score whole passages. Exits with status 1 if a score differs by more than rounding.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.api.model import LM
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("OUTRIDER_BIN", ROOT / "build" / "release" / "bin"))
QUESTIONS, PASSAGES, CHOICES = 60, 12, 4
TOLERANCE = 1e-3  # relative

NEXT_SENTENCE = {
    "task": "next_sentence", "output_type": "multiple_choice", "test_split": "test", "doc_to_text": "{{context}}",
    "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}
PASSAGE = {
    "task": "passage", "output_type": "loglikelihood_rolling", "test_split": "test", "doc_to_text": "", "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]}


def corpus() -> str:
    with tarfile.open(ROOT / "models" / "train" / "corpus.tar.xz") as archive:
        texts = [archive.extractfile(member).read().decode() for member in archive if member.isfile()]
    return re.sub(r"\s+", " ", max(texts, key=len))


def write_tasks(folder: Path) -> list[str]:
    """Tasks of the harness with their data; the same each time. Returns their names."""
    rng = random.Random(1)
    sentences = [sentence for sentence in re.split(r"(?<=[.!?]) (?=[A-Z])", corpus()) if 40 < len(sentence) < 200]

    def question() -> dict:
        first = rng.randrange(len(sentences) - 4)
        choices = [sentences[first + 3], *rng.sample(sentences, CHOICES - 1)]
        answer = rng.randrange(CHOICES)
        choices[0], choices[answer] = choices[answer], choices[0]
        return {"context": " ".join(sentences[first:first + 3]), "choices": choices, "answer": answer}

    def passage() -> dict:
        first = rng.randrange(len(sentences) - 20)
        return {"text": " ".join(sentences[first:first + 20])}

    for task, rows in ((NEXT_SENTENCE, [question() for _ in range(QUESTIONS)]), (PASSAGE, [passage() for _ in range(PASSAGES)])):
        data = folder / f"{task['task']}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        whole = task | {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
        (folder / f"{task['task']}.yaml").write_text(json.dumps(whole))  # JSON is YAML too
    return [NEXT_SENTENCE["task"], PASSAGE["task"]]


def scores(model: str | LM, tasks: list[str], folder: Path, arguments: dict | None = None) -> dict[tuple[str, str], float]:
    found = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=tasks, batch_size=1, bootstrap_iters=0,
                                    task_manager=TaskManager(include_path=str(folder), include_defaults=False))
    return {(task, metric.removesuffix(",none")): value for task, metrics in found["results"].items() for metric, value in metrics.items()
            if isinstance(value, float)}


def through_the_api(model: Path, tokenizer: Path, tasks: list[str], folder: Path) -> dict[tuple[str, str], float]:
    flags = ["--model", model, "--dtype", "float32", "--served-model-name", "model", "--http-listen", "127.0.0.1:0"]
    with subprocess.Popen([BIN / "outrider", "up", *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as up:
        try:
            said = []
            for line in up.stdout:
                said.append(line)
                if address := re.search(r"(http://\S+/v1)$", line.strip()):
                    break
            else:
                sys.exit("".join(said))
            return scores("local-completions", tasks, folder, {
                "model": "model", "base_url": f"{address[1]}/completions", "tokenizer": str(tokenizer), "num_concurrent": 1,
                "max_length": 2048})
        finally:
            up.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE.gguf", help="GGUF file to score")
    file = parser.parse_args().file.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tasks = write_tasks(folder)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        tokenizer.save_pretrained(folder / "tokenizer")
        ours = through_the_api(file, folder / "tokenizer", tasks, folder)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32")
        theirs = scores(HFLM(pretrained=model, tokenizer=tokenizer), tasks, folder)
    print(f"{'task':16} {'metric':18} {'Outrider':>12} {'transformers':>12}")
    for (task, metric), score in theirs.items():
        print(f"{task:16} {metric:18} {ours[task, metric]:12.6f} {score:12.6f}")
    if ours.keys() != theirs.keys() or any(abs(ours[key] - score) > TOLERANCE * abs(score) for key, score in theirs.items()):
        sys.exit("score: they differ")


if __name__ == "__main__":
    main()
