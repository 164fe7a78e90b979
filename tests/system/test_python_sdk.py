"""The Python SDK against the running services. tests/unit covers other failures of calls."""

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import outrider
import pytest
from outrider import AsyncClient, Chunk, Client, Retries
from tokenizers import Tokenizer

from harness import (BIN, PATIENCE, ROOT, TARGET_MODEL, Cluster, cluster, eventually, full, running, start_coordinator,
                     start_target)
from http_clients import TALK, TALK_WRITTEN, chat_folder

GREEDY = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
LONG = {"draft_tokens": 2, "max_tokens": 600, "ignore_eos": True}
# Servers free the sequences of a dead coordinator after a second.
LEASED = {"target": ["--lease", "1"], "draft": ["--lease", "1"]}
PATIENT = Retries(budget=PATIENCE)
ONCE = Retries(budget=0)


@pytest.fixture(scope="module")
def client(pair: Cluster) -> Iterator[Client]:
    with Client(pair.coordinator.address, timeout=PATIENCE) as client:
        yield client


def tokens_of(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.tokens]


def went_on_elsewhere(chunks: list[Chunk]) -> bool:
    """Whether another coordinator than the one that began an answer ended it."""
    counts = chunks[-1].finish.speculation
    emitted = counts.emitted_accepted + counts.emitted_corrected + counts.emitted_bonus + counts.emitted_plain
    return emitted < len(tokens_of(chunks))


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def test_an_answer_is_that_of_the_protocol_and_of_the_command_line(client: Client, pair: Cluster,
                                                                   prompts: list[str]) -> None:
    raw = pair.generate(prompts[0], temperature=0, max_tokens=40, ignore_eos=True)
    completion = client.generate(prompts[0], **GREEDY)
    assert (list(completion.tokens), completion.text) == (raw.tokens, raw.text)
    assert completion.finish_reason == "length"
    assert completion.usage.prompt_tokens == raw.finish.usage.prompt_tokens
    command = [BIN / "outrider", "generate", prompts[0], "--address", pair.coordinator.address, "--temperature", "0",
               "--max-tokens", "40", "--ignore-eos", "--json"]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert (shown["tokens"], shown["text"]) == (raw.tokens, raw.text)


def test_a_fixed_draft_gives_the_same_answer_and_the_same_statistics(client: Client, pair: Cluster,
                                                                     prompts: list[str]) -> None:
    raw = pair.generate(prompts[1], k=3, temperature=0, max_tokens=40, ignore_eos=True, drafter="ngram")
    completion = client.generate(prompts[1], draft_tokens=3, drafter="ngram", **GREEDY)
    assert (list(completion.tokens), list(completion.kinds)) == (raw.tokens, raw.kinds)
    assert (completion.speculation.rounds, completion.speculation.drafted, completion.speculation.accepted) == (
        raw.speculation.rounds, raw.speculation.drafted, raw.speculation.accepted)
    assert completion.speculation.exact


def test_a_stream_says_what_the_answer_says(client: Client, prompts: list[str]) -> None:
    options = {"rule": "coupled", "temperature": 0.8, "seed": 5, "max_tokens": 60, "trace": True, "logprobs": 2}
    whole = client.generate(prompts[2], **options)
    chunks = list(client.stream(prompts[2], **options))
    assert len(chunks) > 1
    assert (tokens_of(chunks), text_of(chunks)) == (list(whole.tokens), whole.text)
    assert [chunk.position for chunk in chunks] == [sum(len(c.tokens) for c in chunks[:i]) for i in range(len(chunks))]
    assert [len(position.top) for position in whole.logprobs] == [2] * len(whole.tokens)
    assert [position.token.id for position in whole.logprobs] == list(whole.tokens)
    assert len(whole.trace) == whole.speculation.rounds
    assert chunks[-1].finish.speculation.rounds == len(chunks)


def test_a_search_gives_its_best_texts_with_their_scores(client: Client, prompts: list[str]) -> None:
    texts = client.generate_samples(prompts[0], 3, beam_width=5, beam_draft_width=10, length_penalty=0.7,
                                    beam_stop="never", max_tokens=20)
    scores = [text.score for text in texts]
    assert len(set(text.text for text in texts)) == 3 and scores == sorted(scores, reverse=True)
    assert texts[0].speculation.rounds > 0
    scored = client.generate(prompts[0], beam_width=1, max_tokens=20)
    greedy = client.generate(prompts[0], temperature=0, max_tokens=20, logprobs=0, logprobs_before_controls=True)
    assert scored.tokens == greedy.tokens and greedy.score is None
    total = sum(position.token.logprob for position in greedy.logprobs)
    assert scored.score == pytest.approx(total / len(greedy.tokens))


