"""The first law for every configuration of speculation, and that a seed gives the same answer in any batch.

tests/system/test_first_law.py has a case of each feature, and the faults.
"""

import itertools
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import DRAFT_MODEL, DTYPES, FULL, Cluster, cluster, corpus_prompts, full
from heads import FLAGS, PROPOSERS

# bench/gpu/run --dry tries the harness with a few prompts.
PROMPTS, TOKENS = int(os.environ.get("OUTRIDER_TEST_PROMPTS", "40")), 20
KS = [0, 1, 2, 4, 8]
RULES = ["token", "block", "coupled"]
DRAFTERS = ["model", "ngram", "copy", "auto", *PROPOSERS]
SCHEDULES = ["lockstep", "run_ahead", "auto"]
TREES = ["none", "2x2x1", "chains:3", "budget:8", "auto"]
AT_ONCE = 16
# In mixed batches, each configuration gets one prompt in STRIDE.
STRIDE = 4 if FULL else 16

Call = tuple[str, dict[str, Any]]


def tree_of(number: int, drafter: str, rule: str) -> str:
    """A tree, or "none" where the drafter or the rule takes no tree."""
    return TREES[number % len(TREES)] if drafter in ("model", *PROPOSERS) and rule != "block" else "none"


# Only the engine depends on the dtype, and its own tests cover all dtypes.
in_one = pytest.mark.parametrize("everything", [DTYPES[0], full(DTYPES[1])], indirect=True)
in_both = pytest.mark.parametrize("everything", DTYPES, indirect=True)


