"""What stands in results/ follows from the scores that stand beside it."""

import json
from pathlib import Path

import numpy as np
import pytest

from muesli import statistics

STUDIES = sorted((Path(__file__).parents[1] / "results").glob("suite_*.json"))


def scores(study, row):
    """A row's runs by environments, normalised where the environments have a reference."""
    found = next(r for r in study["rows"] if r["name"] == row)["envs"]
    columns = []
    for env in study["envs"]:
        raw = np.array(found[env["name"]]["scores"], float)
        if env["reference"] is not None:
            raw = (raw - env["random"]) / (env["reference"] - env["random"])
        columns.append(raw)
    fewest = min(map(len, columns))
    return np.stack([column[:fewest] for column in columns], axis=1)


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_verdicts_follow_from_the_scores(file):
    study = json.loads(file.read_text())
    for claim in study["claims"]:
        gap = statistics.welch(*(scores(study, claim[side]) for side in ("first", "second")))
        assert claim["verdict"] == statistics.verdict(claim["kind"], gap), claim
        np.testing.assert_allclose(claim["gap"]["value"], gap.value, rtol=1e-3, atol=1e-4)
        for side in ("low", "high"):
            stored, wanted = claim["gap"][side], getattr(gap, side)
            assert (stored is None) == (wanted is None)
            if wanted is not None:
                assert stored == pytest.approx(wanted, rel=1e-3, abs=1e-4)
