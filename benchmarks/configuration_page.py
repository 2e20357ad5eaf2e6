"""Writes docs/configuration.md from the fields and docstrings of ``muesli.config``.

    python benchmarks/configuration_page.py

``tests/test_docs.py`` fails where the page is not what this would write.
"""

from __future__ import annotations

import argparse
import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from muesli.config import Config, tree

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
INTRODUCTION = """\
# Configuration

<!-- Made by benchmarks/configuration_page.py from src/muesli/config/tree.py. Change those. -->

Every field of a configuration. On the command line `env.num_envs` is `--env.num-envs 32`; booleans
take a value (`--batch.symmetries True`), `None` is written as such, and tuples are several values
(`--network.torso-channels 8 16 16`). From Python a configuration is a tree of frozen dataclasses,
to be changed with `dataclasses.replace`. `config.json` in a run's directory has every field as it
was used.

The defaults below are those of `muesli.config.Config`: the paper's shared tables, with its IMPALA
network. A preset changes some of them (`muesli list presets`), and so does `--update.name`, which
brings that update's own hyperparameters. How the fields relate to the paper is in
[deviations.md](deviations.md); words such as *slot* or *informed head* are in the
[glossary](glossary.md).
"""


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(_sections(Config(), "", "A whole run"))


def _sections(config: Any, prefix: str, title: str) -> Iterator[str]:
    """The table of one dataclass, then those of the dataclasses in it."""
    written = _written(type(config))
    summary = _plain(inspect.getdoc(type(config)) or "")
    about = "" if not prefix else f"{summary}\n\n"
    yield f"\n## {title}\n\n{about}| field | values | default | meaning |\n|---|---|---|---|\n"
    inner = []
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            inner.append((value, f"{prefix}{field.name}."))
            continue
        values, meaning = written[field.name]
        yield f"| `{prefix}{field.name}` | {values} | `{_shown(value)}` | {meaning} |\n"
    for value, dotted in inner:
        yield from _sections(value, dotted, f"`{dotted[:-1]}`")


def _written(cls: type) -> dict[str, tuple[str, str]]:
    """What the source says of each field: its values, and the string that follows it."""
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(tree)).body
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    )
    found = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = str(after.value.value)
            found[node.target.id] = (_values(node.annotation), _plain(text))
    return found


def _values(annotation: ast.expr) -> str:
    if isinstance(annotation, ast.BinOp):  # float | None
        return f"{_values(annotation.left)} or {_values(annotation.right)}"
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        choices = annotation.slice
        listed = choices.elts if isinstance(choices, ast.Tuple) else [choices]
        return ", ".join(f"`{_shown(ast.literal_eval(choice))}`" for choice in listed)
    return {"tuple[int, ...]": "ints"}.get(ast.unparse(annotation), ast.unparse(annotation))


def _shown(value: Any) -> str:
    """As on the command line."""
    if isinstance(value, tuple):
        return " ".join(str(item) for item in value)
    return str(value)


def _plain(text: str) -> str:
    """A docstring as one line of Markdown."""
    return " ".join(text.split()).replace("``", "`").replace("|", r"\|").replace("*_", r"\*_")


if __name__ == "__main__":
    main()
