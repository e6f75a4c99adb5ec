"""The Valkey lane: the store, its scripts, keys, connections and sign-in. Only this package imports redis."""

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any


def _defer_asyncio() -> None:
    """Delay the import of `redis.asyncio` until some code uses it, which ours never does.

    Otherwise redis imports it at once, which takes a twentieth of a function's cold start. An empty module replaces it.
    This module has the path of the real one, because redis later imports a submodule from there.
    """
    redis = PathFinder.find_spec("redis")
    spec = redis and PathFinder.find_spec("redis.asyncio", redis.submodule_search_locations)
    assert spec is not None
    assert spec.loader is not None
    loader, module = spec.loader, module_from_spec(spec)

    def load(name: str) -> Any:
        try:
            return import_module(f"redis.asyncio.{name}")
        except ModuleNotFoundError:
            vars(module).pop("__getattr__", None)
            loader.exec_module(module)
        return getattr(module, name)

    vars(module)["__getattr__"] = load
    sys.modules[spec.name] = module


if "redis" not in sys.modules:
    _defer_asyncio()
