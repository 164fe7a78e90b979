"""SmolLM2, a published model in a GGUF file, can be named in every way, and answers as transformers does."""

import hashlib
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from harness import BIN, DATA, LENGTH, PATIENCE, STOP, Answer, Cluster, cluster, inference_pb2, refusal, request
from published import HEADS, SHIPPED, shipped_draft, smollm2
from test_command_line import up

FREE = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
ALIKE = ("--dtype", "float32", "--threads", "1")
PATIENT = ("--draft-budget", "60")  # a draft as slow as the target is late on a busy machine
HUB_NAME = "org/smollm2"


@pytest.fixture(scope="module")
def model() -> Path:
    return smollm2()


@pytest.fixture(scope="module")
def goldens(model: Path) -> list[dict[str, Any]]:
    goldens = json.loads((DATA / "smollm2.json").read_text())
    assert goldens["file_sha256"] == hashlib.sha256(model.read_bytes()).hexdigest(), "scripts/goldens smollm2 makes them anew"
    return goldens["answers"]


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Cluster]:
    with cluster(target=("--model", str(model), *ALIKE, *HEADS), draft=shipped_draft(),
                 coordinator=("--tokenizer", str(model), *PATIENT)) as c:
        yield c


@pytest.fixture
def served_in_one_pass(model: Path) -> Iterator[Cluster]:
    """Its draft drafts four tokens in one pass."""
    with cluster(target=("--model", str(model), *ALIKE), draft=(*shipped_draft("parallel-draft.gguf"), "--parallel-draft", "4"),
                 coordinator=("--tokenizer", str(model), *PATIENT)) as c:
        yield c


@pytest.fixture
def hub(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hugging Face's cache as `hf download` leaves it. Returns the folder of the repository."""
    repository = tmp_path / "models--org--smollm2"
    snapshot = repository / "snapshots" / ("0123456789" * 4)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "hash").symlink_to(model)
    (snapshot / model.name).symlink_to("../../blobs/hash")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return repository


def ask(c: Cluster, golden: dict[str, Any], **options: Any) -> Answer:
    wanted = request(golden.get("text", ""), temperature=0, max_tokens=32, **options)
    if "chat" in golden:
        wanted.chat.messages.extend(inference_pb2.ChatMessage(**message) for message in golden["chat"])
    answer = Answer()
    for chunk in c.stub.Generate(wanted, timeout=PATIENCE):
        answer.add(chunk)
    return answer.check()


def assert_answers(c: Cluster, goldens: list[dict[str, Any]], way: dict[str, Any]) -> None:
    assert len(goldens) == 16
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda golden: ask(c, golden, **way), goldens))
    for golden, answer in zip(goldens, answers, strict=True):
        assert answer.finish.usage.prompt_tokens == len(golden["prompt_ids"]), golden
        assert (answer.tokens, answer.text) == (golden["tokens"], golden["answer"]), golden
        assert answer.reason == (LENGTH if len(answer.tokens) == 32 else STOP)
    accepted = sum(answer.speculation.accepted for answer in answers)
    assert accepted > 0 or way.get("k", way.get("tree")) in (0, None), "none of what was drafted stood"


@pytest.mark.parametrize("way", [{"k": 0}, {"drafter": "ngram"}, {"drafter": "copy"}, {"drafter": "auto"},
                                 *({"drafter": drafter} | how for drafter in ("model", "eagle") for how in ({"k": 4}, {"tree": "2x2x1"}))],
                         ids=str)
def test_sixteen_greedy_answers_are_those_of_transformers(way: dict[str, Any], served: Cluster, goldens: list[dict[str, Any]]) -> None:
    assert_answers(served, goldens, way)


def test_sixteen_greedy_answers_are_those_of_transformers_with_a_draft_in_one_pass(served_in_one_pass: Cluster,
                                                                                   goldens: list[dict[str, Any]]) -> None:
    assert_answers(served_in_one_pass, goldens, {"drafter": "model", "k": 4})


def test_what_is_shipped_is_small() -> None:
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file()) <= 32e6


def test_a_draft_of_layers_alone_names_what_it_lacks() -> None:
    line = refusal("outrider-draft", "--model", str(SHIPPED / "draft.gguf"), *FREE)
    assert "token_embd.weight is missing" in line and "LAYERS.gguf+FILE.gguf" in line


