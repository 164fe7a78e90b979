"""What comes back from a generation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from outrider.v1 import inference_pb2, sequence_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
    from google.protobuf.message import Message

# "other" is one that a newer service has and this package doesn't know.
TokenKind = Literal["accepted", "corrected", "bonus", "plain", "other"]
FinishReason = Literal["stop", "length", "other"]


@dataclass(frozen=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability.

    Attributes:
        id: Its id.
        text: Its text, to be shown.
        logprob: At most 0.
        bytes: Its bytes, where they are no text by themselves, as of a part of a character; else empty.
    """

    id: int
    text: str
    logprob: float
    bytes: bytes


@dataclass(frozen=True)
class PositionLogprobs:
    """How a position looked to the target: the token that stands there, and the most probable ones, best first."""

    token: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Usage:
    """Counts and times of a generation.

    Attributes:
        prompt_tokens: Tokens of the prompt, the one that the tokenizer begins with included.
        completion_tokens: Tokens of the answer, those of `resume_from` included.
        cached_prompt_tokens: Tokens of the prompt that were not computed, since an earlier request began alike.
        first_token_seconds: From receipt of the request to the first token.
        decode_seconds: From there to the last one.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int
    first_token_seconds: float
    decode_seconds: float
    max_tokens: int


@dataclass(frozen=True)
class Speculation:
    """How the speculation of a generation went.

    Attributes:
        drafted: Tokens proposed to the target.
        accepted: Of those, kept by the target, up to the token that ends the text.
        emitted_accepted: Tokens of the answer that were drafted and kept.
        emitted_corrected: Tokens of the answer that stand for a rejected one.
        emitted_bonus: Tokens of the answer that followed a draft that was kept whole.
        emitted_plain: Tokens of the answer from rounds without a draft.
        rounds: Calls of the target.
        drafts: Rounds that had a draft.
        acceptance_rate: accepted / drafted; 0 when nothing was drafted.
        mean_accepted_length: 1 + accepted / drafts; 1 when nothing was drafted.
        exact: The text has the target's distribution; False only with `lenience` below 1.
        drafted_per_position: Drafted tokens by position in the draft.
        accepted_per_position: Accepted tokens by position in the draft.
        expected_acceptance: What the two distributions lead to expect, by position reached; token rule only.
        observed_over_expected: Accepted over expected accepted tokens; tends to 1. Token rule only.
        ahead_rounds: Rounds whose outcome was drafted for while they were verified.
        ahead_hits: Of those, rounds whose outcome was among what was drafted for.
        schedule: "run_ahead" if there were any, else "lockstep".
        tree_rounds: Rounds whose draft was a tree.
        offered_per_rank: Nodes of trees that follow a kept one, by their place among their siblings.
        accepted_per_rank: Of those, kept ones.
        accepted_after_end: Drafted tokens that the target kept behind the one that ends the text; in no other count.
        prediction_tokens: Tokens of the request's prediction.
        accepted_prediction_tokens: Of `accepted`, those that were drafted from it.
        mean_round_acceptance: Mean over rounds with a draft of the accepted share of its tokens; 0 without any.
        rounds_per_accepted: Rounds with a draft, by how many of its tokens were kept.
    """

    drafted: int
    accepted: int
    emitted_accepted: int
    emitted_corrected: int
    emitted_bonus: int
    emitted_plain: int
    rounds: int
    drafts: int
    acceptance_rate: float
    mean_accepted_length: float
    exact: bool
    drafted_per_position: tuple[int, ...]
    accepted_per_position: tuple[int, ...]
    expected_acceptance: float
    observed_over_expected: float
    ahead_rounds: int
    ahead_hits: int
    schedule: str
    tree_rounds: int
    offered_per_rank: tuple[int, ...]
    accepted_per_rank: tuple[int, ...]
    accepted_after_end: int
    prediction_tokens: int
    accepted_prediction_tokens: int
    mean_round_acceptance: float
    rounds_per_accepted: tuple[int, ...]


@dataclass(frozen=True)
class Round:
    """What happened in one round; times are in microseconds.

    Attributes:
        round: Counts from 0.
        drafted: Tokens proposed, in order.
        drafted_text: Their texts.
        accepted: How many of them were kept.
        token: The token after them.
        token_text: Its text.
        kind: Where it came from.
        draft_us: Waiting for the proposal. One of the target's own was made in the round before, and counts here.
        draft_compute_us: Of that, the draft server's own time, or the target's.
        verify_us: Waiting for the verdict.
        verify_compute_us: Of that, the target server's own time.
        round_us: The whole round.
        draft_bytes: What the drafted tokens and their distributions took on the wire.
        drafted_ahead: They were begun while the round before was verified.
        branches: Outcomes of this round that were drafted for while it was verified.
        parents: Of a tree, the index of the token that each one follows, -1 for the last committed one. Of a chain,
            empty.
        path: Of a tree, the indices of those that were kept.
    """

    round: int
    drafted: tuple[int, ...]
    drafted_text: tuple[str, ...]
    accepted: int
    token: int
    token_text: str
    kind: TokenKind
    draft_us: int
    draft_compute_us: int
    verify_us: int
    verify_compute_us: int
    round_us: int
    draft_bytes: int
    drafted_ahead: bool
    branches: int
    parents: tuple[int, ...]
    path: tuple[int, ...]


@dataclass(frozen=True)
class Finish:
    """The end of an answer.

    Attributes:
        reason: "stop" for an end id, stop id or stop string; "length" for max_tokens or a full context.
        stop_string: The stop string that matched, if one did.
        usage: What was used.
        speculation: How the speculation went. Of a beam search it is in the first text's only, in steps of the search.
        score: Only of a beam search: what the text was ranked by.
    """

    reason: FinishReason
    stop_string: str | None
    usage: Usage
    speculation: Speculation
    score: float | None


@dataclass(frozen=True)
class EchoedPrompt:
    """A prompt as the target reads it.

    Attributes:
        text: Its text, without special tokens.
        first: Its first token, of which `logprob` says nothing, as nothing comes before it.
    """

    text: str
    first: TokenLogprob


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer: what one round committed.

    Attributes:
        text: Text that these tokens released, perhaps none; never cut inside a character.
        tokens: Their ids.
        kinds: Where each came from.
        texts: What each of them released; `text` is these joined.
        position: Index in the answer of the first of them.
        sample: Which of several samples this is a piece of.
        prompt: The prompt, if it was asked for; in the first chunk of the first sample.
        prompt_tokens: Tokens of the prompt; in the first chunk of each sample, else 0.
        logprobs: One for each token, if they were asked for.
        prompt_logprobs: Of the prompt's tokens from the second on, if they were asked for. Those of a long prompt
            come in several chunks, of which only the last has a token.
        trace: The round, if it was asked for.
        finish: Only in the last chunk of a sample.
    """

    text: str
    tokens: tuple[int, ...]
    kinds: tuple[TokenKind, ...]
    texts: tuple[str, ...]
    position: int
    sample: int
    prompt: EchoedPrompt | None
    prompt_tokens: int
    logprobs: tuple[PositionLogprobs, ...]
    prompt_logprobs: tuple[PositionLogprobs, ...]
    trace: Round | None
    finish: Finish | None


