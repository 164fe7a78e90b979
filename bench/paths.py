#!/usr/bin/env python3
"""Bounds what any exact rule can accept of several independently drafted paths, by enumerating random small pairs.

    python bench/paths.py [--pairs 6]          # needs numpy and scipy

A rule maps a set of paths to the prefix that it accepts. It is exact, with a suitable token after the prefix, if and only if for all
texts x and tokens a

    A(xa) <= p(a | x) A(x),        A(x) = P(the accepted prefix begins with x).

So the most accepted tokens of all rules are a linear program's optimum (Thomas and Pal, arXiv 2602.16961). Beside it stand block
verification of one path, and trees whose children are tried in turn: equal children may occur, or none (as in common/spec).

For one token the optimum is the least capacity of a cut (Hu et al., arXiv 2502.18779), also with many tokens. Gumbel-coupled children are
accepted if the target's race has the same winner: races of their own, whose minimum is the target's (Rowan et al., arXiv 2506.05632), or
the first of one race (as in common/spec).
"""

import argparse
import itertools
from collections import Counter
from functools import cache

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import lil_matrix

Text = tuple[int, ...]
Rows = dict[Text, np.ndarray]  # for each text of at most `length` tokens, the probabilities of the next


def texts(vocab: int, length: int) -> list[Text]:
    return [text for k in range(length + 1) for text in itertools.product(range(vocab), repeat=k)]


def random_pair(random: np.random.Generator, vocab: int, length: int) -> tuple[Rows, Rows]:
    """Target and draft. The draft is half the target's rows, half others."""
    p = {text: random.dirichlet([0.5] * vocab) for text in texts(vocab, length)}
    return p, {text: (row + random.dirichlet([0.5] * vocab)) / 2 for text, row in p.items()}


def probability(rows: Rows, text: Text) -> float:
    return float(np.prod([rows[text[:i]][token] for i, token in enumerate(text)]))


def optimum(p: Rows, q: Rows, vocab: int, length: int, paths: int) -> float:
    """The most tokens that an exact rule accepts in the mean."""
    drawn: Counter[tuple[Text, ...]] = Counter()
    for leaves in itertools.product(itertools.product(range(vocab), repeat=length), repeat=paths):
        drawn[tuple(sorted(set(leaves)))] += float(np.prod([probability(q, leaf) for leaf in leaves]))
    choices = [(i, prefix) for i, leaves in enumerate(drawn) for prefix in {leaf[:k] for leaf in leaves for k in range(length + 1)}]
    conditions = {text: i for i, text in enumerate(texts(vocab, length)[1:])}
    each, exact = lil_matrix((len(drawn), len(choices))), lil_matrix((len(conditions), len(choices)))
    for column, (i, prefix) in enumerate(choices):
        each[i, column] = 1
        for text, row in conditions.items():
            if prefix[: len(text)] == text:
                exact[row, column] += 1
            if len(prefix) >= len(text) - 1 and prefix[: len(text) - 1] == text[:-1]:
                exact[row, column] -= p[text[:-1]][text[-1]]
    found = linprog([-len(prefix) for _, prefix in choices], A_ub=exact.tocsr(), b_ub=np.zeros(len(conditions)), A_eq=each.tocsr(),
                    b_eq=np.array(list(drawn.values())))
    return -found.fun


def block(p: Rows, q: Rows, vocab: int, length: int) -> float:
    """The mean of accepted tokens of block verification (Sun et al., arXiv 2403.10444, Algorithm 2)."""
    mean = 0.0
    for path in itertools.product(range(vocab), repeat=length):
        weights = [1.0]
        for i, token in enumerate(path):
            weights.append(min(1, weights[-1] * p[path[:i]][token] / q[path[:i]][token]))
        left = probability(q, path)
        for i in range(length, 0, -1):
            stands = weights[i]
            if i < length:
                residual = np.maximum(weights[i] * p[path[:i]] - q[path[:i]], 0).sum()
                stands = residual / (residual + 1 - weights[i]) if weights[i] < 1 else 1
            mean += i * left * stands
            left *= 1 - stands
    return mean


