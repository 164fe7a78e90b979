"""The options of a generation, and the request built from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from google.protobuf.descriptor import FieldDescriptor

from outrider._errors import field_error
from outrider.v1 import inference_pb2, sequence_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
    from google.protobuf.message import Message


class _Turn(TypedDict):
    role: str
    content: str | list[str]


class ChatMessage(_Turn, total=False):
    """One turn of a conversation.

    Attributes:
        role: The speaker: "system", "developer", "user", "assistant", "tool" or "function".
        content: The message's text, or a list of its parts.
        name: The speaker's name. This field and the next three are for templates that read them.
        tool_call_id: The tool call that this message answers.
        reasoning_content: The assistant's reasoning before its answer.
        tool_calls: The calls that the assistant made, in OpenAI's form.
    """

    name: str
    tool_call_id: str
    reasoning_content: str
    tool_calls: list[Mapping[str, Any]]


# Text, token ids, or a conversation up to where the assistant is to speak. Ids and messages must not be mixed, but
# type checkers understand a list of dictionaries only in this form.
Prompt = str | Sequence[int | ChatMessage]
DrafterName = Literal[
    "model",
    "both_models",
    "ngram",
    "copy",
    "auto",
    "none",
    "medusa",
    "blockwise",
    "eagle",
    "layer_skip",
    "pass",
    "grammar",
]
RuleName = Literal["token", "block", "coupled"]
ScheduleName = Literal["lockstep", "run_ahead", "auto"]
SiblingOrderName = Literal["given", "random"]
BeamStopName = Literal["auto", "first", "never"]


class Options(TypedDict, total=False):
    """The options of a generation. None is the same as leaving an option out: the coordinator's default applies.

    proto/outrider/v1 has the ranges. Each option is the field of the same name there, in
    SamplingParams, StopOptions, SpeculationOptions, LogprobOptions or GenerateRequest.

    Attributes:
        max_tokens: The most tokens to emit. Default: all that fit the context. 0: only the prompt is scored.
        temperature: 0 takes the most probable token. Default: 1.
        top_k: Keep this many of the most probable tokens. Default: all.
        top_p: Keep the smallest set with this mass. Default: all.
        min_p: Drop tokens below this share of the largest probability. Default: none.
        repetition_penalty: Divides positive logits of tokens that have occurred, multiplies negative ones. Default: 1.
        presence_penalty: Subtracted from the logits of tokens in the output. Default: 0.
        frequency_penalty: Subtracted from a token's logit for each of its occurrences in the output. Default: 0.
        logit_bias: Values to add to the logits of these token ids.
        allowed_ids: The only token ids that can be drawn.
        bad_ids: Token ids that are never drawn.
        min_tokens: The answer does not end before this many tokens.
        json_schema: The text is JSON that validates against this schema (a dictionary, or JSON text). At most one of
            this option and the next four can be set.
        regex: The text matches this regular expression as a whole.
        choices: The text is one of these.
        grammar: The text follows this grammar, in llama.cpp's GBNF notation.
        structural_tag: The text is free outside of tags and follows a grammar inside each, as described by XGrammar's
            structural tags (a dictionary, or JSON text).
        seed: Makes the answer repeatable. Default: a new seed for each request.
        sample_index: Distinguishes samples with the same seed. Default: 0.
        stop: A text or several texts that end the answer and are not part of it.
        stop_token_ids: Token ids that end the answer.
        ignore_eos: Continue past the model's own end-of-sequence ids.
        drafter: The source of proposed tokens; speed only. "medusa" to "pass" are the target itself, if it has them.
        draft_tokens: The number of tokens to draft for a round; speed only. 0: plain decoding.
        rule: How proposals are verified; speed only.
        schedule: Whether the draft works while the target verifies; speed only.
        tree: A tree of tokens to draft: "2x2x1", "chains:3", "budget:12", "auto" or "none"; speed only.
        sibling_order: The order in which drafted tokens for one position are tried: "given" or "random"; speed only.
        draft_top_n: The number of tokens kept of the draft's distribution; speed only.
        draft_temperature: The draft's own temperature; speed only.
        lenience: Below 1, decoding is faster and not exact.
        max_context: Draft only while prompt and answer have fewer tokens than this; speed only.
        beam_width: Search for the likeliest text instead of sampling, and follow this many texts; `n` are returned.
        beam_draft_width: The number of texts that the draft follows; speed only.
        length_penalty: A text's score is its log-probability divided by its length to this power. Default: 1.
        beam_stop: When a search ends: "auto", "first" (as soon as enough texts have ended) or "never" (when no text
            can become better).
        logprobs: Report each token's log-probability, with this many alternatives.
        logprobs_before_controls: Report the model's own log-probabilities, before temperature and other controls.
        prompt_logprobs: Report the log-probabilities of the prompt too, with this many alternatives.
        tools: The tools that the model may call, as in OpenAI's API; for a conversation. See Description.tool_format.
        chat_template_kwargs: Further variables of the chat template, such as enable_thinking; for a conversation.
        continue_final_message: Continue the last message of a conversation instead of answering it.
        echo: Send the prompt back.
        prediction: Text that much of the answer is likely to repeat; speed only.
        trace: Report each round.
        resume_from: Token ids that an interrupted call of the same request emitted, to be continued.
    """

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    allowed_ids: Sequence[int] | None
    bad_ids: Sequence[int] | None
    min_tokens: int | None
    json_schema: Mapping[str, Any] | str | None
    regex: str | None
    choices: Sequence[str] | None
    grammar: str | None
    structural_tag: Mapping[str, Any] | str | None
    seed: int | None
    sample_index: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    drafter: DrafterName | None
    draft_tokens: int | None
    rule: RuleName | None
    schedule: ScheduleName | None
    tree: str | None
    sibling_order: SiblingOrderName | None
    draft_top_n: int | None
    draft_temperature: float | None
    lenience: float | None
    max_context: int | None
    beam_width: int | None
    beam_draft_width: int | None
    length_penalty: float | None
    beam_stop: BeamStopName | None
    logprobs: int | None
    logprobs_before_controls: bool | None
    prompt_logprobs: int | None
    chat_template_kwargs: Mapping[str, Any] | None
    continue_final_message: bool | None
    tools: Sequence[Mapping[str, Any]] | None
    echo: bool | None
    prediction: str | None
    trace: bool | None
    resume_from: Sequence[int] | None


def _numbers(enum: EnumTypeWrapper, prefix: str) -> dict[str, int]:
    """The enumeration's values by name, except 0, which means unspecified."""
    return {name.removeprefix(prefix).lower(): number for name, number in enum.items() if number}


