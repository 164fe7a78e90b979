"""Checkpoints in other forms: already quantised ones of the draft or of the target, and ones saved without the head's class."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness import BIN, DRAFT_MODEL, TARGET_MODEL, refusal, running, start_draft
from models import WEIGHTS, copy_of, edit, edit_tensors, quantised

COMMAND = ["generate", "The sea was calm that morning, and", "--temperature", "0", "--max-tokens", "60", "--threads", "1", "--json"]
FREE = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")


def generate(*flags: str) -> dict[str, Any]:
    done = subprocess.run([BIN / "outrider", *COMMAND, *flags], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_a_quantised_draft_drafts_for_a_plain_target(tmp_path: Path) -> None:
    pair = ("--target-model", str(TARGET_MODEL), "--draft-model", str(quantised(DRAFT_MODEL, tmp_path)))
    plain, drafted = generate(*pair, "--drafter", "none"), generate(*pair)
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["speculation"]["accepted"] > 0


def test_a_quantised_target_is_drafted_for(tmp_path: Path) -> None:
    pair = ("--target-model", str(quantised(TARGET_MODEL, tmp_path)), "--draft-model", str(DRAFT_MODEL))
    plain, drafted = generate(*pair, "--drafter", "none"), generate(*pair)
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["speculation"]["accepted"] > 0


def test_weights_whose_names_lack_the_prefix_are_the_models(tmp_path: Path) -> None:
    def strip(header: dict[str, Any], _: bytearray) -> None:
        for name in list(header):
            header[name.removeprefix("model.")] = header.pop(name)

    model = copy_of(TARGET_MODEL, tmp_path)
    edit_tensors(model / WEIGHTS, strip)
    plain, stripped = (generate("--target-model", str(each), "--drafter", "none") for each in (TARGET_MODEL, model))
    assert stripped["tokens"] == plain["tokens"]


def test_a_service_says_once_what_it_unpacks(tmp_path: Path) -> None:
    with running(start_draft(model=quantised(DRAFT_MODEL, tmp_path))) as [draft]:
        said, = draft.events("quantised weights unpacked")
        assert said["from"] == "compressed-tensors, int8, a scale for each row"
        assert said["to"] == draft.events("serving")[0]["dtype"]
    with running(start_draft()) as [draft]:
        assert not draft.events("quantised weights unpacked")


@pytest.mark.parametrize("method, how, culprit", [
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method", "bitsandbytes"),
    ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}, "version", "gemv")])
def test_what_cannot_be_unpacked_is_refused_by_name(method: dict[str, Any], how: str, culprit: str, tmp_path: Path) -> None:
    model = copy_of(DRAFT_MODEL, tmp_path)
    edit(model / "config.json", lambda config: config.update(quantization_config=method))
    line = refusal("outrider-draft", "--model", str(model), *FREE)
    assert f"config.json: quantization_config.{how} is \\\"{culprit}\\\"; supported: " in line
