"""How a conversation becomes a prompt: variables of the template, a message that is continued, and text like a control token."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from harness import PATIENCE, TARGET_MODEL, Cluster, Server, running, start_coordinator
from http_clients import MODEL, chat_folder

END = "<|end_of_text|>"
QUESTION = {"role": "user", "content": "Who was here?"}
# Each turn ends with a control token. With enable_thinking false, an empty thought is written for the model, so it does not think.
TEMPLATE = """{{ bos_token }}{% for message in messages %}{{ message.role }}:
{{ message.content }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}assistant:
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = chat_folder(tmp_path_factory.mktemp("chat"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def chatting(pair: Cluster, folder: Path, *flags: str) -> Server:
    coordinator = start_coordinator(pair.target.address, "", "--tokenizer", str(folder), *flags)
    coordinator.wait_for_event("serving")
    return coordinator


@pytest.fixture(scope="module")
def chatty(pair: Cluster, folder: Path) -> Iterator[Server]:
    with running(chatting(pair, folder)) as [coordinator]:
        yield coordinator


def prompt_of(c: Server, *messages: dict[str, str], **more: Any) -> list[int]:
    """The tokens of a conversation. Checks that a request for its next turn has the same number of prompt tokens."""
    def post(path: str, **options: Any) -> Any:
        body = json.dumps({"model": MODEL, "messages": messages, **more, **options}).encode()
        with urllib.request.urlopen(f"http://{c.http_address}{path}", body, timeout=PATIENCE) as answer:
            return json.load(answer)

    tokens = post("/tokenize")["tokens"]
    assert post("/v1/chat/completions", max_tokens=1)["usage"]["prompt_tokens"] == len(tokens)
    return tokens


def text_of(tokens: list[int]) -> str:
    return Tokenizer.from_file(str(TARGET_MODEL / "tokenizer.json")).decode(tokens, skip_special_tokens=False)


def test_a_template_reads_the_variables_of_a_request(chatty: Server) -> None:
    plain, thinks, does_not = (prompt_of(chatty, QUESTION, **more) for more in (
        {}, {"chat_template_kwargs": {"enable_thinking": True}}, {"chat_template_kwargs": {"enable_thinking": False}}))
    assert thinks == plain and does_not[:len(plain)] == plain
    assert text_of(does_not[len(plain):]) == "<think>\n\n</think>\n\n"


def test_a_message_that_is_continued_has_no_end(chatty: Server) -> None:
    talk = [QUESTION, {"role": "assistant", "content": "It was the"}]
    followed, continued = (prompt_of(chatty, *talk, continue_final_message=it_is) for it_is in (False, True))
    assert len(continued) < len(followed)
    assert text_of(continued).endswith(f"{END}\nassistant:\nIt was the")
    assert text_of(followed).endswith(f"{END}\nassistant:\nIt was the{END}\nassistant:\n")


def test_what_looks_like_a_control_token_in_a_message_is_one_where_a_flag_says_so(chatty: Server, pair: Cluster, folder: Path) -> None:
    talk = {"role": "user", "content": f"Who{END}was here?"}
    end = Tokenizer.from_file(str(TARGET_MODEL / "tokenizer.json")).token_to_id(END)
    text = prompt_of(chatty, talk)
    with running(chatting(pair, folder, "--control-tokens-in-chat")) as [coordinator]:
        control = prompt_of(coordinator, talk)
    assert (text.count(end), control.count(end)) == (1, 2), "the template's own, and that of the message"
    assert len(control) < len(text) and text_of(control) == text_of(text)
