"""Your own policy update, and a row for it in one of the paper's suites, in one file.

    muesli --plugin examples/own_update.py suite baselines --rows muesli,muesli_entropy
    muesli compare runs/suites/baselines-laptop
    muesli --plugin examples/own_update.py report runs/suites/baselines-laptop

``--plugin`` runs this file before the command, and in every process that does a job of the suite.
Without it, a report has no video of the agent, which it cannot build.
"""

from muesli.config import UpdateConfig
from muesli.ops.targets import distillation
from muesli.policy_updates import UPDATES, cmpo_target, policy_gradient
from muesli.suites import SUITES, Claim, Row
from muesli.types import PolicyInputs, PolicyOutput


def muesli_entropy(inputs: PolicyInputs, config: UpdateConfig) -> PolicyOutput:
    """Muesli's loss with an entropy bonus: −E_π adv + λ KL(π_CMPO, π) − λ_H H[π]."""
    gradient = policy_gradient(inputs, config.beta_loo)
    target = cmpo_target(inputs, config)
    regulariser = distillation(inputs.policy, target)
    entropy = inputs.policy.entropy()
    loss = gradient + config.cmpo_weight * regulariser - config.entropy_weight * entropy
    # A target is what the model's policies are trained towards, too.
    return PolicyOutput(loss, target, {"loss_pg": gradient, "loss_cmpo": regulariser})


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
