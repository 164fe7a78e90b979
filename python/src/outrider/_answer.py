"""The results of a generation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from outrider.v1 import inference_pb2, sequence_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
    from google.protobuf.message import Message

# "other" stands for a value that a newer service has and this package doesn't know.
TokenKind = Literal["accepted", "corrected", "bonus", "plain", "other"]
FinishReason = Literal["stop", "length", "other"]


@dataclass(frozen=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability.

    Attributes:
        id: Its id.
        text: Its text, for display.
        logprob: At most 0.
        bytes: Its bytes, if they are not valid text alone, such as part of a character; else empty.
    """

    id: int
    text: str
    logprob: float
    bytes: bytes


@dataclass(frozen=True)
class PositionLogprobs:
    """The target's view of a position: the token at this position, and the most probable tokens, best first."""

    token: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Usage:
    """Counts and times of a generation.

    Attributes:
        prompt_tokens: Tokens of the prompt, including the one that the tokenizer puts first.
        completion_tokens: Tokens of the answer, including those of `resume_from`.
        cached_prompt_tokens: Tokens of the prompt that were not computed, since an earlier request began with them.
        first_token_seconds: From receipt of the request to the first token.
        decode_seconds: From then to the last token.
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
        accepted: Drafted tokens that the target accepted, up to the token that ends the text.
        emitted_accepted: Tokens of the answer that were drafted and accepted.
        emitted_corrected: Tokens of the answer that replace a rejected one.
        emitted_bonus: Tokens of the answer that follow a draft that was fully accepted.
        emitted_plain: Tokens of the answer from rounds without a draft.
        rounds: Calls of the target.
        drafts: Rounds that had a draft.
        acceptance_rate: accepted / drafted; 0 when nothing was drafted.
        mean_accepted_length: 1 + accepted / drafts; 1 when nothing was drafted.
        exact: The text has the target's distribution; False only with `lenience` below 1.
        drafted_per_position: Drafted tokens by position in the draft.
        accepted_per_position: Accepted tokens by position in the draft.
        expected_acceptance: The acceptance that the two distributions predict at positions reached; token rule only.
        observed_over_expected: Accepted tokens divided by their expectation; tends to 1. Token rule only.
        ahead_rounds: Rounds for whose likely outcomes tokens were drafted while they were verified.
        ahead_hits: Those of ahead_rounds whose actual outcome was among the outcomes drafted for.
        schedule: "run_ahead" if ahead_rounds is above 0, else "lockstep".
        tree_rounds: Rounds whose draft was a tree.
        offered_per_rank: Tree nodes whose parent is accepted or the last committed token, by rank among their siblings.
        accepted_per_rank: The accepted ones among them.
        accepted_after_end: Drafted tokens that the target accepted after the token that ends the text; not part of it.
        prediction_tokens: Tokens of the request's prediction.
        accepted_prediction_tokens: The part of `accepted` that was drafted from the prediction.
        mean_round_acceptance: Mean, over rounds with a draft, of the accepted share of its tokens; 0 without any.
        rounds_per_accepted: Rounds with a draft, by the number of its tokens that count in `accepted`.
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
    """One round; times are in microseconds.

    Attributes:
        round: The round's number, from 0.
        drafted: Tokens proposed, in order.
        drafted_text: Their texts.
        accepted: The number of accepted tokens.
        token: The token that follows the accepted ones.
        token_text: Its text.
        kind: The origin of `token`.
        draft_us: Time waiting for the proposal. A target's own proposal was made in the round before, and counts here.
        draft_compute_us: The part of draft_us that the draft server, or the target for its own proposal, reports.
        verify_us: Time waiting for the verdict.
        verify_compute_us: The part of verify_us that the target server reports.
        round_us: Duration of the round.
        draft_bytes: Size on the wire of the drafted tokens and their distributions.
        drafted_ahead: Their drafting began while the previous round was verified.
        branches: The number of this round's possible outcomes for which tokens were drafted while it was verified.
        parents: For a tree, the index of the parent of each drafted token, -1 for the last committed token. Empty for
            a chain.
        path: For a tree, the indices of the accepted tokens.
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
        usage: Counts and times.
        speculation: How the speculation went. For a beam search, only in the first text, and in steps of the search.
        score: Only for a beam search: the score that ranks the text.
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
        first: Its first token. Its `logprob` has no meaning, since nothing comes before it.
    """

    text: str
    first: TokenLogprob


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer: the tokens of one round, or of several that ended together.

    Attributes:
        text: Text that these tokens released; may be empty. Never cut inside a character.
        tokens: Their ids.
        kinds: The origin of each token.
        texts: The text that each token released; `text` is these joined.
        position: Index in the answer of the first token.
        sample: The index of the sample that this chunk belongs to.
        prompt: The prompt, if requested; in the first chunk of the first sample.
        prompt_tokens: Tokens of the prompt; in each sample's first chunk, but after those with only prompt_logprobs.
        logprobs: One for each token, if requested.
        prompt_logprobs: For the prompt's tokens from the second on, if requested. Those of a long prompt
            come in several chunks, of which only the last has a token.
        trace: The round, if requested.
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
        tokens: Its token ids.
        kinds: The origin of each token.
        texts: The text that each token added.
        finish_reason: "stop" for an end id, stop id or stop string; "length" for max_tokens or a full context.
        stop_string: The stop string that matched, if one did.
        usage: Counts and times.
        speculation: How the speculation went. For an answer that was resumed: only its last part.
        score: Only for a beam search: the score that ranks the text.
        prompt: The prompt, if requested; only for the first sample.
        logprobs: One for each token, if requested.
        prompt_logprobs: For the prompt's tokens from the second on, if requested.
        trace: The rounds, if requested.
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
    """The completion of each sample, in order; `chunks` are all chunks of an answer."""
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
    """Converts a message of the stream to the form that callers see."""
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
    """Makes a `cls` from the message's fields of the same names, except those in `given`."""
    values = {
        # Only repeated fields have `extend`.
        field.name: tuple(value) if hasattr(value := getattr(message, field.name), "extend") else value
        for field in fields(cls)  # type: ignore[arg-type]
        if field.name not in given
    }
    return cls(**values, **given)


def enum_name(enum: EnumTypeWrapper, number: int, prefix: str) -> str:
    """DRAFTER_KIND_MODEL becomes "model"; a number that has no name here becomes "other"."""
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
