"""What is built is what a user gets: the wheel holds the package, installs alone and imports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def version() -> str:
    found = re.search(
        r'^__version__ = "(.+)"$', (ROOT / "src/muesli/__init__.py").read_text(), re.M
    )
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    run(*build, str(ROOT), cwd=out)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_is_named_after_the_version(wheel: Path, version: str) -> None:
    assert wheel.name == f"muesli_rl-{version}-py3-none-any.whl"


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path, version: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {
        path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/muesli").rglob("*.py")
    }
    metadata = f"muesli_rl-{version}.dist-info"
    assert sources <= names
    assert "muesli/py.typed" in names
    assert f"{metadata}/licenses/LICENSE" in names
    assert {name.split("/")[0] for name in names} == {"muesli", metadata}
    assert not [name for name in names if "test" in name.lower()]


def test_the_wheel_declares_only_what_users_need(wheel: Path, version: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"muesli_rl-{version}.dist-info/METADATA").decode()
    required = [
        re.split(r"[\s;<>=\[]", line.removeprefix("Requires-Dist: "))[0]
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    ]
    assert "jax" in required
    assert not {"pytest", "rlax", "distrax", "chex", "ale-py", "wandb", "ray"} & set(required)


def test_the_installed_wheel_imports_and_has_its_command(
    wheel: Path, version: str, tmp_path: Path
) -> None:
    home = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=tmp_path)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(home)]
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel), cwd=tmp_path)
    (site,) = home.glob("lib/python*/site-packages")
    # The dependencies come from the environment the tests run in. A path named in a .pth file is
    # searched, but .pth files in it are not read: an editable install there stays out of sight.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    code = (
        "import json, muesli, importlib.metadata as m;"
        "print(json.dumps([muesli.__file__, muesli.__version__, m.version('muesli-rl')]))"
    )
    file, imported, declared = json.loads(run(home / "bin/python", "-c", code, cwd=tmp_path))
    assert Path(file).is_relative_to(site)
    assert imported == declared == version
    assert (home / "bin/muesli").exists()
