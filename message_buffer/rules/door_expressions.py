"""The JMESPath expressions of a door's mapping: which ones may be stored, and a bounded evaluation.

Nothing in Python interrupts an evaluation. So each node that is visited and each value that a function reads costs
steps, and a webhook has a limited number of them.
"""

import json
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.visitor import TreeInterpreter

from message_buffer.errors import InvalidInput
from message_buffer.json_object import Json

MAX_EXPRESSION_CHARACTERS = 2_000
# An evaluation calls itself for each level of the tree.
MAX_EXPRESSION_LEVELS = 64
# The steps of all expressions on one webhook. A thousand items of the largest example need half of them. A million
# steps take less than a second.
MAX_STEPS_IN_A_WEBHOOK = 500_000
# Reading a text costs a step for this many characters.
CHARACTERS_IN_A_STEP = 64
MAX_SEPARATOR_CHARACTERS = 16


class TooManySteps(InvalidInput):
    """Raised if the expressions of a mapping take too long on a body."""


def _part(text: Any, separator: str, number: int) -> Any:
    """Divide the text and return the part with this number, or the whole text if that part is missing or empty.

    Some products write the same id sometimes with a prefix and sometimes without, or as a number.
    """
    parts = text.split(separator, number + 1) if isinstance(text, str) else []
    return (parts[number] if 0 <= number < len(parts) else "") or text


def _join(separator: str, texts: list[str]) -> str | None:
    return separator.join(texts) if len(separator) <= MAX_SEPARATOR_CHARACTERS and isinstance(texts, list) else None


def _not_null(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _to_string(value: Any) -> str | None:
    """Return a text, number, true or false as a text. Lists and objects may be large, so they give null."""
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, int | float) else None


# Name -> the function, and the number of its arguments if that is fixed.
_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int | None]] = {
    "contains": (operator.contains, 2),
    "ends_with": (str.endswith, 2),
    "join": (_join, 2),
    "length": (len, 1),
    "not_null": (_not_null, None),
    "part": (_part, 3),
    "starts_with": (str.startswith, 2),
    "to_string": (_to_string, 1),
}


def compile_expression(given: Any) -> Json:
    """Return the tree of an expression. Raise InvalidInput."""
    if not isinstance(given, str) or not 1 <= len(given) <= MAX_EXPRESSION_CHARACTERS:
        raise InvalidInput(
            f"use a JMESPath expression of at most {MAX_EXPRESSION_CHARACTERS} characters, such as item.payload.id"
        )
    try:
        tree: Json = jmespath.compile(given).parsed
    # Its lexer and the literals in backticks raise ValueError.
    except (JMESPathError, ValueError, RecursionError) as error:
        raise InvalidInput(f"is not a JMESPath expression: {' '.join(str(error).split())}") from error
    _check(tree)
    return tree


def _check(tree: Json) -> None:
    """Raise InvalidInput if the tree is too deep, or if an evaluation of it could only fail."""
    nodes = [(tree, 1)]
    while nodes:
        node, level = nodes.pop()
        if level > MAX_EXPRESSION_LEVELS:
            raise InvalidInput(f"has more than {MAX_EXPRESSION_LEVELS} levels; use fewer parts or several expressions")
        children = node["children"]
        if node["type"] == "slice":
            if children[2] == 0:
                raise InvalidInput("the step of a slice cannot be 0")
            continue
        if node["type"] == "expref":
            raise InvalidInput("& is not supported; use a projection, such as item.files[].name")
        if node["type"] == "subexpression" and children[0]["type"] == "not_expression":
            raise InvalidInput("! binds tighter than a full stop; use parentheses, such as !(item.payload)")
        if node["type"] == "function_expression":
            _check_call(node["value"], len(children))
        nodes += ((child, level + 1) for child in children)


def _check_call(name: str, given: int) -> None:
    if name not in _FUNCTIONS:
        raise InvalidInput(f"unknown function {name}; use one of {', '.join(_FUNCTIONS)}")
    needed = _FUNCTIONS[name][1]
    if needed not in (None, given):
        raise InvalidInput(f"{name} needs {needed} arguments, not {given}")


class Interpreter(TreeInterpreter):  # type: ignore[misc]  # jmespath has no types
    """Evaluates expressions on one webhook. Raises TooManySteps.

    A function or an ordering that meets a value of the wrong type gives null.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def is_true(self, value: Any) -> bool:
        return bool(self._is_true(value))

    def visit(self, node: Json, value: Any) -> Any:
        self._charge(1)
        return super().visit(node, value)

    def visit_function_expression(self, node: Json, value: Any) -> Any:
        arguments = [self.visit(child, value) for child in node["children"]]
        self._charge_for(arguments)
        try:
            return _FUNCTIONS[node["value"]][0](*arguments)
        except (TypeError, ValueError):
            return None

    def visit_comparator(self, node: Json, value: Any) -> bool | None:
        left, right = (self.visit(child, value) for child in node["children"])
        if node["value"] in self._EQUALITY_OPS:
            if isinstance(left, str | list | dict) and type(left) is type(right) and len(left) == len(right):
                self._charge_for(left)
        elif not {type(left), type(right)} <= {int, float}:
            return None
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

    def visit_slice(self, node: Json, value: Any) -> Any:
        self._charge(len(value) if isinstance(value, list) else 0)
        return super().visit_slice(node, value)

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
