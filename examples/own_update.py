"""Your own policy update, and a row for it in one of the paper's suites, in one file.

    muesli --plugin examples/own_update.py suite baselines --rows muesli,muesli_entropy
    muesli compare runs/suites/baselines-laptop
    muesli report runs/suites/baselines-laptop

``--plugin`` runs this file before the command, and in every process that does a job of the suite.
"""

from muesli.config import UpdateConfig
from muesli.policy_updates import UPDATES, muesli
from muesli.suites import SUITES, Claim, Row
from muesli.types import PolicyInputs, PolicyOutput


def muesli_entropy(inputs: PolicyInputs, config: UpdateConfig) -> PolicyOutput:
    """Muesli's loss with an entropy bonus: −E_π adv + λ KL(π_CMPO, π) − λ_H H[π]."""
    output = muesli(inputs, config)
    return output._replace(loss=output.loss - config.entropy_weight * inputs.policy.entropy())


UPDATES["muesli_entropy"] = muesli_entropy

SUITES["baselines"] = (
    SUITES["baselines"]
    .with_rows(
        Row(
            "muesli_entropy",
            {"update.name": "muesli_entropy", "update.entropy_weight": 0.01},
        )
    )
    .with_claims(
        Claim("similar", "muesli_entropy", "muesli", "an entropy bonus makes no difference")
    )
)
