"""Both laws for pairs of other families, with random weights and their kind of tokenizer, through the three processes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import BIN, PRECISE, ROOT, Cluster, cluster
from law import assert_law, law_after, sample
from models import random_model

TEXT = "Tyger Tyger, burning bright, in the cafe\u0301s of 1794"
TOKENIZERS = ROOT / "tests" / "data" / "text"
PADDING = 10  # of the targets' vocabularies
# Family, tokenizer, engine, padding of the draft's vocabulary.
PAIRS = {"qwen2": ("qwen2", "qwen", "native", PADDING), "qwen2, smaller draft": ("qwen2", "qwen", "native", 3),
         "qwen2, larger draft": ("qwen2", "qwen", "native", 40), "qwen3": ("qwen3", "qwen", "native", PADDING),
         "mistral": ("mistral", "mistral", "native", PADDING), "gemma2": ("gemma2", "gemma", "torch", PADDING)}


class Pair:
    def __init__(self, folder: Path, name: str) -> None:
        family, tokenizer, self.engine, draft_padding = PAIRS[name]
        if self.engine == "torch" and not (BIN / "liboutrider_torch.so").exists():
            pytest.skip("built without libtorch")
        path = TOKENIZERS / f"{tokenizer}.tokenizer.json"
        self.target = random_model(folder / "target", family, path, 2, PADDING)
        self.vocab = json.loads((self.target / "config.json").read_text())["vocab_size"]
        self.draft = random_model(folder / "draft", family, path, 1, draft_padding)


@pytest.fixture(params=PAIRS, scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def c(pair: Pair) -> Iterator[Cluster]:
    engine = ["--engine", pair.engine, *PRECISE]
    with cluster(target=["--model", str(pair.target), *engine], draft=["--model", str(pair.draft), *engine],
                 coordinator=["--tokenizer", str(pair.target)]) as running:
        yield running


def test_greedy_output_and_the_coupled_rules_are_the_same_with_every_draft_length(c: Cluster) -> None:
    accepted = 0
    for options in ({"temperature": 0}, {"rule": "coupled", "temperature": 0.8, "seed": 3}):
        plain, *others = [c.generate(TEXT, k=k, max_tokens=60, ignore_eos=True, **options) for k in (0, 1, 4)]
        assert len(plain.tokens) == 60
        for other in others:
            assert other.tokens == plain.tokens
            accepted += other.speculation.accepted
    assert accepted > 0


@pytest.mark.full
@pytest.mark.parametrize(("rule", "dense"), [("token", False), ("block", True)])
def test_samples_have_the_targets_distribution(rule: str, dense: bool, pair: Pair, c: Cluster) -> None:
    ids = [5, 300, 12]
    law = law_after(c, ids, 4, 3)
    seen = sample(c, ids, 3, 800, k=3, top_k=4, rule=rule, draft_top_n=pair.vocab if dense else 0)
    assert_law(seen, law)


def test_the_command_line_generates_the_same(pair: Pair, c: Cluster) -> None:
    command = [BIN / "outrider", "generate", TEXT, "--target-model", pair.target, "--draft-model", pair.draft, "--engine",
               pair.engine, "--dtype", "float32", "--temperature", "0", "--max-tokens", "20", "--ignore-eos", "--json"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    expected = c.generate(TEXT, k=0, temperature=0, max_tokens=20, ignore_eos=True)
    assert (answer["tokens"], answer["text"]) == (expected.tokens, expected.text)
