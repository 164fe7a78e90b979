"""The Python SDK against a coordinator that fails in every way: retries, resumption, errors.

Each test runs with the blocking client and with the one for asyncio.
"""

import pickle
import re
from collections.abc import Iterator

import grpc
import outrider
import pytest
from fake_coordinator import TEXT, TEXTS, TOKENS, Act, Call, FakeCoordinator, chunk, fail, failing, sending, whole
from outrider import Client, Retries
from outrider.v1 import inference_pb2, sequence_pb2
from python_sdk_clients import QUICK, Blocking

UNAVAILABLE, EXHAUSTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED


def test_an_answer_is_its_chunks_joined(of: type[Blocking]) -> None:
    with FakeCoordinator() as server:
        completion = of(server.address).generate()
        chunks = of(server.address).stream()
    assert (completion.text, list(completion.tokens), list(completion.texts)) == (TEXT, TOKENS, TEXTS)
    assert (completion.finish_reason, completion.usage.completion_tokens) == ("length", len(TOKENS))
    assert completion.kinds == ("plain",) * len(TOKENS)
    assert [c.position for c in chunks] == [0, 2, 4, 6, 8]
    assert "".join(c.text for c in chunks) == TEXT
    assert [c.finish is not None for c in chunks] == [False] * 4 + [True]


def test_a_broken_stream_goes_on_where_it_was(of: type[Blocking]) -> None:
    acts = [failing(UNAVAILABLE, after=2), failing(UNAVAILABLE), failing(UNAVAILABLE, "DRAINING", after=1)]
    with FakeCoordinator(*acts) as server:
        chunks = of(server.address).stream(max_tokens=10)
        assert [list(call.request.resume_from) for call in server.calls] == [[], TOKENS[:4], TOKENS[:4], TOKENS[:6]]
        assert {call.request.stop.max_tokens for call in server.calls} == {10}
    assert [token for c in chunks for token in c.tokens] == TOKENS
    assert "".join(c.text for c in chunks) == TEXT


def test_an_answer_given_to_be_resumed_is_resumed_from_there(of: type[Blocking]) -> None:
    with FakeCoordinator(failing(UNAVAILABLE, after=1)) as server:
        completion = of(server.address).generate(resume_from=TOKENS[:4])
        assert [list(call.request.resume_from) for call in server.calls] == [TOKENS[:4], TOKENS[:6]]
    assert list(completion.tokens) == TOKENS[4:]


def test_prompt_logprobs_are_asked_for_once(of: type[Blocking]) -> None:
    with FakeCoordinator(failing(UNAVAILABLE), failing(UNAVAILABLE, after=1)) as server:
        of(server.address).generate(prompt_logprobs=3, logprobs=2)
        options = [call.request.logprobs for call in server.calls]
    assert [o.HasField("prompt") for o in options] == [True, True, False]
    assert [o.top for o in options] == [2, 2, 2]


def test_an_echo_is_asked_for_until_it_has_come(of: type[Blocking]) -> None:
    def echoing(call: Call) -> Iterator[inference_pb2.GenerateResponse]:
        first = chunk(0)
        first.prompt.text = "prompt"
        yield first
        fail(call, UNAVAILABLE)

    with FakeCoordinator(failing(UNAVAILABLE), echoing) as server:
        of(server.address).generate(echo=True)
        assert [call.request.echo for call in server.calls] == [True, True, False]


def test_prompt_logprobs_that_broke_off_are_received_once(of: type[Blocking]) -> None:
    def piece(*ids: int) -> inference_pb2.GenerateResponse:
        return inference_pb2.GenerateResponse(prompt_logprobs=[{"token": {"id": token}} for token in ids])

    def scoring(broken: bool) -> Act:
        def act(call: Call) -> Iterator[inference_pb2.GenerateResponse]:
            yield piece(1, 2)
            yield piece(3)
            if broken:
                fail(call, UNAVAILABLE)
            yield piece(4, 5)
            yield from whole(call)
        return act

    with FakeCoordinator(scoring(broken=True), scoring(broken=False)) as server:
        completion = of(server.address).generate(prompt_logprobs=0)
        assert [call.request.logprobs.HasField("prompt") for call in server.calls] == [True, True]
    assert [position.token.id for position in completion.prompt_logprobs] == [1, 2, 3, 4, 5]
    assert completion.text == TEXT


@pytest.mark.parametrize("options, drawn", [({"rule": "coupled"}, True), ({"rule": "coupled", "seed": 7}, False),
                                            ({"rule": "token"}, False), ({"seed": 7}, False), ({}, False)])
