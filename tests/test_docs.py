"""The Python of the pages can be copied: every block runs, its training cut to being traced. What
they quote is in the source, and their links lead somewhere.
"""

import re
import runpy
from functools import partial
from pathlib import Path

import jax
import pytest

import muesli
from muesli.config import Config, leaves
from muesli.envs import ENVS
from muesli.networks import NETWORKS
from muesli.policy_updates import UPDATES
from muesli.runners.anakin import make_anakin
from muesli.runners.parts import build

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")])
BLOCKS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in ("tour.md", "environments.md")
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    )
]


@pytest.fixture
def trained(monkeypatch):
    """The directories of what was trained: traced, which takes a second; nothing is compiled."""
    before = [(registry, dict(registry)) for registry in (ENVS, NETWORKS, UPDATES)]
    directories = []

    def train(config, run_dir, env=None):
        if env is not None:
            ENVS[config.env.name] = env
        parts = build(config)
        if not parts.sebulba:
            anakin = make_anakin(parts)
            state = jax.eval_shape(anakin.init, jax.random.key(0))
            jax.eval_shape(lambda s: anakin.iterate(s, 1), state)
        directories.append(run_dir)

    monkeypatch.setattr(muesli, "train", train)
    monkeypatch.setattr(muesli.envs, "check", partial(muesli.envs.check, steps=10))
    yield directories
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_of_python_runs_as_it_stands(block, trained):
    exec(compile(block, "a page", "exec"), {"__name__": "page"})
    assert len(trained) == 1


def test_the_readme_quotes_the_source_as_it_is():
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    excerpts = re.findall(r"<!-- excerpt of (\S+) -->\n```python\n(.*?)```", text, re.DOTALL)
    assert excerpts
    for path, excerpt in excerpts:
        assert excerpt in (DOCS.parent / path).read_text(encoding="utf-8"), path


def test_the_page_of_the_configuration_is_up_to_date():
    program = runpy.run_path(str(DOCS.parent / "benchmarks" / "configuration_page.py"))
    written = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert written == program["page"](), "run: python benchmarks/configuration_page.py"


def test_every_field_of_the_configuration_has_a_meaning():
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\S+)` \|.*\| (.*) \|$", text, re.MULTILINE))
    assert rows.keys() == dict(leaves(Config())).keys()
    assert all(rows.values())


def anchors(page):
    """What GitHub calls the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_our_own_pages_and_pictures_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target