def test_token_ids_and_prompt_logprobs(client: Client) -> None:
    ids = [300, 301, 302, 303]
    completion = client.generate(ids, prompt_logprobs=0, **GREEDY)
    assert [position.token.id for position in completion.prompt_logprobs] == ids[1:]
    assert completion.usage.prompt_tokens == len(ids)


def test_a_prompt_is_sent_back(client: Client, prompts: list[str]) -> None:
    first, second = client.generate_samples(prompts[0], 2, echo=True, max_tokens=0)
    assert first.prompt.text == prompts[0] and first.prompt.first.id == 4094
    assert second.prompt is None and first.tokens == second.tokens == ()


def test_a_conversation_is_written_out_by_the_models_template(client: Client, pair: Cluster, tmp_path: Path) -> None:
    with running(start_coordinator(pair.target.address, "", "--tokenizer", str(chat_folder(tmp_path)))) as servers:
        eventually(lambda: servers[0].health() == "SERVING", "the coordinator is ready")
        with Client(servers[0].address, timeout=PATIENCE) as chatty:
            completion = chatty.generate(TALK, **GREEDY)
    written = Tokenizer.from_file(str(TARGET_MODEL / "tokenizer.json")).encode(TALK_WRITTEN, add_special_tokens=False)
    assert completion.tokens == client.generate(written.ids, **GREEDY).tokens
    (tmp_path / "tokenizer_config.json").unlink()
    with running(start_coordinator(pair.target.address, "", "--tokenizer", str(tmp_path))) as servers:
        eventually(lambda: servers[0].health() == "SERVING", "the coordinator is ready")
        with (Client(servers[0].address, timeout=PATIENCE) as mute,
              pytest.raises(outrider.InvalidArgument, match="no chat template")):
            mute.generate(TALK)


def test_samples_are_those_of_one_call(client: Client, pair: Cluster, prompts: list[str]) -> None:
    options = {"rule": "coupled", "temperature": 1.0, "seed": 11, "max_tokens": 24}
    raw = pair.generate_samples(prompts[3], 4, **options)
    assert [list(c.tokens) for c in client.generate_samples(prompts[3], 4, **options)] == [a.tokens for a in raw]
    streamed = list(client.stream(prompts[3], n=4, **options))
    for sample, answer in enumerate(raw):
        assert tokens_of([chunk for chunk in streamed if chunk.sample == sample]) == answer.tokens


def leave_open(client: Client, prompt: str) -> None:
    stream = client.stream(prompt, ignore_eos=True)
    next(stream)
    stream.close()


def leave_with_block(client: Client, prompt: str) -> None:
    with client.stream(prompt, ignore_eos=True) as stream:
        next(stream)


def break_out(client: Client, prompt: str) -> None:
    for _ in client.stream(prompt, ignore_eos=True):
        break


@pytest.mark.parametrize("leave", [leave_open, leave_with_block, break_out])
def test_leaving_a_stream_frees_its_blocks(leave: Callable[[Client, str], None], client: Client, pair: Cluster,
                                           prompts: list[str]) -> None:
    before = pair.coordinator.value("outrider_requests_total", code="CANCELLED")
    leave(client, prompts[0])
    pair.wait_idle()
    assert pair.coordinator.value("outrider_requests_total", code="CANCELLED") == before + 1, "it had ended before"


def test_a_timeout_ends_the_generation_there_too(client: Client, pair: Cluster, prompts: list[str]) -> None:
    with pytest.raises(outrider.DeadlineExceeded):
        client.generate(prompts[0], ignore_eos=True, timeout=0.05)
    pair.wait_idle()


@pytest.mark.parametrize("field, prompt, options", [
    ("text", "", {}), ("tokens.ids", [10**6], {}), ("prompt", [300] * 5000, {}), ("sampling.top_p", "x", {"top_p": 2}),
    ("sampling.temperature", "x", {"temperature": -1}), ("stop.max_tokens", "x", {"max_tokens": 0, "beam_width": 2}),
    ("stop.strings", "x", {"stop": ""}), ("speculation.draft_tokens", "x", {"draft_tokens": 1000}),
    ("speculation.drafter", "x", {"drafter": "medusa"}), ("speculation.lenience", "x", {"lenience": 2}),
    ("beam.draft_width", "x", {"beam_width": 4, "beam_draft_width": 3}), ("beam.stop", "x", {"beam_width": 4, "beam_stop": "soon"}),
    ("logprobs.top", "x", {"logprobs": 21}), ("resume_from", "x", {"resume_from": [10**6]})])
