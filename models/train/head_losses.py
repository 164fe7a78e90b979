"""The loss of each proposer: make_loss(proposer, ...) for parallel.train."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import TARGET, load
from head_lessons import States, forward_kl, probabilities, stream_of, total_variation
from heads import HEADS
from parallel import MicroLoss

STEPS = 4  # rows in a chain of EAGLE
STRIDE = 4  # distance between the positions that begin chains; their offset is random
GROUPS = 32  # groups of look-ahead rows in a window
DEPTH_WEIGHT = 0.9  # for each further token of a proposal, which counts only if those before it were accepted


def make_loss(proposer: str, version: int, target_folder: Path, work: Path, lengths: tuple[int, ...], greedy_times: int,
              micro_tokens: int, kl_until: float, regression: float) -> MicroLoss:
    target = load(target_folder, TARGET)
    for parameter in target.parameters():
        parameter.requires_grad_(False)
    stream = stream_of(work, greedy_times)
    streams = proposer == "eagle" and version == 3
    states = {length: States(work, stream, length, streams) for length in lengths}
    head = target.model.embed_tokens.weight.to(torch.bfloat16)

    def distance(vectors: Tensor, wanted: Tensor, progress: float, rows_of_head: Tensor = head) -> Tensor:
        """vectors [..., hidden], wanted [..., rows of the head]: the mean over all rows."""
        measure = forward_kl if progress < kl_until else total_variation
        return measure(F.linear(vectors.to(torch.bfloat16), rows_of_head).flatten(0, -2), wanted.flatten(0, -2))

    def eagle(model: nn.Module, inputs: Tensor, state: Tensor, progress: float) -> Tensor:
        hidden = state[..., -TARGET.hidden:]
        rows = inputs.shape[1] - 1
        starts = torch.arange(int(torch.randint(STRIDE, ())), rows - STEPS + 1, STRIDE)
        read = hidden if version == 1 else state[..., :-TARGET.hidden]
        outputs = model(F.embedding(inputs[:, 1:], head), model.features(read[:, :-1]), STEPS, starts)
        wanted, proposed = probabilities(F.linear(hidden[:, 1:], head)), head
        if model.tokens is not None:  # the distances to the other tokens do not depend on the model
            wanted, proposed = wanted[..., model.tokens].contiguous(), head[model.tokens]
        total = 0.0
        for step, output in enumerate(outputs):
            at = torch.arange(rows) if step == 0 else starts + step
            loss = distance(model.vectors(output), wanted[:, at] if step else wanted, progress, proposed)
            if regression:
                loss = loss + regression * F.smooth_l1_loss(output.float(), hidden[:, 1:][:, at].float())
            total = total + DEPTH_WEIGHT ** step * loss
        return total / sum(DEPTH_WEIGHT ** step for step in range(STEPS))

    def parallel_heads(model: nn.Module, inputs: Tensor, hidden: Tensor, progress: float) -> Tensor:
        """Head i on h_t gives the distribution after x_{t+1+i}, which is that of the target at that position."""
        wanted = probabilities(F.linear(hidden[:, 1:], head))
        rows = hidden.shape[1] - HEADS
        vectors = model(hidden[:, :rows])
        return sum(distance(vectors[i], wanted[:, i:i + rows], progress) for i in range(HEADS)) / HEADS

    def lookahead(model: nn.Module, inputs: Tensor, hidden: Tensor, progress: float) -> Tensor:
        after = torch.randperm(inputs.shape[1] - HEADS)[:GROUPS].sort().values
        _, vectors = model(target, inputs, after)
        wanted = probabilities(F.linear(hidden, head))[:, after[:, None] + 1 + torch.arange(HEADS)]
        return distance(vectors, wanted, progress)

    losses = {"eagle": eagle, "medusa": parallel_heads, "blockwise": parallel_heads, "pass": lookahead}

    def loss(model: nn.Module, length: int, step: int, index: int, count: int, progress: float) -> Tensor:
        rows = max(micro_tokens // length, 1)
        inputs, state = states[length].rows(target, (step * count + index) * rows, rows)
        return losses[proposer](model, inputs, state, progress)

    return loss