def test_a_seed_is_drawn_where_the_continuation_depends_on_it(options: dict[str, object], drawn: bool,
                                                              of: type[Blocking]) -> None:
    with FakeCoordinator(failing(UNAVAILABLE, after=1)) as server:
        of(server.address).generate(**options)
        before, after = [call.request for call in server.calls]
    assert before.HasField("seed") == (drawn or "seed" in options)
    assert (before.HasField("seed"), before.seed) == (after.HasField("seed"), after.seed)
    assert drawn or before.seed == options.get("seed", 0)


def test_several_samples_are_not_resumed_but_tried_again_before_they_begin(of: type[Blocking]) -> None:
    with FakeCoordinator(failing(UNAVAILABLE), failing(UNAVAILABLE)) as server:
        assert [c.text for c in of(server.address).samples(3)] == [TEXT] * 3
        assert len(server.calls) == 3
    with FakeCoordinator(failing(UNAVAILABLE, "DRAINING", after=1)) as server:
        with pytest.raises(outrider.Unavailable):
            of(server.address).samples(3)
        assert len(server.calls) == 1


def test_samples_are_told_apart(of: type[Blocking]) -> None:
    pieces = [chunk(0, sample=1, tokens=5), chunk(0, sample=0, end=2), chunk(5, sample=1, tokens=5)]
    with FakeCoordinator(sending(*pieces)) as server:
        completions = of(server.address).samples(2)
        assert server.calls[0].request.n == 2
    assert [list(c.tokens) for c in completions] == [TOKENS[:2], TOKENS]


def test_a_busy_service_is_asked_again_when_it_said(of: type[Blocking]) -> None:
    busy = failing(EXHAUSTED, "QUEUE_FULL", retry_after=0.01)
    with FakeCoordinator(busy, busy) as server:
        assert of(server.address).generate().text == TEXT
        assert len(server.calls) == 3


@pytest.mark.parametrize("error, retries", [
    (failing(EXHAUSTED, "QUEUE_FULL", retry_after=3600), QUICK),  # longer than the budget
    (failing(EXHAUSTED, "MESSAGE_TOO_LARGE"), QUICK),  # without a retry delay
    (failing(UNAVAILABLE, "DRAINING"), Retries(budget=0)),
    (failing(grpc.StatusCode.INTERNAL, "LOGITS_NOT_FINITE"), QUICK),
    (failing(grpc.StatusCode.DEADLINE_EXCEEDED, "BUDGET_EXCEEDED"), QUICK)])
def test_what_cannot_get_better_in_time_is_raised_at_once(error: object, retries: Retries, of: type[Blocking]) -> None:
    with FakeCoordinator(error) as server:
        with pytest.raises(outrider.OutriderError, match="it is "):
            of(server.address, retries).generate()
        assert len(server.calls) == 1


def test_retries_end_with_their_budget(of: type[Blocking]) -> None:
    with FakeCoordinator() as server:
        pass  # nothing listens there any more
    with pytest.raises(outrider.Unavailable) as error:
        of(server.address, Retries(budget=0.05, initial=0.001, maximum=0.01)).generate()
    assert error.value.reason == "UNAVAILABLE"


ERRORS = {
    grpc.StatusCode.INVALID_ARGUMENT: outrider.InvalidArgument,
    grpc.StatusCode.FAILED_PRECONDITION: outrider.FailedPrecondition,
    grpc.StatusCode.UNAUTHENTICATED: outrider.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: outrider.PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: outrider.ResourceExhausted,
    grpc.StatusCode.DEADLINE_EXCEEDED: outrider.DeadlineExceeded,
    grpc.StatusCode.CANCELLED: outrider.Cancelled,
    grpc.StatusCode.UNAVAILABLE: outrider.Unavailable,
    grpc.StatusCode.INTERNAL: outrider.Internal,
    grpc.StatusCode.UNIMPLEMENTED: outrider.Unimplemented,
    grpc.StatusCode.DATA_LOSS: outrider.DataLoss,
    grpc.StatusCode.ABORTED: outrider.OutriderError,
}


@pytest.mark.parametrize("code", ERRORS, ids=lambda code: code.name)
def test_an_error_carries_what_the_service_said(code: grpc.StatusCode, of: type[Blocking]) -> None:
    said = failing(code, "FIELD_INVALID", retry_after=7.25, field="sampling.top_p", range="(0, 1]")
    with FakeCoordinator(said) as server, pytest.raises(outrider.OutriderError) as raised:
        of(server.address, Retries(budget=0)).generate()
    error = raised.value
    assert type(error) is ERRORS[code]
    assert (error.code, error.reason, error.field, error.retry_after) == (code, "FIELD_INVALID", "sampling.top_p", 7.25)
    assert error.metadata == {"field": "sampling.top_p", "range": "(0, 1]"}
    assert str(error) == f"it is FIELD_INVALID ({code.name}, FIELD_INVALID)"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)