_DRAFTERS = _numbers(inference_pb2.DrafterKind, "DRAFTER_KIND_")
_RULES = _numbers(sequence_pb2.Rule, "RULE_")
_SCHEDULES = _numbers(inference_pb2.Schedule, "SCHEDULE_")
_SIBLING_ORDERS = _numbers(sequence_pb2.SiblingOrder, "SIBLING_ORDER_")
_BEAM_STOPS = _numbers(inference_pb2.BeamStop, "BEAM_STOP_")

# Option -> its place: the path of a message in the request ("" for the request itself), and the field there.
_FIELDS = {
    "max_tokens": ("stop", "max_tokens"),
    "stop": ("stop", "strings"),
    "stop_token_ids": ("stop", "token_ids"),
    "ignore_eos": ("stop", "ignore_eos"),
    "temperature": ("sampling", "temperature"),
    "top_k": ("sampling", "top_k"),
    "top_p": ("sampling", "top_p"),
    "min_p": ("sampling", "min_p"),
    "repetition_penalty": ("sampling", "repetition_penalty"),
    "presence_penalty": ("sampling", "presence_penalty"),
    "frequency_penalty": ("sampling", "frequency_penalty"),
    "logit_bias": ("sampling", "logit_bias"),
    "allowed_ids": ("sampling", "allowed_ids"),
    "bad_ids": ("sampling", "bad_ids"),
    "min_tokens": ("sampling", "min_tokens"),
    "json_schema": ("sampling.grammar", "json_schema"),
    "regex": ("sampling.grammar", "regex"),
    "choices": ("sampling.grammar.choices", "texts"),
    "grammar": ("sampling.grammar", "ebnf"),
    "structural_tag": ("sampling.grammar", "structural_tag"),
    "drafter": ("speculation", "drafter"),
    "draft_tokens": ("speculation", "draft_tokens"),
    "rule": ("speculation", "rule"),
    "schedule": ("speculation", "schedule"),
    "tree": ("speculation", "tree"),
    "sibling_order": ("speculation", "sibling_order"),
    "draft_top_n": ("speculation", "draft_top_n"),
    "draft_temperature": ("speculation", "draft_temperature"),
    "lenience": ("speculation", "lenience"),
    "max_context": ("speculation", "max_context"),
    "beam_width": ("beam", "width"),
    "beam_draft_width": ("beam", "draft_width"),
    "length_penalty": ("beam", "length_penalty"),
    "beam_stop": ("beam", "stop"),
    "logprobs": ("logprobs", "top"),
    "logprobs_before_controls": ("logprobs", "before_controls"),
    "prompt_logprobs": ("logprobs", "prompt"),
    "chat_template_kwargs": ("chat", "chat_template_kwargs"),
    "continue_final_message": ("chat", "continue_final_message"),
    "tools": ("chat", "tools"),
    "seed": ("", "seed"),
    "sample_index": ("", "sample_index"),
    "echo": ("", "echo"),
    "prediction": ("", "prediction"),
    "trace": ("", "trace"),
    "resume_from": ("", "resume_from"),
}


# Options of which at most one can be set.
_GRAMMARS = [name for name, (part, _) in _FIELDS.items() if part.startswith("sampling.grammar")]

_TEMPLATE_FIELDS = {"name", "reasoning_content", "tool_call_id", "tool_calls"}