@dataclass(frozen=True)
class Completion:
    """A complete answer.

    Attributes:
        text: The text.
        tokens: Its ids.
        kinds: Where each came from.
        texts: What each of them added to the text.
        finish_reason: "stop" for an end id, stop id or stop string; "length" for max_tokens or a full context.
        stop_string: The stop string that matched, if one did.
        usage: What was used.
        speculation: How the speculation went. Of an answer that was resumed: how its last part went.
        score: Only of a beam search: what the text was ranked by.
        prompt: The prompt, if it was asked for; only of the first sample.
        logprobs: One for each token, if they were asked for.
        prompt_logprobs: Of the prompt's tokens from the second on, if they were asked for.
        trace: The rounds, if they were asked for.
    """

    text: str
    tokens: tuple[int, ...]
    kinds: tuple[TokenKind, ...]
    texts: tuple[str, ...]
    finish_reason: FinishReason
    stop_string: str | None
    usage: Usage
    speculation: Speculation
    score: float | None
    prompt: EchoedPrompt | None
    logprobs: tuple[PositionLogprobs, ...]
    prompt_logprobs: tuple[PositionLogprobs, ...]
    trace: tuple[Round, ...]


def join(chunks: Iterable[Chunk]) -> list[Completion]:
    """The completion of each sample, in order; the chunks are those of a whole answer."""
    samples: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        samples.setdefault(chunk.sample, []).append(chunk)
    return [_join_sample(samples[sample]) for sample in sorted(samples)]


