"""Prints the memory and speed that follow from the shapes of published models, as Markdown. Nothing is measured.

    python bench/sizes.py

docs/sizing.md contains the output and explains the columns.
"""

import dataclasses
from collections.abc import Iterable

VOCAB = 128256
BFLOAT16, FLOAT32 = 2, 4  # bytes
LONGEST = 16  # --max-draft-tokens
ACCEPTANCES = (0.6, 0.7, 0.8, 0.9)
RANKS = (1, 2, 4, 8)
SHARED_BYTES = 10e9  # smaller models are not split in the table
DEVICES = (24, 80, 141)  # GB
KV_SHARE = 0.85  # --kv-memory-fraction
STREAMS, CONTEXT = 8, 4096  # on a device that both models share


@dataclasses.dataclass(frozen=True)
class Shape:
    """A decoder of the Llama family."""
    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    tied: bool  # the last matrix is the embedding

    @property
    def embedding(self) -> int:
        return VOCAB * self.hidden

    @property
    def matrices(self) -> int:
        """Elements of all layers' matrices."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def norms(self) -> int:
        return (2 * self.layers + 1) * self.hidden

    @property
    def parameters(self) -> int:
        return self.embedding * (1 if self.tied else 2) + self.matrices + self.norms

    @property
    def bytes(self) -> int:
        return self.parameters * BFLOAT16

    @property
    def bytes_a_step(self) -> int:
        """Bytes that one token's forward pass reads. Of an embedding that is not tied it reads only a row, which is left out."""
        return self.bytes - (0 if self.tied else self.embedding * BFLOAT16)

    @property
    def kv_bytes(self) -> int:
        """Bytes of a token's keys and values."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BFLOAT16

    def rank_bytes(self, ranks: int) -> int:
        """Bytes of the weights of one of `ranks` ranks (common/engine/torch/decoder.h): the whole embedding, all norms, and its share
        of the rest. A tied last matrix takes no more memory."""
        head = 0 if self.tied else -(-VOCAB // ranks) * self.hidden
        return (self.embedding + self.matrices // ranks + head) * BFLOAT16 + self.norms * FLOAT32

    def tokens(self, ranks: int, device: float) -> int:
        """The number of tokens whose keys and values fit beside the weights, with a device of `device` bytes for each rank."""
        return int(KV_SHARE * (device - self.rank_bytes(ranks)) / (self.kv_bytes / ranks))


LLAMA_1B = Shape("Llama 3.2 1B", 2048, 16, 32, 8, 64, 8192, tied=True)
LLAMA_3B = Shape("Llama 3.2 3B", 3072, 28, 24, 8, 128, 8192, tied=True)
LLAMA_8B = Shape("Llama 3.1 8B", 4096, 32, 32, 8, 128, 14336, tied=False)
LLAMA_70B = Shape("Llama 3.1 70B", 8192, 80, 64, 8, 128, 28672, tied=False)
MODELS = (LLAMA_1B, LLAMA_3B, LLAMA_8B, LLAMA_70B)
PAIRS = ((LLAMA_1B, LLAMA_3B), (LLAMA_1B, LLAMA_8B), (LLAMA_8B, LLAMA_70B))  # draft, target


def cost(draft: Shape, target: Shape) -> float:
    """c, if a step takes as long as reading its weights."""
    return draft.bytes_a_step / target.bytes_a_step


def gain(alpha: float, k: int, c: float) -> float:
    """Theorem 3.8 of Leviathan et al., arXiv 2211.17192."""
    return (1 - alpha ** (k + 1)) / ((1 - alpha) * (k * c + 1))


def best_k(alpha: float, c: float) -> int:
    """The fastest K; 0 if plain decoding is fastest."""
    return max(range(LONGEST + 1), key=lambda k: gain(alpha, k, c))


def table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [heading, *rows]]
    return "\n".join([lines[0], "|" + "---|" * (lines[0].count("|") - 1), *lines[1:]])


def models() -> str:
    return table(["model", "parameters", "weights, GB", "read in a step, GB", "KV bytes a token", "KV of 100,000 tokens, GB"],
                 [[m.name, f"{m.parameters / 1e9:.2f} billion", f"{m.bytes / 1e9:.1f}", f"{m.bytes_a_step / 1e9:.1f}",
                   f"{m.kv_bytes:,}", f"{m.kv_bytes / 1e4:.1f}"] for m in MODELS])


def pairs() -> str:
    def best(alpha: float, c: float) -> str:
        return f"{gain(alpha, best_k(alpha, c), c):.2f} (K = {best_k(alpha, c)})"

    return table(["draft", "target", "c", *(f"alpha = {alpha}" for alpha in ACCEPTANCES)],
                 [[draft.name, target.name, f"{cost(draft, target):.3f}",
                   *(best(alpha, cost(draft, target)) for alpha in ACCEPTANCES)] for draft, target in PAIRS])


def ranks() -> str:
    def fits(model: Shape, of: int, device: int) -> str:
        tokens = model.tokens(of, device * 1e9)
        return f"{tokens // 1000:,}" if tokens > 0 else "-"

    return table(["model", "ranks", "weights of a rank, GB", "KV bytes a token and rank",
                  *(f"1000 tokens, {device} GB" for device in DEVICES)],
                 [[model.name, str(of), f"{model.rank_bytes(of) / 1e9:.1f}", f"{model.kv_bytes // of:,}",
                   *(fits(model, of, device) for device in DEVICES)] for model in MODELS for of in RANKS if of == 1 or model.bytes > SHARED_BYTES])


def shared() -> str:
    def row(draft: Shape, target: Shape) -> list[str]:
        terms = [target.bytes, draft.bytes, *(STREAMS * CONTEXT * model.kv_bytes for model in (target, draft))]
        return [draft.name, target.name, *(f"{bytes / 1e9:.1f}" for bytes in [*terms, sum(terms)])]

    return table(["draft", "target", "target's weights, GB", "draft's", f"target's KV of {STREAMS} x {CONTEXT} tokens", "draft's", "sum"],
                 [row(draft, target) for draft, target in PAIRS[:2]])


if __name__ == "__main__":
    print("\n\n".join([models(), pairs(), ranks(), shared()]))
