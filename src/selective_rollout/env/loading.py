"""From the text `module:function` to the environment factory or scorer it names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast

from selective_rollout.env.base import EnvironmentFactory
from selective_rollout.errors import ConfigError


def load_factory(reference: str) -> EnvironmentFactory:
    """Import the environment factory that `reference` names, such as `"my_package.worlds:make_world"`.

    Raises:
        ConfigError: as `load_function`.
    """
    return cast(EnvironmentFactory, load_function(reference, "environment factory"))


def load_function(reference: str, what: str) -> Callable[..., Any]:
    """Import the function of `(task, rollout)` that `reference` names; `what` it is for, errors say.

    Importing runs the module's code, so take references from the user's own command line or configuration
    only. Whatever the module itself raises on import passes through.

    Raises:
        ConfigError: no colon, no such module, no such attribute, or something that cannot be called.
    """
    where = f"{what} {reference!r}"
    module_name, colon, attribute = reference.partition(":")
    if not (colon and module_name and attribute) or module_name.startswith("."):
        raise ConfigError(f"{where} is not of the form module:function, such as my_worlds:make_world")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{where} cannot be imported: {_missing(module_name, error.name)}") from error
    try:
        function = getattr(module, attribute)
    except AttributeError:
        raise ConfigError(
            f"{where}: module {module_name!r} has no {attribute!r}; check the spelling"
        ) from None
    if not callable(function):
        raise ConfigError(f"{where} is a {type(function).__name__}; it must be callable as f(task, rollout)")
    return cast(Callable[..., Any], function)


def _missing(wanted: str, missing: str | None) -> str:
    if missing and (wanted == missing or wanted.startswith(f"{missing}.")):
        return f"no module named {missing!r}; check the spelling and that its folder is on PYTHONPATH"
    return f"module {wanted!r} needs {missing!r}, which is not installed"
