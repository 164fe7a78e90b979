"""A coordinator's description of itself."""

from __future__ import annotations

from dataclasses import dataclass

from outrider._answer import enum_name, plain
from outrider.v1 import inference_pb2, sequence_pb2


@dataclass(frozen=True)
class ProposerInfo:
    """A way in which a target proposes tokens itself.

    Attributes:
        proposer: "medusa", "blockwise", "eagle", "layer_skip" or "pass", as in the option `drafter`.
        max_draft_tokens: The longest chain or deepest tree that it proposes for a round.
        greedy: It always takes the likeliest token and never draws.
    """

    proposer: str
    max_draft_tokens: int
    greedy: bool


@dataclass(frozen=True)
class ServerInfo:
    """A draft or target server.

    Attributes:
        model: Its model's name.
        version: The server's version.
        device: "cpu", "cuda:0".
        dtype: "float32", "bfloat16", "int8", "fp8", or "packed" as in the model's file.
        weight_bytes: Of the weights that every step reads: all but the embedding, unless the head shares its memory.
        vocab_size: Size of the vocabulary.
        max_context: The most tokens of a sequence, prompt and answer.
        max_draft_tokens: The most drafted tokens in a round.
        kv_blocks: Blocks of the KV cache.
        block_size: Tokens in a block.
        eos_ids: Ids that end a text.
        boot_id: New for each start of the process.
        fingerprint: Hash of the model's tokens; draft and target have the same, unless their vocabulary sizes or
            EOS ids differ.
        max_message_bytes: Largest message that it accepts.
        weights_hash: Hash of the weights; a target that restarts with others is not used.
        engine: The engine: "native" or "torch".
        row_invariant: Whether a token's results depend bit for bit only on the tokens before it.
        numerics: Everything that decides the last bits of a result, in words; empty: unknown.
        max_tree_nodes: The most drafted tokens of a tree; 0: it accepts only chains.
        tree_row_invariant: As row_invariant, but also for the tokens of a tree.
        inexact_trees: It accepts trees even if tree_row_invariant is False and the tokens may depend on it.
        proposers: How a target can propose tokens itself.
    """

    model: str
    version: str
    device: str
    dtype: str
    weight_bytes: int
    vocab_size: int
    max_context: int
    max_draft_tokens: int
    kv_blocks: int
    block_size: int
    eos_ids: tuple[int, ...]
    boot_id: int
    fingerprint: int
    max_message_bytes: int
    weights_hash: int
    engine: str
    row_invariant: bool
    numerics: str
    max_tree_nodes: int
    tree_row_invariant: bool
    inexact_trees: bool
    proposers: tuple[ProposerInfo, ...]


@dataclass(frozen=True)
class ServerState:
    """One of the coordinator's targets and drafts.

    Attributes:
        role: "target" or "draft".
        address: Its address.
        up: It is connected and may be used.
        going_away: It has announced that it is about to end.
        sequences: Sequences of this coordinator that it holds now.
        load: Items of all users that wait or are in progress there, by its last report.
        info: Its ServerInfo at the last connection; None before the first.
        problem: Why it is not used; empty if it is used or cannot be reached.
    """

    role: str
    address: str
    up: bool
    going_away: bool
    sequences: int
    load: int
    info: ServerInfo | None
    problem: str


@dataclass(frozen=True)
class Defaults:
    """Defaults of requests; `draft_tokens` None: chosen for each round."""

    drafter: str
    draft_tokens: int | None
    rule: str
    schedule: str
    tree: str


@dataclass(frozen=True)
class Totals:
    """How speculation went since the coordinator started, over all requests.

    Attributes:
        rounds: Calls of the target.
        drafts: Rounds that had a draft.
        drafted: Tokens proposed to the target.
        accepted: Drafted tokens that the target accepted.
        emitted: Tokens in answers.
        observed_accepted: Accepted tokens of exact rounds of the token rule.
        expected_accepted: The expectation of observed_accepted.
        ahead_rounds: Rounds for whose likely outcomes tokens were drafted while they were verified.
        ahead_hits: Those of ahead_rounds whose actual outcome was among the outcomes drafted for.
    """

    rounds: int
    drafts: int
    drafted: int
    accepted: int
    emitted: int
    observed_accepted: float
    expected_accepted: float
    ahead_rounds: int
    ahead_hits: int


@dataclass(frozen=True)
class Description:
    """What is served, by which servers, and their state.

    Attributes:
        version: The coordinator's version.
        target: A reachable target; None if there is none.
        draft: A reachable draft; None if there is none.
        servers: All targets and drafts, reachable or not.
        mixed_numerics: Targets may compute different bits.
        degraded: A draft is configured but not usable: requests are served without speculation.
        running: Requests in progress.
        defaults: Defaults that a request can override.
        max_draft_tokens: The most drafted tokens that a request can ask for.
        tokenizer_fingerprint: Hash of the tokenizer.
        totals: Speculation since the coordinator started.
        tool_format: How the model writes tool calls: "json", "llama", "hermes" or "mistral"; None without a chat
            template.
    """

    version: str
    target: ServerInfo | None
    draft: ServerInfo | None
    servers: tuple[ServerState, ...]
    mixed_numerics: bool
    degraded: bool
    running: int
    defaults: Defaults
    max_draft_tokens: int
    tokenizer_fingerprint: int
    totals: Totals
    tool_format: str | None


def _server(info: sequence_pb2.ServerInfo) -> ServerInfo:
    return plain(
        ServerInfo,
        info,
        proposers=tuple(
            plain(ProposerInfo, each, proposer=enum_name(sequence_pb2.Proposer, each.proposer, "PROPOSER_"))
            for each in info.proposers
        ),
    )


def to_description(response: inference_pb2.DescribeResponse) -> Description:
    """Converts the answer to Describe to the form that callers see."""
    defaults = response.defaults
    return plain(
        Description,
        response,
        target=_server(response.target) if response.HasField("target") else None,
        draft=_server(response.draft) if response.HasField("draft") else None,
        servers=tuple(
            plain(ServerState, state, info=_server(state.info) if state.HasField("info") else None)
            for state in response.servers
        ),
        defaults=Defaults(
            drafter=enum_name(inference_pb2.DrafterKind, defaults.drafter, "DRAFTER_KIND_"),
            draft_tokens=defaults.draft_tokens if defaults.HasField("draft_tokens") else None,
            rule=enum_name(sequence_pb2.Rule, defaults.rule, "RULE_"),
            schedule=enum_name(inference_pb2.Schedule, defaults.schedule, "SCHEDULE_"),
            tree=defaults.tree,
        ),
        totals=plain(Totals, response.totals),
        tool_format=enum_name(inference_pb2.ToolFormat, response.tool_format, "TOOL_FORMAT_")
        if response.tool_format
        else None,
    )