def test_a_wrong_request_names_its_field(field: str, prompt: str | list[int], options: dict[str, object],
                                         client: Client) -> None:
    with pytest.raises(outrider.InvalidArgument) as error:
        client.generate(prompt, **options)
    reason = "CONTEXT_LENGTH_EXCEEDED" if field == "prompt" else "FIELD_INVALID"
    assert (error.value.reason, error.value.field) == (reason, field)
    assert error.value.metadata["range"]
    assert field in str(error.value)


def test_a_full_service_says_so_and_lets_in_who_waits(prompts: list[str]) -> None:
    with cluster(draft=None, coordinator=["--max-requests", "1", "--max-waiting-requests", "0"]) as c, ThreadPoolExecutor() as pool:
        address = c.coordinator.address
        with Client(address, retries=ONCE) as hasty, Client(address, retries=PATIENT) as patient:
            first = hasty.stream(prompts[0], ignore_eos=True)
            next(first)
            with pytest.raises(outrider.ResourceExhausted) as error:
                hasty.generate(prompts[1], max_tokens=1)
            assert (error.value.reason, error.value.retry_after) == ("QUEUE_FULL", 0.2)
            waiting = pool.submit(patient.generate, prompts[1], max_tokens=3)
            first.close()
            assert len(waiting.result().tokens) == 3


def test_a_service_without_its_target_is_unavailable(prompts: list[str]) -> None:
    target = start_target()
    target.stop()  # nothing listens on its address now
    with running(start_coordinator(target.address, "", "--target-wait", "0.2")) as servers:
        with Client(servers[0].address, retries=ONCE) as client, pytest.raises(outrider.Unavailable) as error:
            client.generate(prompts[0])
        assert error.value.reason == "TARGET_UNAVAILABLE"


def kill(c: Cluster) -> None:
    c.kill(c.coordinator)
    c.restart_coordinator()


def end_in_order(c: Cluster) -> None:
    """Ends the coordinator as a rolling update does, and starts it again."""
    c.coordinator.terminate()
    c.coordinator.wait_orderly_end()
    c.restart_coordinator()


def kill_target(c: Cluster) -> None:
    c.kill(c.target)
    c.restart_target()


COLD: dict[str, object] = {"temperature": 0}
COUPLED: dict[str, object] = {"temperature": 0.9, "rule": "coupled", "seed": 3}


@pytest.mark.parametrize(("disturb", "options"), [
    (kill, COLD), full(kill, COUPLED), full(end_in_order, COLD), (end_in_order, COUPLED), (kill_target, COLD),
    full(kill_target, COUPLED)])
def test_a_stream_outlives_a_service_that_restarts(disturb: Callable[[Cluster], None], options: dict[str, object],
                                                   client: Client, prompts: list[str]) -> None:
    undisturbed = client.generate(prompts[7], **LONG, **options)

    def disturbed_in_the_middle() -> bool:
        with (cluster(coordinator=["--drain", "0"], **LEASED) as c,
              Client(c.coordinator.address, retries=PATIENT) as own):
            chunks = []
            for chunk in own.stream(prompts[7], **LONG, **options):
                chunks.append(chunk)
                if len(chunks) == 5:
                    disturb(c)
            assert (tokens_of(chunks), text_of(chunks)) == (list(undisturbed.tokens), undisturbed.text)
            assert chunks[-1].finish.usage.completion_tokens == LONG["max_tokens"]
            own_errors = c.coordinator.metrics().labelled("outrider_target_errors_total", "reason")
            resumed = went_on_elsewhere(chunks)
            c.wait_idle()
            return bool(own_errors) if disturb is kill_target else resumed

    # On a busy machine the generation may end before this process can interrupt it.
    assert any(disturbed_in_the_middle() for _ in range(3))


def test_a_sampled_stream_goes_on_where_it_was(prompts: list[str]) -> None:
    with cluster() as c, Client(c.coordinator.address, retries=PATIENT) as client:
        chunks = []
        for chunk in client.stream(prompts[7], temperature=1.0, **LONG):
            chunks.append(chunk)
            if len(chunks) == 5:
                kill(c)
        tokens = tokens_of(chunks)
        assert len(tokens) == LONG["max_tokens"]
        tokenizer = Tokenizer.from_file(str(TARGET_MODEL / "tokenizer.json"))
        assert text_of(chunks) == tokenizer.decode(tokens, skip_special_tokens=True)
        assert went_on_elsewhere(chunks), "not killed in the middle"


