"""Dotted fields of a configuration, ``update.cmpo_weight``: read, replaced, compared."""

from __future__ import annotations

import dataclasses
from typing import Any

from muesli.config import Config, ConfigError, leaves


def get_field(config: Config, dotted: str) -> Any:
    """The value of a dotted field; raises a ConfigError for one there is not."""
    node: Any = config
    for name in dotted.split("."):
        if not dataclasses.is_dataclass(node) or not hasattr(node, name):
            raise ConfigError(f"{dotted}: this version knows no such field")
        node = getattr(node, name)
    return node


def set_field(config: Config, dotted: str, value: Any) -> Config:
    """The same configuration with one dotted field replaced."""
    get_field(config, dotted)

    def put(node: Any, path: list[str]) -> Any:
        name, *rest = path
        new = put(getattr(node, name), rest) if rest else value
        return dataclasses.replace(node, **{name: new})

    return put(config, dotted.split("."))


def plain(config: Config) -> Config:
    """The same configuration with Python's own numbers, which files can hold, for NumPy's."""
    for name, value in leaves(config):
        if hasattr(value, "item"):
            config = set_field(config, name, value.item())
    return config


def differences(config: Config, base: Config) -> dict[str, Any]:
    """The dotted fields in which ``config`` is not as ``base``, with its own values."""
    theirs = dict(leaves(base))
    return {name: value for name, value in leaves(config) if value != theirs[name]}
