"""Analyses a PromQL expression by its syntax tree."""

import json
from collections.abc import Iterator
from typing import Any

import promql_parser


def parse(expr: str) -> Any:
    """The syntax tree; ValueError if the expression is invalid."""
    return promql_parser.parse(expr)


def kind(node: Any) -> str:
    return type(node).__name__


def walk(node: Any, *above: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yields all nodes, each with its ancestors, the nearest last."""
    yield node, above
    below = [getattr(node, name, None) for name in ("lhs", "rhs", "expr", "vector_selector")]
    for child in [*below, *(getattr(node, "args", None) or [])]:
        if child is not None:
            yield from walk(child, *above, node)


def selectors(tree: Any) -> list[Any]:
    return [node for node, _ in walk(tree) if kind(node) == "VectorSelector"]


def matchers(selector: Any) -> set[tuple[str, str, str]]:
    """The matchers of a selector: (label, operator, value)."""
    spelled = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}
    return {(m.name, spelled[str(m.op)], m.value) for m in selector.matchers.matchers}


def without_offset(selector: Any) -> str:
    """The text of a selector without its offset."""
    inside = ", ".join(
        f"{label}{operator}{json.dumps(value)}" for label, operator, value in sorted(matchers(selector))
    )
    return f"{selector.name or ''}{{{inside}}}"


def unguarded_divisions(tree: Any) -> list[str]:
    """Divisions whose divisor can be 0; a comparison > 0 yields no value instead."""
    return [
        node.prettify()
        for node, _ in walk(tree)
        if kind(node) == "BinaryExpr" and str(node.op) in ("/", "%") and not _is_above_zero(node.rhs)
    ]


def unguarded_quantiles(tree: Any) -> list[str]:
    """Uses of histogram_quantile without a guard: it is NaN without observations, and NaN >= 0 is false."""
    return [
        node.prettify()
        for node, above in walk(tree)
        if kind(node) == "Call"
        and node.func.name == "histogram_quantile"
        and not (above and kind(above[-1]) == "BinaryExpr" and str(above[-1].op) == ">=")
    ]


def _is_above_zero(node: Any) -> bool:
    if kind(node) == "ParenExpr":
        return _is_above_zero(node.expr)
    if kind(node) == "Call":
        return node.func.name == "sqrt" and _is_above_zero(node.args[0])
    return (
        kind(node) == "BinaryExpr" and str(node.op) == ">" and kind(node.rhs) == "NumberLiteral" and node.rhs.val >= 0
    )
