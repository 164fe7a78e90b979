"""bench/sizes.py agrees with what is published of the models, and docs/sizing.md with bench/sizes.py."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import sizes  # noqa: E402

PUBLISHED = {"Llama 3.2 1B": 1.24e9, "Llama 3.2 3B": 3.21e9, "Llama 3.1 8B": 8.03e9, "Llama 3.1 70B": 70.6e9}


def differs(model: sizes.Shape) -> bool:
    """Whether the parameters differ from the published number by more than a percent."""
    return abs(model.parameters / PUBLISHED[model.name] - 1) > 0.01


@pytest.mark.parametrize("model", sizes.MODELS, ids=lambda model: model.name)
def test_parameters_are_those_that_are_published(model: sizes.Shape) -> None:
    assert not differs(model)
    wrong = [{"layers": model.layers + 1}, {"kv_heads": model.heads}, {"inner": model.inner + 512},
             {"tied": not model.tied}, {"head_dim": 3 * model.head_dim // 2}]
    assert all(differs(dataclasses.replace(model, **change)) for change in wrong), "a percent tells shapes apart"


@pytest.mark.parametrize("model", sizes.MODELS, ids=lambda model: model.name)
def test_ranks_share_all_but_embedding_and_norms(model: sizes.Shape) -> None:
    in_float32 = model.norms * (sizes.FLOAT32 - sizes.BFLOAT16)
    assert model.rank_bytes(1) == model.bytes + in_float32
    for ranks in (2, 4, 8):
        assert model.heads % ranks == model.kv_heads % ranks == model.inner % ranks == 0, "else it is refused"
        # Each further rank repeats the embedding, with which a tied last matrix shares its rows, and the norms.
        again = model.embedding * sizes.BFLOAT16 + model.norms * sizes.FLOAT32
        assert ranks * model.rank_bytes(ranks) == model.bytes + in_float32 + (ranks - 1) * again


def test_a_step_reads_each_weight_once_but_for_a_table_of_rows() -> None:
    assert sizes.LLAMA_1B.bytes_a_step == sizes.LLAMA_1B.bytes
    assert sizes.LLAMA_8B.bytes - sizes.LLAMA_8B.bytes_a_step == 128256 * 4096 * 2


def test_kv_bytes_are_those_of_the_page_on_gpus() -> None:
    rows = re.findall(r"^\| (Llama 3\.2 \dB) .*\| ([\d,]+) \| [\d.]+ GB \|$", (ROOT / "docs" / "gpu.md").read_text(), re.M)
    ours = {model.name: f"{model.kv_bytes:,}" for model in sizes.MODELS}
    assert len(rows) == 2 and all(ours[name] == there for name, there in rows)


def test_a_device_holds_weights_and_tokens_but_no_more() -> None:
    for model in sizes.MODELS:
        for ranks in sizes.RANKS:
            fit, memory = model.tokens(ranks, 80e9), model.rank_bytes(ranks)
            used = [memory + tokens * model.kv_bytes / ranks / sizes.KV_SHARE for tokens in (fit, fit + 1)]
            assert fit <= 0 or used[0] <= 80e9 < used[1]


def test_gains_are_those_of_the_library() -> None:
    """docs/papers.md has the output of common/spec/analysis.h for c = 0.1."""
    section = (ROOT / "docs" / "papers.md").read_text().partition("Speed at c = 0.1:")[2].partition("##")[0]
    rows = [[float(cell) for cell in row.split("|")[1:-1]] for row in re.findall(r"^\| 0.*$", section, re.M)]
    assert len(rows) == 5
    for alpha, *speeds, best, its_speed, _ in rows:
        assert [round(sizes.gain(alpha, k, 0.1), 2) for k in (2, 3, 5, 8)] == speeds
        assert (sizes.best_k(alpha, 0.1), round(sizes.gain(alpha, int(best), 0.1), 2)) == (best, its_speed)


def test_a_draft_as_slow_as_its_target_is_left_out() -> None:
    assert sizes.best_k(0.9, 1.0) == 0 and sizes.gain(0.9, 0, 1.0) == pytest.approx(1)


def test_the_page_has_the_tables() -> None:
    page = (ROOT / "docs" / "sizing.md").read_text()
    for made in (sizes.models(), sizes.pairs(), sizes.ranks(), sizes.shared()):
        assert made.count("\n") >= 3 and f"\n\n{made}\n\n" in page
