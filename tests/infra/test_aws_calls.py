"""What our code asks of AWS is in the SDK's models of its services, and in the cache's list of commands.

No model says whether AWS does what it lists. docs/deploy.md says what is proved how.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import botocore.session
import pytest
from botocore import xform_name

from infra.cache import ACCESS
from tests.infra.conftest import ROOT
from tests.support.valkey_server import SERVERLESS_COMMANDS

ROOMS = ("message_buffer", "lambdas", "infra", "bufferctl", "tools", "examples")
CODE = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if "node_modules" not in path.parts]


@cache
def operations(service: str) -> dict[str, Any]:
    """Return the input of each operation by the name of the client's method."""
    model = botocore.session.Session().get_service_model(service)
    return {xform_name(name): model.operation_model(name).input_shape for name in model.operation_names}


def services_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="client") | ast.Name(id="client"), args=[ast.Constant(value=name), *_]
            ):
                yield str(name)


def calls_in(tree: ast.AST, services: set[str]) -> Iterator[tuple[str, set[str], list[Any]]]:
    """Yield each call named like an AWS operation: its name, its arguments, and the inputs of these operations."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=method), args=[], keywords=keywords):
                inputs = [operations(each)[method] for each in services if method in operations(each)]
                if inputs:
                    yield method, {each.arg for each in keywords if each.arg}, inputs


def mistakes(source: str, services: set[str]) -> list[str]:
    return [
        f"{method} has no arguments {sorted(given)}"
        for method, given, inputs in calls_in(ast.parse(source), services)
        if not any(given <= (shape.members.keys() if shape else set()) for shape in inputs)
    ]


def test_every_call_of_aws_has_the_arguments_of_the_sdks_model() -> None:
    texts = {path.relative_to(ROOT): path.read_text("utf-8") for path in CODE}
    services = {service for text in texts.values() for service in services_in(ast.parse(text))}
    assert sum(1 for text in texts.values() for _ in calls_in(ast.parse(text), services)) > 60
    found = {str(path): mistakes(text, services) for path, text in texts.items()}
    assert {path: each for path, each in found.items() if each} == {}


@pytest.mark.parametrize("call", ["sqs.delete_message(QueueURL=url)", "self._client.batch_get_item(RequestItem=items)"])
def test_a_mistake_in_a_call_is_found(call: str) -> None:
    assert len(mistakes(call, {"dynamodb", "sqs"})) == 1


def test_the_cache_has_every_command_that_its_user_may_run() -> None:
    """The strict server of the integration tests allows the application only these commands."""
    assert set(re.findall(r"\+(\S+)", ACCESS)) - SERVERLESS_COMMANDS == set()
