"""``gym:EnvId``, ``module:EnvId``, and what may have been meant by a name that is neither."""

from __future__ import annotations

import ast
import difflib
import importlib
import re
import sys
from typing import Any, NamedTuple

from muesli.checks import place_of, told
from muesli.config import ConfigError
from muesli.envs.atari import GAMES


class GymName(NamedTuple):
    """module: what is imported first, or empty; id: Gymnasium's, with its version; arguments: what
    the environment is made with.
    """

    module: str
    id: str
    arguments: dict[str, Any]


def import_gymnasium() -> Any:
    """Gymnasium, which not everyone has."""
    try:
        import gymnasium
    except ImportError as error:
        raise ConfigError(
            "env.name: Gymnasium environments need gymnasium; pip install 'muesli-rl[gym]'"
        ) from error
    return gymnasium


def resolve(name: str) -> GymName:
    """Takes ``[module:]EnvId[?argument=value,…]`` apart, imports the module, and finds the newest
    version where the id leaves it out.
    """
    import_gymnasium()
    from gymnasium.envs.registration import parse_env_id, registry
    from gymnasium.error import Error

    plain, mark, text = name.partition("?")
    arguments = _arguments(name, text) if mark else {}
    module, colon, identifier = plain.partition(":")
    if colon:
        _import(name, module, identifier)
    else:
        module, identifier = "", plain
    if identifier not in registry:
        try:
            version = parse_env_id(identifier)[2]
        except Error as error:
            raise ConfigError(f"env.name: '{name}' cannot be made: {error}") from error
        if version is None:
            identifier = _newest(identifier) or identifier
    return GymName(module, identifier, arguments)


def _newest(identifier: str) -> str | None:
    """The id with the newest of the versions that Gymnasium knows, if it knows one."""
    from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

    namespace, word, _ = parse_env_id(identifier)
    newest = find_highest_version(namespace, word)
    return None if newest is None else get_env_id(namespace, word, newest)


def with_version(name: str) -> str:
    """The same name, with the version that its id leaves out: that which a run goes on with."""
    family = "gym:" if name.startswith("gym:") else ""
    found = resolve(name.removeprefix(family))
    _, mark, text = name.partition("?")
    module = f"{found.module}:" if found.module else ""
    return f"{family}{module}{found.id}{mark}{text}"


def _arguments(name: str, text: str) -> dict[str, Any]:
    """What stands behind the question mark, as Python writes it in a call."""
    try:
        call = ast.parse(f"_({text})", mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            values = {str(word.arg or ""): ast.literal_eval(word.value) for word in call.keywords}
            if values and "" not in values and len(values) == len(call.keywords):
                return values
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        pass
    raise ConfigError(
        f"env.name: '{name}' must have arguments as Python writes them behind its question mark, "
        "e.g. gym:FrozenLake-v1?is_slippery=False,map_name='8x8'"
    )


def _import(name: str, module: str, identifier: str) -> None:
    if not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(
            f"env.name: '{name}' names no module; module:EnvId imports a module as Python does, "
            "e.g. my_package.envs:Reacher-v0"
        )
    if "" not in sys.path:
        # The directory one is in: `python -m muesli` has it at the front, the command not at all.
        sys.path.append("")
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if not missing or not f"{module}.".startswith(f"{missing}."):
            why = f"importing {module} raised {told(error)}{place_of(error)}"
        else:
            meant = {"gym": f"gym:{identifier}", "gymnasium": f"gym:{identifier}"}
            meant["atari"] = f"atari:{identifier.lower()}"
            hint = meant.get(module.lower())
            why = f"No module named '{missing}'"
            why += f"; did you mean {hint}?" if hint else ", neither installed nor here"
        raise ConfigError(f"env.name: '{name}' cannot be made: {why}") from error


# --- what may have been meant -----------------------------------------------------------------


def other_names(name: str) -> list[str]:
    """What something that Gymnasium knows, or knew, is called here: ``atari:pong`` is ALE/Pong-v5,
    ``gym:CartPole-v1`` is CartPole-v1.
    """
    plain = name.partition("?")[0]
    game = _game(plain)
    if game is not None:
        return [f"atari:{game}"]
    try:
        found = resolve(plain) if ":" not in plain else None
    except ConfigError:  # no Gymnasium, or no id
        return []
    from gymnasium.envs.registration import registry

    if found is None:
        return []
    close = [found.id] if found.id in registry else _close(found.id, list(registry), 0.8)
    return [f"gym:{identifier}" for identifier in close]


def similar(wanted: GymName) -> list[str]:
    """The names nearest to one that Gymnasium does not know: another version's, if there is one."""
    from gymnasium.envs.registration import registry

    if (game := _game(wanted.id)) is not None:
        return [f"atari:{game}"]
    if (newest := _newest(wanted.id)) is not None:
        return [f"{wanted.module or 'gym'}:{newest}"]
    package = wanted.module.partition(".")[0]
    own = [i for i, spec in registry.items() if package and _package(spec) == package]
    if close := _close(wanted.id, own, 0.4):
        return [f"{wanted.module}:{identifier}" for identifier in close]
    return [f"gym:{identifier}" for identifier in _close(wanted.id, list(registry), 0.4)]


def _close(identifier: str, among: list[str], cutoff: float) -> list[str]:
    return difflib.get_close_matches(identifier, among, n=3, cutoff=cutoff)


def _package(spec: Any) -> str:
    """The top-level package that an entry of the registry makes its environment with."""
    entry = spec.entry_point
    module = entry if isinstance(entry, str) else getattr(entry, "__module__", None) or ""
    return module.partition(":")[0].partition(".")[0]


def _game(identifier: str) -> str | None:
    """The Atari game of an id such as ALE/MsPacman-v5 or MsPacmanNoFrameskip-v4, if it is one."""
    found = re.fullmatch(
        r"(?:ALE/)?([A-Z]\w*?)(?:-ram)?(?:NoFrameskip|Deterministic)?(?:-v\d+)?", identifier
    )
    game = re.sub(r"(?<!^)(?=[A-Z])", "_", found[1]).lower() if found else None
    return game if game in GAMES else None
