"""The OpenAI API with its official Python client: completions, streams, chat. Answers equal those of gRPC."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

from harness import (PATIENCE, TARGET_MODEL, Answer, Cluster, cluster, inference_pb2, refusal, request,
                     sequence_pb2)
from http_clients import MODEL, TALK, TALK_WRITTEN, base_url, chat_folder, connect, post


@pytest.fixture(scope="module")
def client(pair: Cluster) -> openai.OpenAI:
    return connect(pair)


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = chat_folder(tmp_path_factory.mktemp("chat"))
    with cluster(coordinator=["--tokenizer", str(folder)]) as c:
        yield c


# Together with COUPLED, tokens do not depend on when a proposal arrives.
SAMPLED: dict[str, Any] = {"temperature": 0.9, "seed": 7, "max_tokens": 30}
COUPLED = {"rule": "coupled", "ignore_eos": True}


# --- completions ----------------------------------------------------------------------------------------------


def test_a_completion_is_the_services_own_text(pair: Cluster, client: openai.OpenAI, prompts: list[str]) -> None:
    ours = pair.generate(prompts[0], temperature=0, max_tokens=30)
    theirs = client.completions.create(model=MODEL, prompt=prompts[0], temperature=0, max_tokens=30)
    assert theirs.object == "text_completion" and theirs.model == MODEL and theirs.id.startswith("cmpl-")
    [choice] = theirs.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, ours.text, "length")
    usage = ours.finish.usage
    assert theirs.usage.prompt_tokens == usage.prompt_tokens
    assert theirs.usage.completion_tokens == usage.completion_tokens == 30
    assert theirs.usage.total_tokens == usage.prompt_tokens + 30


def test_a_seed_gives_what_it_gives_by_grpc_and_gives_it_again(pair: Cluster, client: openai.OpenAI,
                                                               prompts: list[str]) -> None:
    ours = pair.generate(prompts[1], rule="coupled", ignore_eos=True, **SAMPLED)
    texts = [client.completions.create(model=MODEL, prompt=prompts[1], extra_body=COUPLED, **SAMPLED).choices[0].text
             for _ in range(2)]
    assert texts == [ours.text, ours.text]
    other = client.completions.create(model=MODEL, prompt=prompts[1], extra_body=COUPLED, **(SAMPLED | {"seed": 8}))
    assert other.choices[0].text != ours.text


def test_max_tokens_is_sixteen_unless_asked(client: openai.OpenAI, prompts: list[str]) -> None:
    answer = client.completions.create(model=MODEL, prompt=prompts[0], temperature=0, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16


def test_a_prompt_can_be_ids_and_there_can_be_several(pair: Cluster, client: openai.OpenAI,
                                                      prompts: list[str]) -> None:
    tokenizer = Tokenizer.from_file(str(TARGET_MODEL / "tokenizer.json"))
    ids = [tokenizer.encode(prompt).ids for prompt in prompts[:3]]
    texts = [pair.generate(prompt, temperature=0, max_tokens=12).text for prompt in prompts[:20]]
    options = {"model": MODEL, "temperature": 0, "max_tokens": 12}
    assert [c.text for c in client.completions.create(prompt=ids[0], **options).choices] == texts[:1]
    assert [c.text for c in client.completions.create(prompt=ids, **options).choices] == texts[:3]
    # More prompts than run at once.
    answer = client.completions.create(prompt=prompts[:20], **options)
    assert [(c.index, c.text) for c in answer.choices] == list(enumerate(texts))
    assert answer.usage.completion_tokens == sum(
        pair.generate(prompt, temperature=0, max_tokens=12).finish.usage.completion_tokens for prompt in prompts[:20])


def test_n_gives_the_services_samples(pair: Cluster, client: openai.OpenAI, prompts: list[str]) -> None:
    ours = pair.generate_samples(prompts[2], 4, rule="coupled", ignore_eos=True, **SAMPLED)
    theirs = client.completions.create(model=MODEL, prompt=[prompts[2], prompts[3]], n=4, extra_body=COUPLED, **SAMPLED)
    assert [choice.index for choice in theirs.choices] == list(range(8))
    assert [choice.text for choice in theirs.choices[:4]] == [answer.text for answer in ours]
    assert len({choice.text for choice in theirs.choices}) == 8


def test_a_beam_search_gives_its_best_texts(pair: Cluster, client: openai.OpenAI, prompts: list[str]) -> None:
    beam = inference_pb2.BeamOptions(width=4, length_penalty=0.5)
    ours = pair.generate_samples(prompts[0], 4, beam=beam, max_tokens=20)
    search = {"use_beam_search": True, "length_penalty": 0.5}
    how = {"model": MODEL, "prompt": prompts[0], "max_tokens": 20}
    theirs = client.completions.create(n=4, extra_body=search, **how)
    assert [choice.text for choice in theirs.choices] == [answer.text for answer in ours]
    best = client.completions.create(best_of=4, temperature=0, extra_body=search, **how)
    assert [choice.text for choice in best.choices] == [ours[0].text]
    streamed = client.completions.create(n=4, stream=True, extra_body=search, **how)
    assert [chunk.choices[0].text for chunk in streamed] == [answer.text for answer in ours]
    with pytest.raises(openai.BadRequestError, match="top_p"):
        client.completions.create(n=4, top_p=0.5, extra_body=search, **how)


def test_a_stop_string_ends_the_text_before_it(pair: Cluster, client: openai.OpenAI, prompts: list[str]) -> None:
    whole = pair.generate(prompts[0], temperature=0, max_tokens=40, ignore_eos=True).text
    stop = whole[len(whole) // 2:][:6]
    for wanted in (stop, ["never to be seen", stop]):
        answer = client.completions.create(model=MODEL, prompt=prompts[0], temperature=0, max_tokens=40, stop=wanted)
        [choice] = answer.choices
        assert (choice.text, choice.finish_reason) == (whole[:whole.index(stop)], "stop")
        assert choice.model_extra["stop_reason"] == stop


def test_logprobs_are_the_models_own(pair: Cluster, client: openai.OpenAI, prompts: list[str]) -> None:
    wanted = request(prompts[1], temperature=0, max_tokens=8, ignore_eos=True)
    wanted.logprobs.top, wanted.logprobs.before_controls = 3, True
    ours = [token.logprobs for chunk in pair.stub.Generate(wanted, timeout=PATIENCE) for token in chunk.tokens]
    answer = client.completions.create(model=MODEL, prompt=prompts[1], temperature=0, max_tokens=8, logprobs=3,
                                       extra_body={"ignore_eos": True})
    said = answer.choices[0].logprobs
    assert said.token_logprobs == [position.token.logprob for position in ours]
    assert said.tokens == [position.token.text for position in ours]
    assert "".join(said.tokens) == answer.choices[0].text
    assert said.text_offset == [len("".join(said.tokens[:i])) for i in range(8)]
    for top, position in zip(said.top_logprobs, ours, strict=True):
        assert top == {token.text: token.logprob for token in position.top}


def test_echo_puts_the_prompt_first(client: openai.OpenAI, prompts: list[str]) -> None:
    options = {"model": MODEL, "prompt": prompts[0], "temperature": 0, "max_tokens": 5}
    plain = client.completions.create(**options).choices[0]
    echoed = client.completions.create(echo=True, logprobs=0, **options).choices[0]
    assert echoed.text == prompts[0] + plain.text
    usage = client.completions.create(echo=True, logprobs=0, **options).usage
    assert len(echoed.logprobs.tokens) == usage.prompt_tokens + usage.completion_tokens
    assert echoed.logprobs.token_logprobs[0] is None and None not in echoed.logprobs.token_logprobs[1:]
    assert echoed.logprobs.text_offset[:2] == [0, 0], "the first is the tokenizer's own, and no part of the text"
    assert "".join(echoed.logprobs.tokens[1:]).startswith(prompts[0])
    streamed = list(client.completions.create(echo=True, stream=True, **options))
    assert "".join(choice.text for event in streamed for choice in event.choices) == echoed.text


def test_the_controls_of_vllm_and_ours_arrive(pair: Cluster, client: openai.OpenAI, prompts: list[str]) -> None:
    sampling = {"top_k": 20, "min_p": 0.02, "repetition_penalty": 1.3}
    ours = pair.generate(prompts[4], rule="coupled", ignore_eos=True, presence_penalty=0.5, frequency_penalty=0.25,
                         top_p=0.9, k=0, logit_bias=[sequence_pb2.LogitBias(token=300, bias=4.0)], **sampling, **SAMPLED)
    theirs = client.completions.create(model=MODEL, prompt=prompts[4], presence_penalty=0.5, frequency_penalty=0.25,
                                       top_p=0.9, logit_bias={"300": 4.0},
                                       extra_body={"draft_tokens": 0, **sampling, **COUPLED}, **SAMPLED)
    assert theirs.choices[0].text == ours.text
    told = theirs.usage.model_extra["speculation"]
    assert (told["drafted"], told["exact"]) == (0, True)


def test_a_prompt_of_tokens_is_scored_without_an_answer(client: openai.OpenAI, prompts: list[str]) -> None:
    texts = [client.completions.create(model=MODEL, prompt=prompt, max_tokens=0, echo=True, logprobs=1) for prompt in prompts[:2]]
    ids = [Tokenizer.from_file(str(TARGET_MODEL / "tokenizer.json")).encode(prompt).ids for prompt in prompts[:2]]
    answer = client.completions.create(model=MODEL, prompt=ids, max_tokens=0, echo=True, logprobs=1)
    assert answer.usage.completion_tokens == 0 and answer.usage.prompt_tokens == sum(map(len, ids))
    for choice, text, prompt in zip(answer.choices, texts, prompts[:2], strict=True):
        assert choice.text == prompt and choice.finish_reason == "length"
        assert choice.logprobs == text.choices[0].logprobs, "of text as of tokens"
    assert client.completions.create(model=MODEL, prompt=ids[0], max_tokens=0, n=2).choices[1].text == ""


def test_no_stop_string_ends_a_text_before_its_least_length(client: openai.OpenAI, prompts: list[str]) -> None:
    options = {"model": MODEL, "prompt": prompts[0], "temperature": 0, "max_tokens": 60, "stop": " "}
    short, long = (client.completions.create(extra_body={"min_tokens": least}, **options) for least in (0, 10))
    assert short.usage.completion_tokens < 10 < long.usage.completion_tokens
    assert " " in long.choices[0].text


def test_a_prediction_is_told_apart_in_the_usage(client: openai.OpenAI) -> None:
    options = {"model": MODEL, "messages": [{"role": "user", "content": "Once upon a time"}], "temperature": 0, "max_tokens": 60}
    plain = client.chat.completions.create(extra_body={"drafter": "none"}, **options)
    text = plain.choices[0].message.content
    for content in (text, [{"type": "text", "text": text}]):
        predicted = client.chat.completions.create(prediction={"type": "content", "content": content}, extra_body={"draft_tokens": 8},
                                                   **options)
        assert predicted.choices[0].message.content == text
        details = predicted.usage.completion_tokens_details
        assert details.accepted_prediction_tokens > 30 and details.rejected_prediction_tokens < 30
    with pytest.raises(openai.BadRequestError, match="prediction"):
        client.chat.completions.create(prediction={"type": "content", "content": 5}, **options)


def test_usage_tells_of_the_speculation(pair: Cluster, client: openai.OpenAI, prompts: list[str]) -> None:
    options = {"temperature": 0, "max_tokens": 60}
    ours = pair.generate(prompts[5], k=4, drafter="ngram", ignore_eos=True, **options).speculation
    theirs = client.completions.create(model=MODEL, prompt=prompts[5], **options, extra_body={
        "draft_tokens": 4, "drafter": "ngram", "ignore_eos": True}).usage.model_extra["speculation"]
    assert theirs["drafted"] == ours.drafted and theirs["accepted"] == ours.accepted
    assert theirs["acceptance_rate"] == ours.acceptance_rate and theirs["rounds"] == ours.rounds


def test_usage_tells_apart_what_was_accepted_after_the_end(pair: Cluster, client: openai.OpenAI, prompts: list[str]) -> None:
    options = {"model": MODEL, "prompt": prompts[3], "temperature": 0, "max_tokens": 80}
    whole = pair.generate(prompts[3], k=8, temperature=0, max_tokens=80, ignore_eos=True).tokens
    seen = []
    for end in dict.fromkeys(whole[10:40]):
        ended = client.completions.create(**options, extra_body={"draft_tokens": 8, "ignore_eos": True, "stop_token_ids": [end]})
        said = ended.usage.model_extra["speculation"]
        assert ended.usage.completion_tokens == whole.index(end) + 1
        assert said["accepted"] <= ended.usage.completion_tokens
        seen.append(said["accepted_after_end"])
    assert max(seen) > 0


def test_usage_tells_apart_what_was_accepted_behind_a_stop_string(pair: Cluster, client: openai.OpenAI, prompts: list[str]) -> None:
    options = {"model": MODEL, "prompt": prompts[3], "temperature": 0, "max_tokens": 80}
    whole = pair.generate(prompts[3], k=8, temperature=0, max_tokens=80, ignore_eos=True).text
    seen = []
    for word in list(dict.fromkeys(whole.split()))[5:25]:
        ended = client.completions.create(stop=word, **options, extra_body={"draft_tokens": 8, "ignore_eos": True})
        said = ended.usage.model_extra["speculation"]
        assert ended.choices[0].text == whole[:whole.index(word)]
        assert max(said["accepted"], said["mean_accepted_length"]) <= ended.usage.completion_tokens
        seen.append(said["accepted_after_end"])
    assert max(seen) > 0


# --- streams --------------------------------------------------------------------------------------------------


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI, prompts: list[str]) -> None:
    options = {"model": MODEL, "prompt": prompts[1], "n": 2, "logprobs": 1, "extra_body": COUPLED, **SAMPLED}
    whole = client.completions.create(**options)
    events = list(client.completions.create(stream=True, stream_options={"include_usage": True}, **options))
    assert len({event.id for event in events}) == 1
    assert all(event.usage is None for event in events[:-1])
    for choice in whole.choices:
        pieces = [c for event in events for c in event.choices if c.index == choice.index]
        assert "".join(piece.text for piece in pieces) == choice.text
        assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [choice.finish_reason]
        said = [piece.logprobs for piece in pieces if piece.logprobs]
        assert sum((piece.token_logprobs for piece in said), []) == choice.logprobs.token_logprobs
        assert sum((piece.text_offset for piece in said), []) == choice.logprobs.text_offset
    assert events[-1].choices == []
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert events[-1].usage.total_tokens == whole.usage.total_tokens


def test_the_asynchronous_client_streams_many_at_once(pair: Cluster, prompts: list[str]) -> None:
    async def one(client: openai.AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=20, stream=True)
        return "".join([event.choices[0].text async for event in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=base_url(pair), api_key="none", max_retries=0) as client:
            whole = await client.completions.create(model=MODEL, prompt=prompts[0], temperature=0, max_tokens=20)
            return [whole.choices[0].text, *await asyncio.gather(*(one(client, prompt) for prompt in prompts[:24]))]

    first, *texts = asyncio.run(all_of_them())
    assert first == texts[0]
    assert texts == [pair.generate(prompt, temperature=0, max_tokens=20).text for prompt in prompts[:24]]


def test_a_stream_is_server_sent_events(pair: Cluster) -> None:
    with post(pair, "/v1/completions", {"prompt": "Once", "stream": True, "max_tokens": 5}) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        lines = response.read().decode().split("\n")
    assert all(line == "" for line in lines[1::2]), "a blank line ends each event"
    events = [line.removeprefix("data: ") for line in lines[:-1:2]]
    assert events[-1] == "[DONE]" and all(json.loads(event)["choices"] for event in events[:-1])


# --- chat -----------------------------------------------------------------------------------------------------


def test_a_chat_is_its_template_written_out(chatty: Cluster) -> None:
    ids = Tokenizer.from_file(str(TARGET_MODEL / "tokenizer.json")).encode(TALK_WRITTEN, add_special_tokens=False).ids
    assert ids[0] == 4094 and 4094 not in ids[1:], "one BOS, and it is a special token"
    ours = chatty.generate(ids, rule="coupled", ignore_eos=True, **SAMPLED)
    by_grpc = Answer()
    wanted = request([0], rule="coupled", ignore_eos=True, **SAMPLED)
    wanted.chat.messages.extend(inference_pb2.ChatMessage(**message) for message in TALK)
    for chunk in chatty.stub.Generate(wanted, timeout=PATIENCE):
        by_grpc.add(chunk)
    assert by_grpc.check().tokens == ours.tokens
    answer = connect(chatty).chat.completions.create(model=MODEL, messages=TALK, extra_body=COUPLED, **SAMPLED)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    message = answer.choices[0].message
    assert (message.role, message.content, message.tool_calls) == ("assistant", ours.text, None)
    assert answer.usage.prompt_tokens == len(ids)


def test_a_chat_streams_and_tells_log_probabilities(chatty: Cluster) -> None:
    client = connect(chatty)
    options = {"model": MODEL, "messages": TALK, "temperature": 0, "max_completion_tokens": 12, "n": 2,
               "logprobs": True, "top_logprobs": 2, "extra_body": {"ignore_eos": True}}
    whole = client.chat.completions.create(**options)
    assert whole.usage.completion_tokens == 24
    events = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options))
    assert events[-1].usage.completion_tokens == 24
    for choice in whole.choices:
        pieces = [c for event in events for c in event.choices if c.index == choice.index]
        assert [piece.delta.role for piece in pieces] == ["assistant"] + [None] * (len(pieces) - 1)
        assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content
        said = [token for piece in pieces if piece.logprobs for token in piece.logprobs.content]
        assert said == choice.logprobs.content and len(said) == 12
        for token in said:
            # Greedy: the most probable token was taken.
            assert token.top_logprobs[0].logprob == token.logprob and len(token.top_logprobs) == 2
            assert bytes(token.bytes).decode() == token.token


def test_a_chat_is_without_a_limit_but_the_contexts(chatty: Cluster) -> None:
    context = chatty.stub.Describe(inference_pb2.DescribeRequest()).target.max_context
    answer = connect(chatty).chat.completions.create(model=MODEL, messages=TALK, temperature=0,
                                                     extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == context and answer.choices[0].finish_reason == "length"


def test_a_conversation_that_the_template_refuses_is_refused_in_its_words(chatty: Cluster) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        connect(chatty).chat.completions.create(model=MODEL, messages=[TALK[1], TALK[1]])
    assert error.value.param == "messages" and "Turns must alternate" in error.value.message


def test_the_shipped_pair_chats(pair: Cluster, client: openai.OpenAI) -> None:
    written = "You tell stories.\n\nUser: Once upon a time\n\nAssistant:"
    answer = client.chat.completions.create(model=MODEL, messages=TALK, temperature=0, max_tokens=20)
    ours = pair.generate(written, temperature=0, max_tokens=20)
    assert answer.choices[0].message.content == ours.text
    assert answer.usage.prompt_tokens == ours.finish.usage.prompt_tokens


def test_a_model_without_a_template_does_not_chat(tmp_path: Path) -> None:
    shutil.copy(TARGET_MODEL / "tokenizer.json", tmp_path)
    with cluster(draft=None, coordinator=["--tokenizer", str(tmp_path)]) as c:
        with pytest.raises(openai.BadRequestError) as error:
            connect(c).chat.completions.create(model=MODEL, messages=TALK)
    assert error.value.param == "messages" and "no chat template" in error.value.message


def test_a_template_that_cannot_be_read_leaves_completions(tmp_path: Path, prompts: list[str]) -> None:
    folder = chat_folder(tmp_path)
    (folder / "chat_template.jinja").write_text("{% for %}")
    with cluster(draft=None, coordinator=["--tokenizer", str(folder)]) as c:
        c.coordinator.wait_for_event("no conversations")
        assert connect(c).completions.create(model=MODEL, prompt=prompts[0], max_tokens=2).choices[0].text
        with pytest.raises(openai.BadRequestError, match="chat_template.jinja"):
            connect(c).chat.completions.create(model=MODEL, messages=TALK)


def test_damaged_files_of_a_template_stop_the_start(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path)
    (folder / "tokenizer_config.json").write_text("{")
    assert "tokenizer_config.json" in refusal("outrider-coordinator", "--tokenizer", str(folder), "--listen",
                                              "127.0.0.1:0", "--log-format", "json")


def test_a_message_is_text_whatever_it_looks_like(chatty: Cluster) -> None:
    def tokens(**more: Any) -> int:
        talk = [{"role": "user", "content": "one", **more}]
        return connect(chatty).chat.completions.create(model=MODEL, messages=talk, max_tokens=1).usage.prompt_tokens

    special = json.loads((TARGET_MODEL / "tokenizer_config.json").read_text())["eos_token"]
    assert tokens(content=special) > tokens(content="a") + 1
    with pytest.raises(openai.BadRequestError, match="developer"):
        tokens(role="narrator")
    assert tokens(content=[{"type": "text", "text": "one"}]) == tokens()


def test_a_turn_of_an_assistant_may_say_nothing(chatty: Cluster) -> None:
    def tokens(**said: Any) -> int:
        talk = [*TALK[:2], {"role": "assistant", **said}, {"role": "user", "content": "Go on"}]
        return connect(chatty).chat.completions.create(model=MODEL, messages=talk, max_tokens=1).usage.prompt_tokens

    assert tokens(content=None) == tokens() == tokens(content="") < tokens(content="What?")


def test_control_tokens_in_a_completion_are_control_tokens(pair: Cluster, client: openai.OpenAI) -> None:
    special = json.loads((TARGET_MODEL / "tokenizer_config.json").read_text())["eos_token"]
    id, = pair.stub.Describe(inference_pb2.DescribeRequest()).target.eos_ids
    asked = {"model": MODEL, "max_tokens": 0, "echo": True, "logprobs": 1}
    written, given = (client.completions.create(prompt=prompt, **asked) for prompt in (f"a{special}b", special))
    assert written.choices[0].logprobs.tokens.count(special) == 1
    assert given.usage.prompt_tokens == client.completions.create(prompt=[[id]], **asked).usage.prompt_tokens + 1


@pytest.mark.parametrize("flags, greedy", [([], True), (["--generation-config", "auto"], True), (["--generation-config", "none"], False)])
def test_how_a_model_is_sampled_from_is_in_its_folder(flags: list[str], greedy: bool, tmp_path: Path, prompts: list[str]) -> None:
    shutil.copy(TARGET_MODEL / "tokenizer.json", tmp_path)
    shutil.copy(TARGET_MODEL / "tokenizer_config.json", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, "top_k": 1}))
    with cluster(draft=None, coordinator=["--tokenizer", str(tmp_path), *flags]) as c:
        texts = {connect(c).completions.create(model=MODEL, prompt=prompts[0], seed=seed, max_tokens=12).choices[0].text
                 for seed in range(4)}
        assert (len(texts) == 1) == greedy