def test_an_error_without_details_has_its_codes_name_as_reason(of: type[Blocking]) -> None:
    with FakeCoordinator(failing(grpc.StatusCode.INTERNAL)) as server, pytest.raises(outrider.Internal) as raised:
        of(server.address).generate()
    error = raised.value
    assert (error.reason, error.field, error.retry_after, error.metadata) == ("INTERNAL", None, None, {})


def test_an_answer_that_has_its_end_is_whole_whatever_follows(of: type[Blocking]) -> None:
    with FakeCoordinator(failing(UNAVAILABLE, after=5)) as server:
        assert of(server.address).generate().text == TEXT
        assert len(server.calls) == 1


@pytest.mark.parametrize("responses, reason", [
    ([chunk(0)], "ANSWER_INCOMPLETE"), ([], "ANSWER_INCOMPLETE"), ([chunk(0), chunk(4)], "ANSWER_GAP"),
    ([chunk(0), chunk(0)], "ANSWER_GAP"), ([chunk(0, sample=1)], "ANSWER_GAP")])
def test_an_answer_with_a_hole_is_an_error(responses: list[object], reason: str, of: type[Blocking]) -> None:
    with FakeCoordinator(sending(*responses)) as server, pytest.raises(outrider.DataLoss) as error:
        of(server.address).generate()
    assert error.value.reason == reason


def test_metadata_goes_with_the_call(of: type[Blocking]) -> None:
    with FakeCoordinator() as server:
        of(server.address).generate(metadata={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
        assert server.calls[0].metadata["traceparent"].startswith("00-0af7")
        assert server.calls[0].metadata["user-agent"].startswith(f"outrider-python/{outrider.__version__} ")


def test_a_service_that_comes_back_is_described(of: type[Blocking]) -> None:
    with FakeCoordinator() as server:
        description = of(server.address).describe()
    assert (description.version, description.target, description.draft) == ("fake", None, None)
    assert (description.defaults.rule, description.defaults.draft_tokens) == ("token", None)
    with pytest.raises(outrider.Unavailable):
        of(server.address, Retries(budget=0)).describe()


def test_a_drawn_seed_is_another_one_each_time() -> None:
    with FakeCoordinator() as server, Client(server.address) as client:
        for _ in range(3):
            client.generate("x", rule="coupled")
    assert len({call.request.seed for call in server.calls}) == 3
    assert server.calls[0].request.speculation.rule == sequence_pb2.RULE_COUPLED


def test_calls_overlap() -> None:
    with FakeCoordinator(*[whole] * 8) as server, Client(server.address) as client:
        streams = [client.stream("x") for _ in range(4)]
        rounds = [[next(stream) for stream in streams] for _ in range(5)]
    assert all([c.position for c in chunks] == [2 * index] * 4 for index, chunks in enumerate(rounds))


@pytest.mark.parametrize("address", ["", "host", ":1", "127.0.0.1:0", "127.0.0.1:99999", "http://127.0.0.1:1", "::1:1"])
def test_what_is_no_address_is_refused(of: type[Blocking], address: str) -> None:
    # gRPC would call port 34463 for 99999.
    with pytest.raises(ValueError, match="neither HOST:PORT"):
        of(address).generate()


@pytest.mark.parametrize(("metadata", "field"), [
    ({"Traceparent": "a"}, "metadata"),
    ({"grpc-timeout": "1S"}, "metadata"),
    ({"a-bin": "a"}, "metadata"),
    ({"a": "\u00e9"}, "metadata.a"),
    ({"a": "1\n2"}, "metadata.a"),
])
def test_metadata_that_cannot_be_sent_is_refused(of: type[Blocking], metadata: dict[str, str], field: str) -> None:
    with FakeCoordinator() as server:
        with pytest.raises(outrider.InvalidArgument) as error:
            of(server.address).generate(metadata=metadata)
        assert error.value.field == field
        assert server.calls == []


@pytest.mark.parametrize(("code", "said"), [
    (grpc.StatusCode.UNIMPLEMENTED, "is it another service?"), (grpc.StatusCode.UNAVAILABLE, "without a reason")])
def test_an_error_without_words_gets_some(of: type[Blocking], code: grpc.StatusCode, said: str) -> None:
    def act(call: Call) -> Iterator[inference_pb2.GenerateResponse]:
        call.context.set_code(code)
        return iter(())

    with FakeCoordinator(act) as server, pytest.raises(outrider.OutriderError, match=re.escape(said)):
        of(server.address, retries=Retries(budget=0)).generate()
