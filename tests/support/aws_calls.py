"""Finds the calls of AWS in source text, and judges them by the models of the SDK.

A receiver is known if the module assigns it from `….client("sqs")`, or calls that in place. Any other receiver may be a
client of each service in `services`, if the call has the name of an operation, and only keywords as arguments.
"""

import ast
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

import botocore.session
from botocore import xform_name

# The methods of clients that are no operations. `connect` is one of ours.
OTHER_METHODS = {"get_paginator", "get_waiter", "connect", "close"}


class Mistakes(list[str]):
    """The mistakes of a module, and how many calls were judged."""

    calls = 0


@cache
def operations(service: str) -> dict[str, Any]:
    """Return the model of each operation by the name of the client's method."""
    model = botocore.session.Session().get_service_model(service)
    return {xform_name(name): model.operation_model(name) for name in model.operation_names}


@cache
def exceptions(service: str) -> set[str]:
    return {shape.name for shape in botocore.session.Session().get_service_model(service).error_shapes}


def service_of(node: ast.AST) -> str | None:
    """Return the service of `….client("service")`, or None for another expression."""
    match node:
        case ast.Call(
            func=ast.Attribute(attr="client") | ast.Name(id="client"), args=[ast.Constant(value=str(name)), *_]
        ):
            return name
    return None


def services_in(source: str) -> set[str]:
    return {name for node in ast.walk(ast.parse(source)) if (name := service_of(node))}


def mistakes(source: str, services: Collection[str] = ()) -> Mistakes:
    tree, found = ast.parse(source), Mistakes()
    receivers = _receivers(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=receiver, attr=method)):
                known = {service} if (service := service_of(receiver)) else receivers.get(ast.unparse(receiver), set())
                if method == "paginate" and isinstance(receiver, ast.Call):
                    method, known = str(ast.literal_eval(receiver.args[0])), set()
                found += [f"{node.lineno}: {each}" for each in _of_call(node, method, known, services, found)]
            case ast.Attribute(value=ast.Attribute(value=receiver, attr="exceptions"), attr=name):
                known = receivers.get(ast.unparse(receiver), set())
                of_client = known or "client" in ast.unparse(receiver)
                if of_client and not any(name in exceptions(each) for each in known or services):
                    found.append(f"{node.lineno}: no service has the exception {name}")
    return found


def _receivers(tree: ast.AST) -> dict[str, set[str]]:
    """Return the services of which the module assigns clients to a name. Functions may use a name for several."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = list(zip(targets, values, strict=False))
            case ast.Assign(targets=[target], value=value):
                pairs = [(target, value)]
            case _:
                continue
        for target, value in pairs:
            if service := service_of(value):
                found.setdefault(ast.unparse(target), set()).add(service)
    return found


def _of_call(
    node: ast.Call, method: str, known: Collection[str], services: Collection[str], found: Mistakes
) -> Iterator[str]:
    candidates = [each for each in known or services if method in operations(each)]
    if known and not candidates and method not in OTHER_METHODS:
        yield f"{' and '.join(known)} has no {method}"
    if not candidates or (not known and node.args):
        return
    found.calls += 1
    if node.args:
        yield f"{method} takes no positional arguments"
    yield from min((list(_of_arguments(node, operations(each)[method].input_shape)) for each in candidates), key=len)


def _of_arguments(node: ast.Call, shape: Any) -> Iterator[str]:
    given = {each.arg: each.value for each in node.keywords}
    yield from _of_fields({name: value for name, value in given.items() if name}, shape, is_whole=None not in given)


def _of_fields(fields: dict[str, ast.expr], shape: Any, *, is_whole: bool) -> Iterator[str]:
    members = shape.members if shape else {}
    yield from (f"no argument {name}" for name in fields.keys() - members.keys())
    if shape and is_whole:
        yield from (f"{name} is missing" for name in set(shape.required_members) - fields.keys())
    for name in fields.keys() & members.keys():
        yield from _of_value(fields[name], members[name])


def _of_value(node: ast.expr, shape: Any) -> Iterator[str]:
    """Judge what of a value stands literally in the source."""
    match node, shape.type_name:
        case ast.Dict(keys=keys, values=values), "structure" if not getattr(shape, "is_document_type", False):
            fields = {
                str(key.value): value for key, value in zip(keys, values, strict=True) if isinstance(key, ast.Constant)
            }
            yield from _of_fields(fields, shape, is_whole=len(fields) == len(keys))
        case ast.Dict(values=values), "map":
            for value in values:
                yield from _of_value(value, shape.value)
        case ast.List(elts=values), "list":
            for value in values:
                yield from _of_value(value, shape.member)
        case ast.ListComp(elt=value), "list":
            yield from _of_value(value, shape.member)
        case ast.Constant(value=str(text)), "string" if getattr(shape, "enum", []) and text not in shape.enum:
            yield f"{text} is none of {shape.enum}"
