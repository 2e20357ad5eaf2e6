"""Small files of what suites found: ``results/suite_NAME_SCALE.json`` and a picture of its curves.

    python benchmarks/suite_results.py SUITE_DIR... [--images docs/images]

``docs/results.md`` quotes these.
"""

import argparse
import json
import re
from pathlib import Path

from muesli.plots import plot_study, plot_sweep
from muesli.report import read_study

ROOT = Path(__file__).parents[1]


def without_out(command: list[str]) -> list[str]:
    """The command without the place on this machine."""
    if "--out" not in command:
        return command
    at = command.index("--out")
    return command[:at] + command[at + 2 :]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directories", type=Path, nargs="+")
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images")
    args = parser.parse_args()
    for directory in args.directories:
        study = read_study([directory])
        study["command"] = without_out(study["command"])
        study["earlier_commands"] = [without_out(words) for words in study["earlier_commands"]]
        name = f"suite_{study['suite']}_{study['scale']}"
        file = ROOT / "results" / f"{name}.json"
        file.write_text(json.dumps(study, indent=None, separators=(",", ":")) + "\n")
        plot_study(study, args.images / f"{name}.png")
        if all(re.search(r"_[0-9.]+$", row["name"]) for row in study["rows"]):
            plot_sweep(study, args.images / f"{name}_sweep.png")
        print(f"{file} ({file.stat().st_size / 1024:.0f} kB)")


if __name__ == "__main__":
    main()
