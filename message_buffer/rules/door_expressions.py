"""The JMESPath expressions of a door's mapping: which ones may be stored, and a bounded evaluation.

Nothing in Python interrupts an evaluation. So each node that is visited, and each value that is compared or given to a
function, costs steps, and a webhook has a limited number of them.
"""

import json
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jmespath
from jmespath.visitor import TreeInterpreter

from message_buffer.errors import InvalidInput
from message_buffer.json_object import Json

MAX_EXPRESSION_CHARACTERS = 2_000
# An evaluation calls itself for each level of the tree.
MAX_EXPRESSION_LEVELS = 64
# The steps of all expressions on one webhook: twice what a thousand items of the largest example need, and a fraction
# of a second.
MAX_STEPS_IN_A_WEBHOOK = 500_000
CHARACTERS_IN_A_STEP = 64
MAX_SEPARATOR_CHARACTERS = 16
LEGAL_EXPRESSION = f"a JMESPath expression of at most {MAX_EXPRESSION_CHARACTERS} characters, such as item.payload.id"


class TooManySteps(InvalidInput):
    """Raised if the expressions of a mapping take too long on a body."""


def _part(text: Any, separator: str, number: int) -> Any:
    """Divide the text and return the part with this number, or the whole text if that part is missing or empty.

    Some products write the same id sometimes with a prefix and sometimes without, or as a number.
    """
    parts = text.split(separator, number + 1) if isinstance(text, str) else []
    return (parts[number] if 0 <= number < len(parts) else "") or text


def _join(separator: Any, texts: Any) -> str | None:
    is_bounded = isinstance(texts, list) and len(separator) <= MAX_SEPARATOR_CHARACTERS
    return str.join(separator, texts) if is_bounded else None


def _to_string(value: Any) -> str | None:
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, int | float) else None


# Name -> the number of arguments, and a function that fails for values of another type. The other functions of JMESPath
# are left out, as are slices and &: no product has needed them.
_FUNCTIONS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "contains": (2, operator.contains), "ends_with": (2, str.endswith), "join": (2, _join), "length": (1, len),
    "part": (3, _part), "starts_with": (2, str.startswith), "to_string": (1, _to_string),
}  # fmt: skip


def compile_expression(given: Any) -> Json:
    """Return the tree of an expression. Raise InvalidInput."""
    if not isinstance(given, str) or not 1 <= len(given) <= MAX_EXPRESSION_CHARACTERS:
        raise InvalidInput(f"use {LEGAL_EXPRESSION}")
    try:
        tree: Json = jmespath.compile(given).parsed
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).rstrip(" ^\n").split())
        hint = "; numbers stand in backticks" if "(NUMBER)" in reason else ""
        raise InvalidInput(f"is not a JMESPath expression: {reason}{hint}") from error
    nodes, fields = [(tree, 1)], set()
    while nodes:
        node, level = nodes.pop()
        if level > MAX_EXPRESSION_LEVELS:
            raise InvalidInput(f"has more than {MAX_EXPRESSION_LEVELS} levels")
        if problem := _problem(node["type"], node["children"], node.get("value")):
            raise InvalidInput(problem)
        if node["type"] == "field":
            fields.add(node["value"])
        nodes += ((child, level + 1) for child in node["children"])
    if fields and not fields & {"body", "item"}:
        raise InvalidInput("sees only item and body; begin with one of them, such as item.payload.id")
    return tree


def _problem(kind: str, children: list[Any], value: Any) -> str | None:
    """Return why an evaluation of this node could only fail, or None if it can succeed."""
    if kind in ("expref", "slice"):
        return f"{'&' if kind == 'expref' else 'a slice'} is not supported"
    if kind == "subexpression" and children[0]["type"] == "not_expression":
        return "! binds tighter than a full stop; use parentheses, such as !(item.payload)"
    if kind != "function_expression":
        return None
    if value not in _FUNCTIONS:
        return f"unknown function {value}; use one of {', '.join(_FUNCTIONS)}"
    needed = _FUNCTIONS[value][0]
    return None if len(children) == needed else f"{value} needs {needed} arguments, not {len(children)}"


class Interpreter(TreeInterpreter):  # type: ignore[misc]  # jmespath has no types
    """Evaluates expressions on one webhook. Raises TooManySteps.

    A function or an ordering that meets a value of the wrong type gives null.
    """

    steps = 0

    def is_true(self, value: Any) -> bool:
        return bool(self._is_true(value))

    def visit(self, node: Json, value: Any) -> Any:
        self._charge(1)
        return super().visit(node, value)

    def visit_function_expression(self, node: Json, value: Any) -> Any:
        arguments = [self.visit(child, value) for child in node["children"]]
        self._charge_for(arguments)
        try:
            return _FUNCTIONS[node["value"]][1](*arguments)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return None

    def visit_comparator(self, node: Json, value: Any) -> bool | None:
        left, right = (self.visit(child, value) for child in node["children"])
        is_equality = node["value"] in self._EQUALITY_OPS
        if not is_equality and not {type(left), type(right)} <= {int, float}:
            return None
        if isinstance(left, str | list | dict) and type(left) is type(right) and len(left) == len(right):
            self._charge_for(left)
        try:
            return bool(self.COMPARATOR_FUNC[node["value"]](left, right))
        except RecursionError:  # a body may nest lists deeper than Python compares them
            return None

    def visit_flatten(self, node: Json, value: Any) -> Any:
        base = self.visit(node["children"][0], value)
        if not isinstance(base, list):
            return None
        parts = [each if isinstance(each, list) else [each] for each in base]
        self._charge(sum(1 + len(part) for part in parts))
        return [each for part in parts for each in part]

    def _charge_for(self, value: Any) -> None:
        """Charge for all of a value, however deep it is."""
        rest = [value]
        while rest:
            part = rest.pop()
            if isinstance(part, list | dict):
                self._charge(len(part))
                rest += part.values() if isinstance(part, dict) else part
            elif isinstance(part, str):
                self._charge(len(part) // CHARACTERS_IN_A_STEP)

    def _charge(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS_IN_A_WEBHOOK:
            raise TooManySteps(f"The mapping needs more than {MAX_STEPS_IN_A_WEBHOOK} steps for this body.")