def _join_sample(chunks: Sequence[Chunk]) -> Completion:
    finish = chunks[-1].finish
    assert finish is not None, "the last chunk has the end"
    return Completion(
        text="".join(c.text for c in chunks),
        tokens=tuple(chain.from_iterable(c.tokens for c in chunks)),
        kinds=tuple(chain.from_iterable(c.kinds for c in chunks)),
        texts=tuple(chain.from_iterable(c.texts for c in chunks)),
        finish_reason=finish.reason,
        stop_string=finish.stop_string,
        usage=finish.usage,
        speculation=finish.speculation,
        score=finish.score,
        prompt=next((c.prompt for c in chunks if c.prompt is not None), None),
        logprobs=tuple(chain.from_iterable(c.logprobs for c in chunks)),
        prompt_logprobs=tuple(chain.from_iterable(c.prompt_logprobs for c in chunks)),
        trace=tuple(c.trace for c in chunks if c.trace is not None),
    )


def to_chunk(response: inference_pb2.GenerateResponse) -> Chunk:
    """A message of the stream, as callers see it."""
    tokens = response.tokens
    return Chunk(
        text=response.text,
        tokens=tuple(token.id for token in tokens),
        kinds=tuple(_kind(token.kind) for token in tokens),
        texts=tuple(token.text for token in tokens),
        position=response.position,
        sample=response.sample,
        prompt=_prompt(response.prompt) if response.HasField("prompt") else None,
        prompt_tokens=response.prompt_tokens,
        logprobs=tuple(_position(token.logprobs) for token in tokens if token.HasField("logprobs")),
        prompt_logprobs=tuple(_position(position) for position in response.prompt_logprobs),
        trace=plain(Round, response.trace, kind=_kind(response.trace.kind)) if response.HasField("trace") else None,
        finish=_finish(response.finish) if response.HasField("finish") else None,
    )


T = TypeVar("T")


def plain(cls: type[T], message: Message, **given: Any) -> T:
    """A `cls` whose fields are those of the same names in the message, but for the ones that are given."""
    values = {
        # Repeated fields are the only ones that have an extend.
        field.name: tuple(value) if hasattr(value := getattr(message, field.name), "extend") else value
        for field in fields(cls)  # type: ignore[arg-type]
        if field.name not in given
    }
    return cls(**values, **given)


def enum_name(enum: EnumTypeWrapper, number: int, prefix: str) -> str:
    """DRAFTER_KIND_MODEL is "model"; a number that has no name here is "other"."""
    return enum.Name(number).removeprefix(prefix).lower() if number and number in enum.values() else "other"


def _kind(number: int) -> TokenKind:
    return cast("TokenKind", enum_name(sequence_pb2.TokenKind, number, "TOKEN_KIND_"))


def _position(position: sequence_pb2.PositionLogprobs) -> PositionLogprobs:
    return PositionLogprobs(plain(TokenLogprob, position.token), tuple(plain(TokenLogprob, t) for t in position.top))


def _prompt(prompt: inference_pb2.EchoedPrompt) -> EchoedPrompt:
    return EchoedPrompt(prompt.text, plain(TokenLogprob, prompt.first))


def _finish(finish: inference_pb2.Finish) -> Finish:
    reason = enum_name(inference_pb2.FinishReason, finish.reason, "FINISH_REASON_")
    return Finish(
        reason=cast("FinishReason", reason),
        stop_string=finish.stop_string or None,
        usage=plain(Usage, finish.usage),
        speculation=plain(
            Speculation,
            finish.speculation,
            schedule=enum_name(inference_pb2.Schedule, finish.speculation.schedule, "SCHEDULE_"),
        ),
        score=finish.score if finish.HasField("score") else None,
    )