def test_samples_that_break_off_are_unavailable(prompts: list[str]) -> None:
    with cluster() as c, Client(c.coordinator.address, retries=PATIENT) as client:
        stream = client.stream(prompts[7], n=2, **LONG)
        next(stream)
        kill(c)
        with pytest.raises(outrider.Unavailable):
            list(stream)
        assert len(client.generate_samples(prompts[7], 2, **GREEDY)) == 2


def test_what_is_served_is_described(client: Client, pair: Cluster) -> None:
    description = client.describe()
    assert description.target.model == "tiny-target"
    assert description.target.fingerprint == description.draft.fingerprint != 0
    assert (description.degraded, description.defaults.drafter, description.defaults.rule) == (False, "model", "token")
    assert description.defaults.draft_tokens is None
    assert description.totals.emitted >= description.totals.accepted > 0
    assert description.max_draft_tokens == description.target.max_draft_tokens


FENCED = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
EXAMPLES = [(document, number, example) for document in ("README.md", "python/README.md", "docs/sdk.md")
            for number, example in enumerate(FENCED.findall((ROOT / document).read_text()))]


@pytest.mark.parametrize("example", [e for _, _, e in EXAMPLES], ids=[f"{d}-{n}" for d, n, _ in EXAMPLES])
def test_the_examples_of_the_documents_run(example: str, pair: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert "127.0.0.1:7070" in example
    code = example.replace("127.0.0.1:7070", pair.coordinator.address)
    exec(compile(code, "example", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out


def test_asyncio_gives_the_same_answers(client: Client, pair: Cluster, prompts: list[str]) -> None:
    async def run() -> None:
        async with AsyncClient(pair.coordinator.address, timeout=PATIENCE) as other:
            completions = await asyncio.gather(*[other.generate(prompt, **GREEDY) for prompt in prompts[:6]])
            assert [c.tokens for c in completions] == [client.generate(prompt, **GREEDY).tokens
                                                       for prompt in prompts[:6]]
            chunks = [chunk async for chunk in other.stream(prompts[0], **GREEDY)]
            assert (tokens_of(chunks), text_of(chunks)) == (list(completions[0].tokens), completions[0].text)
            samples = {"rule": "coupled", "seed": 11, "max_tokens": 24}
            assert ([c.tokens for c in await other.generate_samples(prompts[3], 4, **samples)]
                    == [c.tokens for c in client.generate_samples(prompts[3], 4, **samples)])
            assert (await other.describe()).target == client.describe().target
            with pytest.raises(outrider.InvalidArgument) as error:
                await other.generate("x", top_p=2)
            assert (error.value.reason, error.value.field) == ("FIELD_INVALID", "sampling.top_p")
            with pytest.raises(outrider.DeadlineExceeded):
                await other.generate(prompts[0], ignore_eos=True, timeout=0.05)
    asyncio.run(run())
    pair.wait_idle()


def test_asyncio_frees_what_is_left_or_cancelled(pair: Cluster, prompts: list[str]) -> None:
    async def run() -> None:
        async with AsyncClient(pair.coordinator.address, timeout=PATIENCE) as client:
            async for _ in client.stream(prompts[0], ignore_eos=True):
                break
            async with client.stream(prompts[0], ignore_eos=True) as stream:
                await anext(stream)
            stream = client.stream(prompts[0], ignore_eos=True)
            await anext(stream)
            await stream.aclose()
            await asyncio.to_thread(pair.wait_idle)
            task = asyncio.create_task(client.generate(prompts[0], ignore_eos=True))
            await asyncio.to_thread(pair.coordinator.wait_value, "outrider_requests_running", 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(pair.wait_idle)
    asyncio.run(run())


def test_an_asyncio_stream_outlives_a_coordinator_that_restarts(client: Client, prompts: list[str]) -> None:
    undisturbed = client.generate(prompts[7], temperature=0, **LONG)

    async def run(c: Cluster) -> list[Chunk]:
        async with AsyncClient(c.coordinator.address, retries=PATIENT) as own:
            chunks = []
            async for chunk in own.stream(prompts[7], temperature=0, **LONG):
                chunks.append(chunk)
                if len(chunks) == 5:
                    kill(c)  # in this thread: a process ends with the thread that started it (harness.py)
            return chunks

    with cluster(**LEASED) as c:
        chunks = asyncio.run(run(c))
        assert (tokens_of(chunks), text_of(chunks)) == (list(undisturbed.tokens), undisturbed.text)
        assert went_on_elsewhere(chunks), "not killed in the middle"
        c.wait_idle()
