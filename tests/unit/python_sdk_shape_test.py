"""The Python SDK against the protos: it covers all of them, and its type annotations match its behaviour."""

import dataclasses
import hashlib
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import outrider
import pytest
from google.protobuf.descriptor import Descriptor
from outrider import Client, Options
from outrider._request import build_request
from outrider.v1 import inference_pb2, sequence_pb2

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "python" / "src" / "outrider"
INSTALLED = Path(find_spec("outrider").origin).parent


def fields(*messages: Descriptor) -> set[str]:
    return {field.name for message in messages for field in message.fields}


def test_what_is_installed_is_what_is_here() -> None:
    def digests(folder: Path) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.py*")}

    assert digests(INSTALLED) == digests(SOURCES), "scripts/install brings the package up to date"


def test_the_package_has_the_version_of_the_services() -> None:
    project = re.search(r"project\(outrider VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
    assert outrider.__version__ == project[1]


# An option for each field of a request, set to a value other than the default.
EVERY = {
    "max_tokens": 9, "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.25, "repetition_penalty": 1.5,
    "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {5: 1.5, 7: -2.0}, "allowed_ids": [1, 2],
    "bad_ids": [3], "min_tokens": 2, "regex": "a+", "seed": 2**64 - 1, "sample_index": 4, "stop": ["a", "b"], "stop_token_ids": [6],
    "ignore_eos": True, "drafter": "ngram", "draft_tokens": 0, "rule": "block", "schedule": "run_ahead", "tree": "2x2",
    "sibling_order": "random", "draft_top_n": 8,
    "prediction": "a text", "draft_temperature": 0.5, "lenience": 0.5, "max_context": 99, "beam_width": 4,
    "beam_draft_width": 8, "length_penalty": 0.5, "beam_stop": "never", "logprobs": 0, "logprobs_before_controls": True, "prompt_logprobs": 0,
    "echo": True, "trace": True, "resume_from": [8, 9],
}

OTHER_GRAMMARS = {"json_schema": {"b": 1, "a": 2}, "choices": ["yes", "no"], "grammar": 'root ::= "a"',
                  "structural_tag": {"type": "structural_tag"}}

OF_A_CONVERSATION = {"chat_template_kwargs": {"enable_thinking": False}, "continue_final_message": True,
                     "tools": [{"type": "function", "function": {"name": "f"}}]}


def test_every_field_of_a_request_can_be_set() -> None:
    request = build_request("x", 2, EVERY)
    assert EVERY.keys() | OTHER_GRAMMARS.keys() | OF_A_CONVERSATION.keys() == Options.__annotations__.keys()
    for message in (request, request.sampling, request.stop, request.speculation, request.logprobs):
        missing = fields(message.DESCRIPTOR) - {field.name for field, _ in message.ListFields()}
        assert missing == ({"tokens", "chat"} if message is request else set())
    assert {entry.token: entry.bias for entry in request.sampling.logit_bias} == EVERY["logit_bias"]
    assert (request.speculation.drafter, request.speculation.rule) == (
        inference_pb2.DRAFTER_KIND_NGRAM, sequence_pb2.RULE_BLOCK)
    assert build_request([1, 2], 1, {}).tokens.ids == [1, 2]
    talk = [{"role": "system", "content": "Short."}, {"role": "user", "content": "Hello"}]
    chat = build_request(talk, 1, OF_A_CONVERSATION).chat
    assert {field.name for field, _ in chat.ListFields()} == fields(chat.DESCRIPTOR)
    assert chat.chat_template_kwargs == '{"enable_thinking": false}'
    assert chat.tools == '[{"type": "function", "function": {"name": "f"}}]'
    messages = chat.messages
    assert [(m.role, m.content) for m in messages] == [("system", "Short."), ("user", "Hello")]
    turn, = build_request([{"role": "user", "content": ["one", "two"], "name": "Ada"}], 1, {}).chat.messages
    assert (turn.content, list(turn.parts), turn.fields) == ("", ["one", "two"], '{"name": "Ada"}')
    assert build_request("x", 1, {"stop": "word"}).stop.strings == ["word"]
    assert build_request("x", 1, dict.fromkeys(EVERY)) == build_request("x", 1, {}), "None leaves a field out"


def test_each_grammar_has_its_form() -> None:
    def grammar(**option: object) -> sequence_pb2.Grammar:
        return build_request("x", 1, option).sampling.grammar

    forms = {name: grammar(**{name: value}) for name, value in {"regex": "a+", **OTHER_GRAMMARS}.items()}
    assert {message.WhichOneof("form") for message in forms.values()} == fields(sequence_pb2.Grammar.DESCRIPTOR)
    assert forms["json_schema"].json_schema == '{"b": 1, "a": 2}', "in the order that was given"
    assert grammar(json_schema="{}").json_schema == "{}"
    assert forms["regex"].regex == "a+"
    assert list(forms["choices"].choices.texts) == ["yes", "no"]
    assert forms["grammar"].ebnf == 'root ::= "a"'
    assert forms["structural_tag"].structural_tag == '{"type": "structural_tag"}'
    assert grammar(choices=[]).HasField("choices"), "the coordinator's to refuse"
    assert not build_request("x", 1, dict.fromkeys(["regex", *OTHER_GRAMMARS])).sampling.HasField("grammar")
    with Client("127.0.0.1:1") as client, pytest.raises(ValueError, match="regex and choices"):
        client.generate("x", regex="a", choices=["a"])


def test_every_drafter_has_a_name() -> None:
    names = {name.removeprefix("DRAFTER_KIND_").lower() for name, number in inference_pb2.DrafterKind.items() if number}
    assert set(get_args(outrider.DrafterName)) == names


@pytest.mark.parametrize("cls, message, elsewhere", [
    (outrider.Usage, inference_pb2.Usage, {}),
    (outrider.Speculation, inference_pb2.SpeculationStats, {}),
    (outrider.Round, inference_pb2.RoundTrace, {}),
    (outrider.Finish, inference_pb2.Finish, {}),
    (outrider.TokenLogprob, sequence_pb2.TokenLogprob, {}),
    (outrider.PositionLogprobs, sequence_pb2.PositionLogprobs, {}),
    (outrider.EchoedPrompt, inference_pb2.EchoedPrompt, {}),
    (outrider.Chunk, inference_pb2.GenerateResponse, {"kinds", "texts", "logprobs"}),  # fields of each token there
    (outrider.ServerInfo, sequence_pb2.ServerInfo, {}),
    (outrider.ProposerInfo, sequence_pb2.ProposerInfo, {}),
    (outrider.ServerState, inference_pb2.ServerState, {}),
    (outrider.Totals, inference_pb2.SpeculationTotals, {}),
    (outrider.Description, inference_pb2.DescribeResponse, {}),
])
def test_every_field_of_an_answer_is_there(cls: type, message: type, elsewhere: set[str]) -> None:
    assert {field.name for field in dataclasses.fields(cls)} - set(elsewhere) == fields(message.DESCRIPTOR)


@pytest.mark.parametrize("field, option", [
    ("speculation.rule", {"rule": "tokn"}), ("speculation.drafter", {"drafter": "unspecified"}),
    ("sampling.top_k", {"top_k": -1}), ("stop.max_tokens", {"max_tokens": 2**32}), ("seed", {"seed": 2**64}),
    ("sampling.logit_bias", {"logit_bias": {-1: 1.0}}), ("resume_from", {"resume_from": [-1]}),
    ("stop.strings", {"stop": "\ud800"})])
def test_what_cannot_be_sent_is_refused_like_what_may_not(field: str, option: Options) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(outrider.InvalidArgument) as error:
        client.generate("x", **option)
    assert (error.value.reason, error.value.field) == ("FIELD_INVALID", field)
    assert error.value.metadata["range"]


@pytest.mark.parametrize("prompt, option, message", [
    ("x", {"temprature": 1}, "'temprature' is not an option; there are: max_tokens"), ("x", {"n": 3}, "'n' is not"),
    (b"x", {}, "prompt: a sequence of token ids is wanted, not bytes"),
    ("x", {"bad_ids": "12"}, "bad_ids: a sequence of token ids is wanted, not str"),
    ("x", {"choices": "yes"}, "choices: a sequence of texts is wanted, not str"),
    ("x", {"choices": [3]}, "sampling.grammar.choices.texts: "), ("x", {"json_schema": 5}, "sampling.grammar.json_schema: "),
    ([{"role": "user", "text": "x"}], {}, "a message has role and content"),
    ([{"role": "user"}, 3], {}, "a message has role and content"),
    ([{"role": "user", "content": 3}], {}, "chat.messages.content: "),
    ("x", {"continue_final_message": True}, "the prompt is not a conversation"),
    ("x", {"top_k": "3"}, "sampling.top_k: "), ([1, "2"], {}, "tokens.ids: ")])
def test_what_makes_no_sense_is_a_type_error(prompt: str | Sequence[int], option: Options, message: str) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(TypeError, match=message):
        client.generate(prompt, **option)


@pytest.mark.parametrize("wrong", [{"budget": -1}, {"budget": math.nan}, {"initial": 0}, {"initial": 2, "maximum": 1}])
def test_retries_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needed"):
        outrider.Retries(**wrong)


USE = '''
from outrider import AsyncClient, Client, InvalidArgument, Options, Tls

client = Client("a:1", timeout=3, tls=Tls(ca="ca.pem"), token=lambda: "t")
options: Options = {"temperature": 0, "stop": ["x"], "rule": "block"}
reveal_type(client.generate("x", **options))
reveal_type(client.generate([1, 2], max_tokens=3).tokens)
reveal_type(client.generate([{"role": "user", "content": "x"}]).text)
reveal_type(client.generate_samples("x", 3))
reveal_type([chunk for chunk in client.stream("x", n=2)])
reveal_type(client.describe().target)
try:
    pass
except InvalidArgument as error:
    reveal_type(error.field)

async def use(client: AsyncClient) -> None:
    reveal_type(await client.generate("x", seed=1))
    reveal_type([chunk async for chunk in client.stream("x")])

client.generate("x", rule="tokn")  # wrong
client.generate("x", max_token=3)  # wrong
client.generate("x", top_k=0.5)  # wrong
client.generate(3)  # wrong
client.generate("x", n=2)  # wrong
client.generate([{"role": "user"}])  # wrong
'''
REVEALED = ["Completion", "tuple[int, ...]", "str", "list[Completion]", "list[Chunk]", "ServerInfo | None",
            "str | None", "Completion", "list[Chunk]"]


def test_types_are_right_within_the_package_and_for_its_users(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(USE)
    command = [sys.executable, "-m", "mypy", "--cache-dir", "cache", "--config-file", ROOT / "python/pyproject.toml",
               "-p", "outrider", "-m", "use"]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    revealed = [re.sub(r"\b[\w.]+\.(?=[A-Z])|builtins\.", "", name)
                for name in re.findall(r'Revealed type is "(.*)"', output)]
    assert revealed == REVEALED, output
    wrong = {("use.py", number) for number, line in enumerate(USE.splitlines(), 1) if "# wrong" in line}
    assert {(file, int(number)) for file, number in re.findall(r"(\S+):(\d+): error", output)} == wrong, output
