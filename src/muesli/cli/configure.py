"""From a command line to a configuration: a preset or an environment by name, and fields."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from muesli.cli.main import UsageError, nearest
from muesli.cli.options import whole_number
from muesli.config import Config, EnvConfig, validate
from muesli.fields import leaves


def parse_config(preset: str | None, arguments: Sequence[str]) -> tuple[str, Config]:
    """The preset's configuration with the fields given on the command line."""
    from muesli.envs import with_version

    name, default, text = _preset(preset)
    default = _with_named_update(default, arguments)
    try:
        config = parse_fields(default, arguments, f"muesli train {name}", text)
    except UsageError as error:
        stray = str(error).removeprefix("Unrecognized options: ")
        if preset is None and stray != str(error) and not stray.startswith("-"):
            raise UsageError(f"{stray}: PRESET comes first, before every option") from None
        raise
    config = replace(config, env=replace(config.env, name=with_version(config.env.name)))
    validate(config)
    return name, config


def choice(preset: str | None) -> str | None:
    """Which preset a name stands for, and why, where that depends on the machine."""
    if preset is None or not preset.startswith("atari:"):
        return None
    chosen, why = _preset_of_games()
    other = f"muesli train PRESET --env.name {preset}"
    return f"{preset}: as preset {chosen}, for JAX {why}; with another: {other}"


def _preset_of_games() -> tuple[str, str]:
    """The preset of a game of Atari that is named without one, and why."""
    from muesli.runners.device import finds_accelerator

    if finds_accelerator():
        return "atari_small", "finds an accelerator"
    return "atari_laptop", "finds no accelerator"


def parse_fields(
    default: Config,
    arguments: Sequence[str],
    prog: str,
    description: str = "",
    also: Sequence[str] = (),
) -> Config:
    """``default`` with the fields given on the command line, not yet validated.

    ``also``: flags that a misspelt one may have meant besides fields.
    """
    import tyro

    known = [f"--{field.replace('_', '-')}" for field, _ in leaves(default)]
    for flag in (argument.split("=")[0] for argument in arguments):
        if flag.startswith("--") and flag.replace("_", "-") not in (*known, "--help"):
            hint = nearest(flag, [*known, *also])
            raise UsageError(f"{flag}: there is no such field{hint}")
    said = io.StringIO()
    numbers = tyro.constructors.ConstructorRegistry()
    numbers.primitive_rule(_whole_numbers)
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                tyro.conf.configure(tyro.conf.FlagConversionOff)(Config),
                default=default,
                args=list(arguments),
                prog=prog,
                description=description,
                registry=numbers,
            )
    except SystemExit as end:
        if end.code:
            raise UsageError(_in_one_line(said.getvalue())) from None
        raise


def _whole_numbers(info: Any) -> Any:
    """How tyro reads fields that are whole numbers."""
    from tyro.constructors import PrimitiveConstructorSpec

    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


def _with_named_update(default: Config, arguments: Sequence[str]) -> Config:
    """The defaults beside an ``--update.name``: that update's own hyperparameters.

    The preset's stay for the update it has already, and for a user's, of which nothing is known.
    """
    from muesli.config import UPDATE_DEFAULTS
    from muesli.presets import with_update

    flag, name = "--update.name", default.update.name
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if argument == flag or argument.startswith(f"{flag}="):
            name = following if argument == flag else argument.removeprefix(f"{flag}=")
    if name == default.update.name or name not in UPDATE_DEFAULTS:
        return default
    return with_update(default, name)


def _in_one_line(box: str) -> str:
    """What tyro says of a wrong argument: in a box, or between lines where those cannot be drawn.

    Under its title are what is wrong and, perhaps, how the argument is to be given.
    """
    sections: list[list[str]] = [[]]
    for line in box.splitlines()[1:]:
        inside = line.strip("│╰╯ ")
        if inside.strip("─- "):
            sections[-1].append(inside)
        elif sections[-1]:
            sections.append([])
    usage = [s[1] for s in sections if s[:1] == ["Argument helptext:"] and len(s) > 1]
    return "; expected ".join([" ".join(sections[0]) or box.strip(), *usage])


def _preset(preset: str | None) -> tuple[str, Config, str]:
    """Name, configuration and description of a preset, or of any environment with a colon."""
    from muesli.presets import DEFAULT_PRESET, PRESETS, TUNED, gym, make_preset

    name = preset or DEFAULT_PRESET
    if name in PRESETS:
        return name, make_preset(name), PRESETS[name].__doc__ or ""
    if ":" not in name:
        raise UsageError(
            f"unknown preset '{name}'{_meant(name, list(PRESETS))}; 'muesli list presets' "
            "shows them all"
        )
    from muesli.envs import make, with_version

    name = with_version(name)
    env = make(name, EnvConfig(name=name))
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    if (text := choice(name)) is not None:
        base = PRESETS[_preset_of_games()[0]]()
        return plain, replace(base, env=replace(base.env, name=name)), f"{text}."
    registered, mark, _ = name.partition("?")
    if registered in TUNED:
        base, text = TUNED[registered](), f"{registered}, with a configuration of its own."
        return plain, replace(base, env=replace(base.env, name=name)) if mark else base, text
    image = len(env.spec.observation_shape) == 3
    return plain, gym(name, image, env.spec.num_actions is not None), f"{name}, from its spaces."


def _meant(name: str, presets: list[str]) -> str:
    """What somebody may have meant who names neither a preset nor an environment of ours."""
    if re.search(r"[A-Z/]|-v\d", name):  # as Gymnasium writes its ids
        from muesli.envs.naming import other_names

        if others := other_names(name):
            return f" (did you mean {' or '.join(others)}?)"
    return nearest(name, presets)