# The range that a field's type can hold; the coordinator checks the allowed range.
_RANGES = {
    FieldDescriptor.TYPE_UINT32: f"0 to {2**32 - 1}",
    FieldDescriptor.TYPE_UINT64: f"0 to {2**64 - 1}",
    FieldDescriptor.TYPE_FLOAT: "a number",
    FieldDescriptor.TYPE_DOUBLE: "a number",
    FieldDescriptor.TYPE_STRING: "text without lone surrogates",
}


def build_request(prompt: Prompt, n: int, options: Options) -> inference_pb2.GenerateRequest:
    """Builds the request.

    InvalidArgument for values that cannot be sent, TypeError for unknown options and wrong types, ValueError for
    two options of which only one can be set.
    """
    request = inference_pb2.GenerateRequest()
    _set_prompt(request, prompt)
    if n != 1:
        _set(request, "n", n, "n")
    grammars = [name for name in _GRAMMARS if options.get(name) is not None]
    if len(grammars) > 1:
        raise ValueError(f"{' and '.join(grammars)}: the text is held to one grammar")
    for name, value in options.items():
        if name not in _FIELDS:
            raise TypeError(f"{name!r} is not an option; there are: {', '.join(_FIELDS)}")
        if value is None:
            continue
        part, field = _FIELDS[name]
        if part == "chat" and not request.HasField("chat"):
            raise TypeError(f"{name}: the prompt is not a conversation")
        message: Message = attrgetter(part)(request) if part else request
        _set(message, field, _wire_value(name, value), f"{part}.{field}".lstrip("."))
    return request


def _set_prompt(request: inference_pb2.GenerateRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        _set(request, "text", prompt, "text")
        return
    items: list[Any] = _list(prompt, "prompt")
    if not any(isinstance(item, Mapping) for item in items):
        request.tokens.SetInParent()
        _set(request.tokens, "ids", items, "tokens.ids")
        return
    for item in items:
        message = request.chat.messages.add()
        if not isinstance(item, Mapping) or not item.keys() <= {"role", "content"} | _TEMPLATE_FIELDS:
            raise TypeError(
                f"prompt: a message has role and content, perhaps {', '.join(sorted(_TEMPLATE_FIELDS))}: {item!r}"
            )
        for key in item.keys() & {"role", "content"}:
            field = "parts" if key == "content" and isinstance(item[key], list) else key
            _set(message, field, item[key], f"chat.messages.{field}")
        if more := {key: value for key, value in item.items() if key in _TEMPLATE_FIELDS}:
            message.fields = json.dumps(more)


def _wire_value(name: str, value: Any) -> Any:
    """The field's value for an option's value."""
    if name == "drafter":
        return _number(_DRAFTERS, value, "speculation.drafter")
    if name == "rule":
        return _number(_RULES, value, "speculation.rule")
    if name == "schedule":
        return _number(_SCHEDULES, value, "speculation.schedule")
    if name == "sibling_order":
        return _number(_SIBLING_ORDERS, value, "speculation.sibling_order")
    if name == "beam_stop":
        return _number(_BEAM_STOPS, value, "beam.stop")
    if name in ("chat_template_kwargs", "tools"):
        return json.dumps(value)
    if name in ("json_schema", "structural_tag") and isinstance(value, Mapping):
        return json.dumps(value)
    if name == "stop":
        return [value] if isinstance(value, str) else list(value)
    if name == "logit_bias":
        return [_logit_bias(token, bias) for token, bias in value.items()]
    if name == "choices":
        return _list(value, name, "texts")
    if name in ("allowed_ids", "bad_ids", "stop_token_ids", "resume_from"):
        return _list(value, name)
    return value


def _number(numbers: Mapping[str, int], name: str, field: str) -> int:
    if name not in numbers:
        raise field_error(field, ", ".join(numbers), f"unknown value {name!r}")
    return numbers[name]


def _list(items: Sequence[Any], name: str, of: str = "token ids") -> list[Any]:
    # A str or bytes would be split up, and the elements of bytes are even integers.
    if isinstance(items, (str, bytes)):
        raise TypeError(f"{name}: a sequence of {of} is wanted, not {type(items).__name__}")
    return list(items)


def _logit_bias(token: int, bias: float) -> sequence_pb2.LogitBias:
    entry = sequence_pb2.LogitBias()
    _set(entry, "token", token, "sampling.logit_bias")
    _set(entry, "bias", bias, "sampling.logit_bias")
    return entry


def _set(message: Message, field: str, value: Any, path: str) -> None:
    """Sets a field. Names it in errors, since protobuf's own errors don't."""
    try:
        if isinstance(value, list):
            getattr(message, field).extend(value)
        else:
            setattr(message, field, value)
    except ValueError as error:
        raise field_error(path, _RANGES[message.DESCRIPTOR.fields_by_name[field].type], str(error)) from error
    except TypeError as error:
        raise TypeError(f"{path}: {error}") from error
