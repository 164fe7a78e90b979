"""The options of a generation, and the request that they make."""

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
        role: Who speaks: "system", "developer", "user", "assistant", "tool" or "function".
        content: What is said, perhaps in several parts.
        name: Of who speaks. Like the next two for templates that read it.
        tool_call_id: Which call of a tool this answers.
        reasoning_content: What the assistant thought before.
    """

    name: str
    tool_call_id: str
    reasoning_content: str


# Text, token ids, or a conversation up to where the assistant is to speak; not a mixture, though type checkers
# understand a list of dictionaries in this form only.
Prompt = str | Sequence[int | ChatMessage]
DrafterName = Literal[
    "model",
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
    """What can be asked of a generation; None is the same as leaving it out, which leaves it to the coordinator.

    proto/outrider/v1 has the ranges. Each name stands for the field of the same name there, in
    SamplingParams, StopOptions, SpeculationOptions, LogprobOptions or GenerateRequest.

    Attributes:
        max_tokens: Most tokens to emit; what the context leaves. 0: only the prompt is scored.
        temperature: 0 takes the most probable token; 1.
        top_k: Keep this many of the most probable tokens; all.
        top_p: Keep the smallest set with this mass; all.
        min_p: Drop tokens below this share of the largest probability; none.
        repetition_penalty: Divides the logits of tokens that have occurred; 1.
        presence_penalty: Taken off the logits of tokens in the output; 0.
        frequency_penalty: The same for each time that a token occurs; 0.
        logit_bias: Added to the logits of these token ids.
        allowed_ids: Only these tokens.
        bad_ids: None of these tokens.
        min_tokens: No end before this many tokens.
        json_schema: The text is JSON that validates against this schema, a dictionary or JSON. Of this and the next
            four at most one.
        regex: The text matches this regular expression as a whole.
        choices: The text is one of these.
        grammar: The text follows this grammar, in llama.cpp's GBNF.
        structural_tag: The text is free outside of tags and follows grammars within, as XGrammar's structural tags
            say, a dictionary or JSON.
        seed: The same answer again; drawn anew each time.
        sample_index: Which of several samples with the same seed; 0.
        stop: Text, one or several, that ends the answer and is no part of it.
        stop_token_ids: Token ids that do.
        ignore_eos: Go on past the model's own end.
        drafter: Who proposes tokens; speed only. The last five are the target itself, if it has them.
        draft_tokens: How many at a time; speed only. 0: plain decoding.
        rule: How proposals are verified; speed only.
        schedule: Whether the draft works while the target verifies; speed only.
        tree: A tree of tokens to draft: "2x2x1", "chains:3", "budget:12", "auto" or "none"; speed only.
        sibling_order: "given" or "random": in which order drafted tokens for one position are tried; speed only.
        draft_top_n: Tokens kept of the draft's distribution; speed only.
        draft_temperature: The draft's own; speed only.
        lenience: Below 1 faster, and not exact.
        max_context: Draft only while prompt and answer have fewer tokens; speed only.
        beam_width: Search for the likeliest text instead of sampling, and follow this many; `n` of them come back.
        beam_draft_width: How many the draft follows; speed only.
        length_penalty: A text found is ranked by its log-probability over its length to this power; 1.
        beam_stop: When a search ends: "auto", "first" (as soon as enough texts have ended) or "never" (when none can
            become better).
        logprobs: Report each token's log-probability, with this many alternatives.
        logprobs_before_controls: The model's own instead of those after temperature and the like.
        prompt_logprobs: Report those of the prompt too, with this many alternatives.
        tools: What the model may call, as in OpenAI's API; for a conversation. See Description.tool_format.
        chat_template_kwargs: Further variables of the chat template, such as enable_thinking; for a conversation.
        continue_final_message: Go on with the last message of a conversation instead of answering it.
        echo: Send the prompt back.
        prediction: Text that much of the answer is likely to repeat; speed only.
        trace: Report what happened in each round.
        resume_from: Token ids emitted by an earlier call of the same request, to be continued.
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
    """The enumeration's values by name, but for 0, which is none."""
    return {name.removeprefix(prefix).lower(): number for name, number in enum.items() if number}


_DRAFTERS = _numbers(inference_pb2.DrafterKind, "DRAFTER_KIND_")
_RULES = _numbers(sequence_pb2.Rule, "RULE_")
_SCHEDULES = _numbers(inference_pb2.Schedule, "SCHEDULE_")
_SIBLING_ORDERS = _numbers(sequence_pb2.SiblingOrder, "SIBLING_ORDER_")
_BEAM_STOPS = _numbers(inference_pb2.BeamStop, "BEAM_STOP_")

# Option -> where it goes: a message of the request ("" for the request itself), by its path, and the field there.
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


# Of these there can be one.
_GRAMMARS = [name for name, (part, _) in _FIELDS.items() if part.startswith("sampling.grammar")]

_TEMPLATE_FIELDS = {"name", "reasoning_content", "tool_call_id", "tool_calls"}

# What a field's type can hold; what it may hold is the coordinator's to say.
_RANGES = {
    FieldDescriptor.TYPE_UINT32: f"0 to {2**32 - 1}",
    FieldDescriptor.TYPE_UINT64: f"0 to {2**64 - 1}",
    FieldDescriptor.TYPE_FLOAT: "a number",
    FieldDescriptor.TYPE_DOUBLE: "a number",
    FieldDescriptor.TYPE_STRING: "text without lone surrogates",
}


def build_request(prompt: Prompt, n: int, options: Options) -> inference_pb2.GenerateRequest:
    """The request.

    InvalidArgument for what cannot be sent, TypeError for what is no option or has the wrong type, ValueError for two
    options of which there can be one.
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
    """What stands for an option's value in its field."""
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
    # Both would be taken apart, and bytes are even integers.
    if isinstance(items, (str, bytes)):
        raise TypeError(f"{name}: a sequence of {of} is wanted, not {type(items).__name__}")
    return list(items)


def _logit_bias(token: int, bias: float) -> sequence_pb2.LogitBias:
    entry = sequence_pb2.LogitBias()
    _set(entry, "token", token, "sampling.logit_bias")
    _set(entry, "bias", bias, "sampling.logit_bias")
    return entry


def _set(message: Message, field: str, value: Any, path: str) -> None:
    """Sets a field, or names it: protobuf's own errors don't say which one it was."""
    try:
        if isinstance(value, list):
            getattr(message, field).extend(value)
        else:
            setattr(message, field, value)
    except ValueError as error:
        raise field_error(path, _RANGES[message.DESCRIPTOR.fields_by_name[field].type], str(error)) from error
    except TypeError as error:
        raise TypeError(f"{path}: {error}") from error