def tree(p: Rows, q: Rows, vocab: int, length: int, paths: int, distinct: bool) -> float:
    """The mean of accepted tokens if children are tried in turn, each against what those before left of p. Distinct children are drawn
    without replacement at the root; each continues as a chain."""

    @cache
    def accepted(text: Text, paths: int) -> float:
        if len(text) == length:
            return 0.0
        mean = 0.0
        drawn = itertools.permutations(range(vocab), paths) if distinct else itertools.product(range(vocab), repeat=paths)
        for children in drawn:
            residual, law, chance, left, gain = p[text], q[text], 1.0, 1.0, 0.0
            below = Counter(children)
            for child in children:
                chance *= law[child]
                stands = min(1, residual[child] / law[child])
                gain += left * stands * (1 + accepted((*text, child), below[child]))
                left *= 1 - stands
                residual = np.maximum(residual - law, 0)
                residual = residual / max(residual.sum(), 1e-300)
                if distinct:
                    law = np.where(np.arange(vocab) == child, 0, law)
                    law = law / max(law.sum(), 1e-300)
            mean += chance * gain
        return mean

    return accepted((), paths)


def cut(p: np.ndarray, q: np.ndarray, distinct: bool) -> float:
    """The most that any exact rule accepts of two children. Some set of tokens bounds it: what p has there, and all other pairs."""
    best = 1.0
    order = np.argsort(p / q)
    for size in range(len(p)):
        few = order[:size]
        both = (q[few] * (q[few].sum() - q[few]) / (1 - q[few])).sum() if distinct else q[few].sum() ** 2
        best = min(best, p[few].sum() + 1 - both)
    return best


def races(p: np.ndarray, q: np.ndarray, random: np.random.Generator, draws: int = 40000) -> tuple[float, float]:
    """How often one of two children wins the target's race: each the first of its own, or both the first of one."""
    times = random.exponential(size=(2, draws, len(p)))
    own = (times / q).argmin(2) == (times.min(0) / p).argmin(1)
    one = (times[0] / q).argsort(1)[:, :2] == (times[0] / p).argmin(1)[:, None]
    return own.any(0).mean(), one.any(1).mean()


def sparse_pair(random: np.random.Generator, vocab: int, alike: float) -> list[np.ndarray]:
    p, other = random.dirichlet([alike] * vocab, 2) + 1e-9
    return [row / row.sum() for row in (p, p + other)]


def first_token(random: np.random.Generator, pairs: int) -> None:
    print("\na token that stands, two children\n| tokens | equal | distinct | equal, at most | distinct, at most | two races | one race |")
    print("|" + "---|" * 7)
    for vocab, alike in ((5, 0.5), (20, 0.5), (200, 0.05)):
        rows = []
        for _ in range(pairs):
            p, q = ({(): row} for row in sparse_pair(random, vocab, alike))
            size = (vocab, 1, 2)
            rows.append([tree(p, q, *size, False), tree(p, q, *size, True), cut(p[()], q[()], False), cut(p[()], q[()], True),
                         *races(p[()], q[()], random)])
        print(f"| {vocab} | " + " | ".join(f"{value:.3f}" for value in np.mean(rows, axis=0)) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6, help="random pairs for each size")
    args = parser.parse_args()
    random = np.random.default_rng(1)
    print(f"tokens a call\n| tokens, length | one path: block | at most | two paths: equal children | distinct | at most |\n|{'---|' * 6}")
    for vocab, length in ((3, 2), (4, 2), (5, 2), (3, 3)):
        rows = []
        for _ in range(args.pairs):
            p, q = random_pair(random, vocab, length)
            size = (vocab, length)
            rows.append([block(p, q, *size), optimum(p, q, *size, 1), tree(p, q, *size, 2, False), tree(p, q, *size, 2, True),
                         optimum(p, q, *size, 2)])
        print(f"| {vocab}, {length} | " + " | ".join(f"{1 + value:.3f}" for value in np.mean(rows, axis=0)) + " |", flush=True)
    first_token(random, args.pairs)


if __name__ == "__main__":
    main()