def test_weights_that_stay_packed_answer_alike_with_and_without_a_draft(model: Path, goldens: list[dict[str, Any]]) -> None:
    with cluster(target=("--model", str(model), "--dtype", "auto"), draft=("--model", str(model), "--dtype", "auto"),
                 coordinator=("--tokenizer", str(model), *PATIENT)) as c:
        assert c.target.events("serving")[0]["dtype"] == "packed"
        assert not c.target.events("quantised weights unpacked")
        for golden in goldens[:4]:
            plain, drafted = (ask(c, golden, k=k) for k in (0, 4))
            assert plain.tokens == drafted.tokens and drafted.speculation.accepted > 0
            assert plain.tokens[:2] == golden["tokens"][:2], "operands are rounded, so later ones may differ"


def test_one_command_generates_from_a_file(model: Path, goldens: list[dict[str, Any]]) -> None:
    done = subprocess.run([BIN / "outrider", "generate", "--model", model, "--temperature", "0", "--max-tokens", "32", *ALIKE,
                           "--json", goldens[0]["text"]], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, f"note: no --draft-model for {model}: drafting with n-grams\n")
    assert json.loads(done.stdout)["text"] == goldens[0]["answer"]


def test_one_command_drafts_four_tokens_in_one_pass(model: Path, goldens: list[dict[str, Any]]) -> None:
    _, draft, *frequent = shipped_draft("parallel-draft.gguf")
    done = subprocess.run([BIN / "outrider", "generate", "--model", model, "--draft-model", draft, *frequent, "--parallel-draft", "4",
                           "--drafter", "model", "--temperature", "0", "--max-tokens", "32", *ALIKE, "--json", goldens[0]["text"]],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["text"] == goldens[0]["answer"] and answer["speculation"]["accepted"] > 0


@pytest.mark.parametrize("by_hub_name", [False, True])
def test_one_command_serves_conversations(by_hub_name: bool, model: Path, hub: Path, goldens: list[dict[str, Any]]) -> None:
    name = HUB_NAME if by_hub_name else str(model)
    golden = next(golden for golden in goldens if "chat" in golden)
    with up(models=dict(zip(("--model", *ALIKE[::2]), (name, *ALIKE[1::2])))) as u:
        client = openai.OpenAI(base_url=u.wait_for_line(r"OpenAI's API: (\S+)$")[1], api_key="none", max_retries=0,
                               timeout=PATIENCE)
        served, = client.models.list()
        assert served.id == model.stem
        answer = client.chat.completions.create(model=served.id, messages=golden["chat"], temperature=0, max_tokens=32)
        assert answer.choices[0].message.content == golden["answer"]


@pytest.mark.parametrize("program, flag", [("outrider-target", "--model"), ("outrider-draft", "--model"),
                                           ("outrider-coordinator", "--tokenizer")])
@pytest.mark.parametrize("name, how", [("org/other", "org/other"), (f"{HUB_NAME}@v2", f"{HUB_NAME} --revision v2"),
                                       (f"{HUB_NAME}:other.gguf", f"{HUB_NAME} other.gguf")])
def test_what_the_cache_lacks_comes_with_the_command_that_fetches_it(program: str, flag: str, name: str, how: str, hub: Path) -> None:
    line = refusal(program, flag, name, *FREE)
    assert f"no model at {name} (" in line and f"hf download {how})" in line


def test_a_command_line_says_so_too(hub: Path) -> None:
    assert refusal("outrider", "generate", "--model", "org/other", "Hello").endswith("; to fetch it: hf download org/other)")


@pytest.mark.parametrize("size", [100, 1_000_000, 50_000_000])
def test_a_file_that_is_cut_off_is_named(size: int, model: Path, tmp_path: Path) -> None:
    """The file ends in its header, in its vocabulary, or in its weights, which the coordinator does not need."""
    cut = tmp_path / "cut.gguf"
    with model.open("rb") as whole:
        cut.write_bytes(whole.read(size))
    assert str(cut) in refusal("outrider-target", "--model", str(cut), *FREE)
    if size < 50_000_000:
        assert str(cut) in refusal("outrider-coordinator", "--tokenizer", str(cut), *FREE)