@pytest.fixture(scope="module")
def everything(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster with all drafters and enough time for each proposal, however busy the machine is."""
    flags = ("--dtype", request.param, "--threads", "2")
    with cluster(target=(*flags, *FLAGS), draft=flags, coordinator=["--draft-budget", "60"]) as c:
        yield c


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    return corpus_prompts(PROMPTS)


@pytest.fixture(scope="module")
def plain(everything: Cluster, prompts: list[str]) -> list[list[int]]:
    """The answers without a draft, one at a time."""
    return [everything.generate(prompt, k=0, temperature=0, max_tokens=TOKENS, ignore_eos=True).tokens
            for prompt in prompts]


@in_one
@pytest.mark.parametrize("k", KS[1:])
def test_greedy_one_at_a_time(k: int, everything: Cluster, prompts: list[str], plain: list[list[int]]) -> None:
    for prompt, tokens in zip(prompts, plain, strict=True):
        answer = everything.generate(prompt, k=k, temperature=0, max_tokens=TOKENS, ignore_eos=True)
        assert answer.tokens == tokens, prompt


@in_one
def test_greedy_in_mixed_batches_with_every_drafter_rule_and_length(everything: Cluster, prompts: list[str],
                                                                    plain: list[list[int]]) -> None:
    ways = list(itertools.product(DRAFTERS, RULES, KS))
    # Each prompt gets another part of the configurations, and neighbours differ.
    chosen = [(way, index) for number, way in enumerate(ways) for index in range(number % STRIDE, PROMPTS, STRIDE)]
    chosen.sort(key=lambda pair: (pair[1] * 31 + ways.index(pair[0]) * 17) % 101)
    calls: list[Call] = [(prompts[index], {"drafter": drafter, "rule": rule, "k": k, "temperature": 0,
                                           "schedule": SCHEDULES[number % 3], "tree": tree_of(number, drafter, rule),
                                           "max_tokens": TOKENS, "ignore_eos": True})
                         for number, ((drafter, rule, k), index) in enumerate(chosen)]
    answers = everything.generate_all(calls, AT_ONCE)
    for (way, index), answer in zip(chosen, answers, strict=True):
        assert answer.tokens == plain[index], (way, prompts[index])
    accepted = {drafter: sum(answer.speculation.accepted for (way, _), answer in zip(chosen, answers, strict=True)
                             if way[0] == drafter) for drafter in DRAFTERS}
    assert all(accepted[drafter] > 0 for drafter in DRAFTERS), accepted
    assert sum(answer.speculation.tree_rounds for answer in answers) > 100


def sampled_calls(prompts: list[str], count: int, drafters: Sequence[str] = ("model", "ngram", "copy")) -> list[Call]:
    """Requests that differ in everything that a sampled answer may depend on, and in what it must not depend on."""
    ways = itertools.cycle(itertools.product(drafters, RULES, [1, 3, 5, 0]))
    return [(prompts[i % len(prompts)],
             {"drafter": drafter, "rule": rule, "k": k, "schedule": SCHEDULES[i % 3],
              "tree": tree_of(i // 2, drafter, rule).replace("auto", "none"),  # "auto" depends on times
              "temperature": [0.7, 1.0, 1.3][i % 3], "top_k": [0, 20][i % 2],
              "seed": 1000 + i, "max_tokens": 16 + i % 9, "ignore_eos": True})
            for i, (drafter, rule, k) in zip(range(count), ways)]


@in_both
def test_a_seed_gives_the_same_answer_alone_and_among_32(everything: Cluster, prompts: list[str]) -> None:
    calls = sampled_calls(prompts, 128, ["model", "ngram", "copy", *PROPOSERS])
    alone = [everything.generate(prompt, **options).tokens for prompt, options in calls]
    together = everything.generate_all(calls, 32)
    for (prompt, options), one, other in zip(calls, alone, together, strict=True):
        assert other.tokens == one, (prompt, options)


@in_one
def test_and_after_its_cache_was_lost(everything: Cluster, prompts: list[str]) -> None:
    calls = sampled_calls(prompts, 32)
    alone = [everything.generate(prompt, **options).tokens for prompt, options in calls]
    dtype = next(e["dtype"] for e in everything.target.events("serving"))
    # There are blocks for a few sequences: the others are preempted and sent again, over and over.
    flags = ("--dtype", dtype, "--threads", "2")
    with cluster(target=(*flags, "--kv-blocks", "40"), draft=flags, coordinator=["--draft-budget", "60"]) as c:
        together = c.generate_all(calls, 16)
        assert c.target.value("outrider_target_preemptions_total") > 0
    for (prompt, options), one, other in zip(calls, alone, together, strict=True):
        assert other.tokens == one, (prompt, options)


@in_one
def test_the_coupled_rule_gives_the_same_answer_with_every_drafter_and_length(everything: Cluster,
                                                                              prompts: list[str]) -> None:
    ways = list(itertools.product(DRAFTERS, KS))
    calls = [(prompt, {"drafter": drafter, "rule": "coupled", "k": k, "temperature": 0.9, "seed": seed,
                       "schedule": SCHEDULES[number % 3], "tree": tree_of(number + seed, drafter, "coupled"),
                       "max_tokens": TOKENS, "ignore_eos": True})
             for seed, prompt in enumerate(prompts[:6]) for number, (drafter, k) in enumerate(ways)]
    answers = everything.generate_all(calls, AT_ONCE)
    for first in range(0, len(calls), len(ways)):
        same = {tuple(answer.tokens) for answer in answers[first:first + len(ways)]}
        assert len(same) == 1, calls[first][0]


def untrained(model: Path, folder: Path) -> Path:
    """The same model with random matrices: its proposals are useless."""
    shutil.copytree(model, folder)
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    rng = np.random.default_rng(1)
    for name, tensor in header.items():
        if name != "__metadata__" and len(tensor["shape"]) == 2:
            assert tensor["dtype"] == "BF16"
            begin, end = (8 + size + offset for offset in tensor["data_offsets"])
            values = rng.normal(scale=0.05, size=(end - begin) // 2).astype(np.float32)
            data[begin:end] = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    file.chmod(0o644)
    file.write_bytes(data)
    return folder


@in_one
def test_even_with_a_draft_that_knows_nothing(everything: Cluster, prompts: list[str], tmp_path: Path) -> None:
    options = {"rule": "coupled", "temperature": 1.0, "max_tokens": TOKENS, "ignore_eos": True}
    expected = [everything.generate(prompt, k=4, seed=5, **options).tokens for prompt in prompts[:8]]
    dtype = next(e["dtype"] for e in everything.target.events("serving"))
    draft = ("--model", str(untrained(DRAFT_MODEL, tmp_path / "untrained")))
    with cluster(target=("--dtype", dtype), draft=draft) as c:
        answers = [c.generate(prompt, k=4, seed=5, **options) for prompt in prompts[:8]]
    assert [answer.tokens for answer in answers] == expected
    drafted = sum(answer.speculation.drafted for answer in answers)
    assert drafted > 0 and sum(answer.speculation.accepted for answer in answers) < 0.05 * drafted
