"""The eight policy updates: losses and gradients by hand, against NumPy and against rlax."""

from dataclasses import replace
from functools import cache, partial

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from muesli import policy_updates
from muesli.config import UPDATE_DEFAULTS, UpdateConfig
from muesli.distributions import LOG_ZERO, Categorical, DiagonalNormal
from muesli.ops.targets import all_actions, distillation
from muesli.policy_updates import UPDATES, mpo, prior_penalty
from muesli.types import Candidates, PolicyInputs, PolicyTarget

SEEDS = st.integers(0, 2**32 - 1)
few_examples = settings(max_examples=15, deadline=None)
NUM_ACTIONS = 4


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


def categorical(*probs):
    return Categorical(jnp.log(jnp.asarray(probs, jnp.float32)))


def state(
    policy,
    *,
    prior=None,
    behaviour=None,
    action=0,
    advantage=0.0,
    q_advantages=None,
    actions=None,
    rho=None,
    temperature=1.0,
    search=None,
    oracle=False,
):
    """One state's PolicyInputs. All actions are candidates unless ``actions`` lists samples."""
    prior = policy if prior is None else prior
    behaviour = prior if behaviour is None else behaviour
    action = jnp.asarray(action)
    if q_advantages is None:
        q_advantages = jnp.zeros(prior.num_actions)
    q_advantages = jnp.asarray(q_advantages, jnp.float32)
    if actions is None:
        candidates = Candidates(*all_actions(prior), q_advantages)
        q_advantage = q_advantages[action]
    else:
        actions = jnp.asarray(actions)
        count = actions.shape[0]
        discrete = isinstance(prior, Categorical)
        candidates = Candidates(
            actions=actions,
            weights=jnp.full((count,), 1.0 / count),
            log_prior=jax.vmap(prior.log_prob)(actions),
            advantages=q_advantages[actions] if discrete else q_advantages,
        )
        q_advantage = q_advantages[action] if discrete else jnp.asarray(0.0)
    if rho is None:
        log_ratio = policy.log_prob(action) - behaviour.log_prob(action)
        rho = jax.lax.stop_gradient(jnp.minimum(1.0, jnp.exp(log_ratio)))
    return PolicyInputs(
        policy=policy,
        prior=prior,
        behaviour=behaviour,
        action=action,
        advantage=jnp.asarray(advantage, jnp.float32),
        q_advantage=q_advantage,
        rho=jnp.asarray(rho, jnp.float32),
        candidates=candidates,
        temperature=jnp.asarray(temperature, jnp.float32),
        oracle=Candidates(*all_actions(prior), q_advantages) if oracle else None,
        search=search,
    )


@partial(jax.jit, static_argnums=(0, 2))
def loss_and_gradient(update, inputs, config):
    """The loss of one state and its gradient in the parameters of the policy."""
    return jax.value_and_grad(lambda p: update(inputs._replace(policy=p), config).loss)(
        inputs.policy
    )


EXACT = UpdateConfig(kl_samples=None)


# --- the policy-gradient term by hand -----------------------------------------------------------


def test_policy_gradient_by_hand():
    # π = (1/2, 1/2), a = 0, ρ̄ = 1/2, advantage 3:
    #   loss = −½·3·ln ½ = 1.039721;  gradient = −½·3·(onehot − π) = (−3/4, 3/4)
    inputs = state(categorical(0.5, 0.5), action=0, advantage=3.0, rho=0.5)
    config = replace(EXACT, beta_loo=False)
    loss, gradient = loss_and_gradient(policy_updates.pg, inputs, config)
    assert loss == pytest.approx(1.039721, abs=1e-5)
    np.testing.assert_allclose(gradient.logits, [-0.75, 0.75], rtol=1e-5)


def test_policy_gradient_with_beta_loo_by_hand():
    # π = (1/2, 1/2), a = 0, ρ̄ = 1/2, (G − v̂)/σ = 3, (q̂ − v̂)/σ = (2, −1):
    #   −ρ̄ (3 − 2) ln ½ − (½·2 − ½·1) = 0.346574 − 0.5 = −0.153426
    #   gradient of the first part: −½·1·(½, −½) = (−1/4, 1/4)
    #   of the second: −π_b (adv_b − Σ π adv) = −½ (2 − ½, −1 − ½) = (−3/4, 3/4)
    inputs = state(
        categorical(0.5, 0.5), action=0, advantage=3.0, rho=0.5, q_advantages=[2.0, -1.0]
    )
    loss, gradient = loss_and_gradient(policy_updates.pg, inputs, EXACT)
    assert loss == pytest.approx(-0.153426, abs=1e-5)
    np.testing.assert_allclose(gradient.logits, [-1.0, 1.0], rtol=1e-5)


def test_an_exact_model_makes_the_sampled_correction_vanish():
    # With G = q̂(s, a) only the model's own expectation is left, whatever ρ̄ is.
    q_advantages = [0.7, -1.2, 0.1]
    make = lambda rho: state(
        categorical(0.2, 0.3, 0.5), action=1, advantage=-1.2, rho=rho, q_advantages=q_advantages
    )
    low, _ = loss_and_gradient(policy_updates.pg, make(0.0), EXACT)
    high, _ = loss_and_gradient(policy_updates.pg, make(1.0), EXACT)
    assert low == pytest.approx(float(high), abs=1e-6)
    # −(0.2·0.7 − 0.3·1.2 + 0.5·0.1) = 0.17
    assert low == pytest.approx(0.17, abs=1e-5)


def test_no_gradient_flows_through_the_importance_weight():
    inputs = state(categorical(0.2, 0.8), behaviour=categorical(0.6, 0.4), action=0, advantage=1.0)
    config = replace(EXACT, beta_loo=False)
    _, gradient = loss_and_gradient(policy_updates.pg, inputs, config)
    # ρ̄ = 1/3 as a constant: −⅓ (1 − 0.2, −0.8)
    np.testing.assert_allclose(gradient.logits, [-0.8 / 3, 0.8 / 3], rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Rlax softmax:PendingDeprecationWarning")
def test_policy_gradient_matches_rlax():
    logits = jnp.array([0.3, -0.4, 1.1])
    inputs = state(Categorical(logits), action=2, advantage=-1.7, rho=0.6)
    config = replace(EXACT, beta_loo=False, entropy_weight=0.1)
    loss, gradient = loss_and_gradient(policy_updates.pg, inputs, config)

    def oracle(x):
        surrogate = rlax.policy_gradient_loss(
            x[None], jnp.array([2]), jnp.array([-1.7]), jnp.array([0.6])
        )
        return surrogate + 0.1 * rlax.entropy_loss(x[None], jnp.ones(1))

    expected_loss, expected_gradient = jax.value_and_grad(oracle)(logits)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(gradient.logits, expected_gradient, rtol=1e-5, atol=1e-6)


def test_expected_advantage_gradient_matches_rlax_qpg():
    logits, q = jnp.array([0.3, -0.4, 1.1]), jnp.array([1.0, -2.0, 0.5])
    inputs = state(Categorical(logits), prior=categorical(0.6, 0.3, 0.1), q_advantages=q, rho=0.0)
    _, gradient = loss_and_gradient(policy_updates.pg, inputs, EXACT)
    expected = jax.grad(lambda x: rlax.qpg_loss(x[None], q[None]))(logits)
    np.testing.assert_allclose(gradient.logits, expected, rtol=1e-5, atol=1e-6)


# --- each regulariser by hand -------------------------------------------------------------------


def test_cmpo_by_hand():
    # π_prior = π = (1/2, 1/2), adv = (ln 3, −9), c = ln 3: gains multiply by (3, 1/3), so
    # π_CMPO = (9/10, 1/10). KL = 0.9 ln 1.8 + 0.1 ln 0.2 = 0.529008 − 0.160944 = 0.368064.
    # The gradient is π − π_CMPO = (−0.4, 0.4); λ = 2 doubles both.
    inputs = state(categorical(0.5, 0.5), q_advantages=[np.log(3), -9.0])
    config = replace(EXACT, clip_threshold=float(np.log(3)), cmpo_weight=2.0)
    loss, gradient = loss_and_gradient(policy_updates.cmpo, inputs, config)
    assert loss == pytest.approx(2 * 0.368064, abs=1e-5)
    np.testing.assert_allclose(gradient.logits, [-0.8, 0.8], rtol=1e-5)


def test_muesli_is_the_policy_gradient_plus_the_weighted_cmpo_regulariser():
    inputs = state(
        categorical(0.2, 0.3, 0.5),
        prior=categorical(0.3, 0.3, 0.4),
        action=1,
        advantage=1.5,
        q_advantages=[0.7, -1.2, 0.1],
    )
    config = replace(EXACT, cmpo_weight=3.0)
    out = policy_updates.muesli(inputs, config)
    gradient = policy_updates.pg(inputs, replace(config, entropy_weight=0.0)).loss
    regulariser = policy_updates.cmpo(inputs, replace(config, cmpo_weight=1.0)).loss
    np.testing.assert_allclose(out.loss, gradient + 3.0 * regulariser, rtol=1e-6)
    np.testing.assert_allclose(out.metrics["loss_pg"], gradient, rtol=1e-6)
    np.testing.assert_allclose(out.metrics["loss_cmpo"], regulariser, rtol=1e-6)


def test_advantages_are_scaled_before_they_are_clipped():
    # 0.1 scaled by 20 is clipped to 1, so the gains are (1, −0.4): π_CMPO ∝ (e, e^−0.4).
    inputs = state(categorical(0.5, 0.5), q_advantages=[0.1, -0.02])
    target = policy_updates.cmpo_target(inputs, replace(EXACT, advantage_scale=20.0))
    np.testing.assert_allclose(target.weights, softmax(np.array([1.0, -0.4])), rtol=1e-5)


def test_mpo_by_hand():
    # η = ½, adv = (½ ln 3, 0): π_MPO = (3/4, 1/4); KL to π = (1/2, 1/2) is 0.130812.
    inputs = state(categorical(0.5, 0.5), q_advantages=[0.5 * np.log(3), 0.0], temperature=0.5)
    loss, gradient = loss_and_gradient(policy_updates.mpo, inputs, EXACT)
    assert loss == pytest.approx(0.130812, abs=1e-5)
    np.testing.assert_allclose(gradient.logits, [-0.25, 0.25], rtol=1e-5)


def test_sampled_mpo_takes_its_weights_over_its_own_samples():
    # Samples 0, 0, 1 with gains ln 4 and 0: weights 4/9, 4/9, 1/9, whatever the prior is. With the
    # leave-one-out z̃ a lone sample of gain ln x would weigh x / (1 + the others), without bound.
    config = replace(UPDATE_DEFAULTS["mpo"], kl_samples=3)
    inputs = state(
        categorical(0.5, 0.5),
        prior=categorical(0.7, 0.3),
        q_advantages=[0.3 * np.log(4.0), 0.0],
        actions=np.array([0, 0, 1]),
        temperature=0.3,
    )
    out = policy_updates.mpo(inputs, config)
    np.testing.assert_allclose(out.target.weights, [4 / 9, 4 / 9, 1 / 9], rtol=1e-5)
    # What the temperature is trained on is then the loss itself.
    np.testing.assert_allclose(out.metrics["loss_mpo"], out.loss, rtol=1e-6)


def test_direct_mpo_by_hand():
    # KL(π, π_prior), in this direction: KL((1/2, 1/2), (1/4, 3/4)) = ½ ln 2 + ½ ln ⅔ = 0.143841.
    # Gradient: π_b (ln(π_b/p_b) − KL) = ½ (0.693147 − 0.143841, −0.405465 − 0.143841)
    inputs = state(categorical(0.5, 0.5), prior=categorical(0.25, 0.75))
    config = replace(EXACT, direct_mpo_weight=2.0)
    loss, gradient = loss_and_gradient(policy_updates.direct_mpo, inputs, config)
    assert loss == pytest.approx(2 * 0.143841, abs=1e-5)
    np.testing.assert_allclose(gradient.logits, [0.549306, -0.549306], rtol=1e-5)


def test_trpo_penalty_by_hand():
    # KL(π_b, π), in the other direction: KL((1/4, 3/4), (1/2, 1/2)) = 0.130812; gradient π − π_b.
    inputs = state(categorical(0.5, 0.5), behaviour=categorical(0.25, 0.75))
    config = replace(EXACT, trpo_weight=2.0, beta_loo=False)
    loss, gradient = loss_and_gradient(policy_updates.trpo_penalty, inputs, config)
    assert loss == pytest.approx(2 * 0.130812, abs=1e-5)
    np.testing.assert_allclose(gradient.logits, [0.5, -0.5], rtol=1e-5)


def test_entropy_is_a_bonus():
    # H[(1/4, 3/4)] = 0.562335; minimising −H moves probability to the rarer action.
    inputs = state(categorical(0.25, 0.75))
    for name in ("pg", "trpo_penalty", "ppo"):
        config = replace(EXACT, entropy_weight=2.0, beta_loo=False)
        loss, gradient = loss_and_gradient(UPDATES[name], inputs, config)
        assert loss == pytest.approx(-2 * 0.562335, abs=1e-5), name
        assert gradient.logits[0] < 0 < gradient.logits[1], name


@pytest.mark.parametrize(
    ("probability", "advantage", "surrogate", "moves"),
    [
        # π_b(a) = 0.4, ε = 0.5: ratios are kept to [0.5, 1.5].
        (0.4, 1.0, 1.0, True),  # ρ = 1
        (0.8, 1.0, 1.5, False),  # ρ = 2, good: no more credit beyond 1.5
        (0.8, -1.0, -2.0, True),  # ρ = 2, bad: still pushed down, unclipped
        (0.1, 1.0, 0.25, True),  # ρ = 1/4, good: still pulled up
        (0.1, -1.0, -0.5, False),  # ρ = 1/4, bad: already avoided
    ],
)
def test_ppo_by_hand(probability, advantage, surrogate, moves):
    inputs = state(
        categorical(probability, 1 - probability),
        behaviour=categorical(0.4, 0.6),
        advantage=advantage,
    )
    config = replace(EXACT, ppo_clip=0.5)
    loss, gradient = loss_and_gradient(policy_updates.ppo, inputs, config)
    assert loss == pytest.approx(-surrogate, abs=1e-5)
    assert (np.abs(gradient.logits).max() > 0.01) == moves


def test_ppo_matches_rlax():
    logits, behaviour = jnp.array([0.3, -0.4, 1.1]), categorical(0.2, 0.6, 0.2)
    for action, advantage in ((0, 0.8), (1, -0.5), (2, 1.3), (2, -1.3)):
        inputs = state(Categorical(logits), behaviour=behaviour, action=action, advantage=advantage)
        got = loss_and_gradient(policy_updates.ppo, inputs, replace(EXACT, ppo_clip=0.3))

        def oracle(x, action=action, advantage=advantage):
            log_prob = distrax.Categorical(x).log_prob(action)
            ratio = jnp.exp(log_prob - behaviour.log_prob(action))
            return rlax.clipped_surrogate_pg_loss(ratio[None], jnp.array([advantage]), 0.3)

        expected = jax.value_and_grad(oracle)(logits)
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
        np.testing.assert_allclose(got[1].logits, expected[1], rtol=1e-5, atol=1e-6)


def test_mcts_distils_visit_counts():
    # Visits (30, 20, 0) of 50: KL((0.6, 0.4, 0), uniform) = 0.6 ln 1.8 + 0.4 ln 1.2 = 0.425601.
    visits = Categorical.masked(jnp.log(jnp.array([30.0, 20.0, 1.0])), jnp.array([1, 1, 0], bool))
    search = PolicyTarget(jnp.arange(3), visits.probs(), visits.log_probs())
    inputs = state(categorical(1 / 3, 1 / 3, 1 / 3), search=search)
    loss, gradient = loss_and_gradient(policy_updates.mcts, inputs, EXACT)
    assert loss == pytest.approx(0.425601, abs=1e-5)
    np.testing.assert_allclose(gradient.logits, [1 / 3 - 0.6, 1 / 3 - 0.4, 1 / 3], atol=1e-5)


def test_mcts_without_a_search_says_so():
    with pytest.raises(ValueError, match="inputs.search"):
        policy_updates.mcts(state(categorical(0.5, 0.5)), EXACT)


# --- every update against NumPy, exact and sampled ----------------------------------------------


def reference(name, config, logits, prior, behaviour, action, advantage, q, actions, eta, visits):
    """Loss and gradient in the logits of one update, from the printed formulas, in float64."""
    eye, pi, p, b = np.eye(len(logits)), softmax(logits), softmax(prior), softmax(behaviour)
    ratio = pi[action] / b[action]
    score = eye[action] - pi  # ∇ log π(a)

    def gradient_term():
        rho = min(1.0, ratio)
        if not config.beta_loo:
            return -rho * advantage * np.log(pi[action]), -rho * advantage * score
        loss = -rho * (advantage - q[action]) * np.log(pi[action])
        slope = -rho * (advantage - q[action]) * score
        if config.kl_samples is None:
            return loss - pi @ q, slope - pi * (q - pi @ q)
        for a in actions:
            weight = pi[a] / p[a] / len(actions)
            loss, slope = loss - weight * q[a], slope - weight * q[a] * (eye[a] - pi)
        return loss, slope

    def distil(gains):
        if config.kl_samples is None:
            t = p * np.exp(gains) / np.sum(p * np.exp(gains))
            return np.sum(t * np.log(t / pi)), pi - t
        loss, slope, count = 0.0, np.zeros(len(logits)), len(actions)
        for i, a in enumerate(actions):
            others = sum(np.exp(gains[actions[k]]) for k in range(count) if k != i)
            z = config.z_init + others
            if config.sampled_normaliser == "candidates":
                z = others + np.exp(gains[a])
            factor = np.exp(gains[a]) / (z / count)
            loss += factor / count * (np.log(p[a] * factor) - np.log(pi[a]))
            slope -= factor / count * (eye[a] - pi)
        return loss, slope

    entropy = -np.sum(pi * np.log(pi))
    bonus = -config.entropy_weight * entropy, config.entropy_weight * pi * (np.log(pi) + entropy)
    cmpo_gains = np.clip(config.advantage_scale * q, -config.clip_threshold, config.clip_threshold)
    if name == "mcts":
        return np.sum(visits * np.log(visits / pi)), pi - visits
    if name == "mpo":
        return distil(q / eta)
    if name in ("cmpo", "muesli"):
        terms = [tuple(config.cmpo_weight * x for x in distil(cmpo_gains))]
        terms += [gradient_term(), bonus] if name == "muesli" else []
    elif name == "pg":
        terms = [gradient_term(), bonus]
    elif name == "ppo":
        limit = np.clip(ratio, 1 - config.ppo_clip, 1 + config.ppo_clip)
        moves = ratio * advantage <= limit * advantage
        surrogate = -min(ratio * advantage, limit * advantage), -ratio * advantage * score * moves
        terms = [surrogate, bonus]
    elif name == "trpo_penalty":
        w = config.trpo_weight
        if config.kl_samples is None:
            penalty = w * np.sum(b * np.log(b / pi)), w * (pi - b)
        else:
            penalty = w * np.log(b[action] / pi[action]), -w * score
        terms = [gradient_term(), bonus, penalty]
    else:
        assert name == "direct_mpo"
        w = config.direct_mpo_weight
        if config.kl_samples is None:
            kl = np.sum(pi * np.log(pi / p))
            penalty = w * kl, w * pi * (np.log(pi / p) - kl)
        else:
            loss, slope = 0.0, np.zeros(len(logits))
            for a in actions:
                r = pi[a] / p[a]
                loss += (r * np.log(r) - r + 1) / len(actions)
                slope += r * np.log(r) * (eye[a] - pi) / len(actions)
            penalty = w * loss, w * slope
        terms = [gradient_term(), penalty]
    return sum(t[0] for t in terms), sum(t[1] for t in terms)


SETTINGS = {
    "exact": UpdateConfig(kl_samples=None),
    "sampled": UpdateConfig(kl_samples=6, z_init=1.5),
    "sampled without beta_loo": UpdateConfig(kl_samples=6, beta_loo=False),
    "weights that sum to 1": UpdateConfig(kl_samples=6, sampled_normaliser="candidates"),
}


def config_for(name, setting):
    """A configuration in which every weight the update reads is visible in its loss."""
    return replace(
        SETTINGS[setting],
        name=name,
        entropy_weight=0.3,
        trpo_weight=0.7,
        ppo_clip=0.4,
        direct_mpo_weight=0.6,
        cmpo_weight=1.3,
        clip_threshold=0.9,
        advantage_scale=1.2,
    )


def all_losses(names, setting, inputs):
    """The losses of many updates on one state, stacked: one compilation serves them all."""
    return jnp.stack([UPDATES[n](inputs, config_for(n, setting)).loss for n in names])


@cache
def compiled(setting):
    """Losses [8] and gradients [8, A] of all updates."""

    def run(logits, prior, behaviour, action, advantage, q, actions, eta, visits):
        inputs = state(
            Categorical(logits),
            prior=Categorical(prior),
            behaviour=Categorical(behaviour),
            action=action,
            advantage=advantage,
            q_advantages=q,
            actions=None if setting == "exact" else actions,
            temperature=eta,
            search=PolicyTarget(
                jnp.arange(NUM_ACTIONS), visits, jnp.maximum(jnp.log(visits), LOG_ZERO)
            ),
        )
        losses = all_losses(UPDATES, setting, inputs)
        return losses, losses

    run_with_gradient = jax.jacrev(run, has_aux=True)
    return jax.jit(lambda *values: run_with_gradient(*values)[::-1])


def random_values(rng):
    logits, prior, behaviour, q = rng.normal(size=(4, NUM_ACTIONS)).astype(np.float32)
    return (
        logits,
        prior,
        behaviour,
        rng.integers(NUM_ACTIONS),
        np.float32(rng.normal()),
        q,
        rng.integers(0, NUM_ACTIONS, 6),
        np.float32(rng.uniform(0.5, 2.0)),
        rng.dirichlet(np.ones(NUM_ACTIONS) * 2).astype(np.float32),
    )


@pytest.mark.parametrize("setting", SETTINGS)
@few_examples
@given(seed=SEEDS)
def test_every_update_matches_the_printed_formulas(setting, seed):
    values = random_values(np.random.default_rng(seed))
    losses, gradients = compiled(setting)(*values)
    for i, name in enumerate(UPDATES):
        loss, gradient = reference(name, config_for(name, setting), *values)
        np.testing.assert_allclose(losses[i], loss, rtol=1e-4, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(gradients[i], gradient, rtol=1e-4, atol=1e-5, err_msg=name)


def test_the_oracle_setting_reads_the_exact_normaliser():
    # π_prior = (1/2, 1/2), exp(clipped gains) = (2, 1/2): z = 5/4. One sample, action 0: the
    # gradient is −2/(5/4)·(onehot − π) = −1.6·(½, −½); leave-one-out would give −2·(½, −½).
    inputs = state(
        categorical(0.5, 0.5),
        q_advantages=jnp.log(jnp.array([2.0, 0.5])),
        actions=[0],
        oracle=True,
    )
    config = UpdateConfig(kl_samples=1, sampled_normaliser="oracle")
    _, gradient = loss_and_gradient(policy_updates.cmpo, inputs, config)
    np.testing.assert_allclose(gradient.logits, [-0.8, 0.8], rtol=1e-5)
    _, gradient = loss_and_gradient(policy_updates.cmpo, inputs, UpdateConfig(kl_samples=1))
    np.testing.assert_allclose(gradient.logits, [-1.0, 1.0], rtol=1e-5)
    with pytest.raises(ValueError, match=r"oracle needs inputs\.oracle"):
        policy_updates.cmpo(inputs._replace(oracle=None), config)


# --- which updates train the model's policy, and with what --------------------------------------


def test_only_indirect_updates_have_a_target_for_the_policy_model():
    search = PolicyTarget(jnp.arange(2), jnp.array([0.5, 0.5]), jnp.log(jnp.array([0.5, 0.5])))
    inputs = state(categorical(0.4, 0.6), q_advantages=[0.5, -0.5], search=search)
    with_target = {name for name in UPDATES if UPDATES[name](inputs, EXACT).target is not None}
    assert with_target == {"muesli", "cmpo", "mpo", "mcts"}


def test_the_target_handed_on_is_the_one_distilled():
    inputs = state(
        categorical(0.4, 0.6),
        prior=categorical(0.7, 0.3),
        q_advantages=[0.5, -0.5],
        temperature=0.3,
    )
    for name in ("cmpo", "mpo"):
        out = UPDATES[name](inputs, EXACT)
        np.testing.assert_allclose(distillation(inputs.policy, out.target), out.loss, rtol=1e-5)


# --- masks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["exact", "sampled"])
def test_an_illegal_action_changes_nothing(setting):
    # The printed formulas for three legal actions, against four of which the third is masked
    # everywhere and has a wild q̂.
    legal = np.array([True, True, False, True])
    logits, prior, behaviour, action, advantage, q, _, eta, visits = random_values(
        np.random.default_rng(3)
    )
    mask = lambda x: np.asarray(Categorical.masked(jnp.asarray(x), jnp.asarray(legal)).logits)
    visits = np.where(legal, visits, 0.0) / visits[legal].sum()
    actions, action, wild = np.array([0, 3, 3, 1, 0, 0]), 3, np.where(legal, q, 300.0)
    losses, gradients = compiled(setting)(
        *map(mask, (logits, prior, behaviour)),
        *(action, advantage, wild, actions, eta),
        visits.astype(np.float32),
    )
    renumber = np.cumsum(legal) - 1
    for i, name in enumerate(UPDATES):
        loss, gradient = reference(
            name,
            config_for(name, setting),
            *(x[legal] for x in (logits, prior, behaviour)),
            *(renumber[action], advantage, q[legal], renumber[actions], eta, visits[legal]),
        )
        np.testing.assert_allclose(losses[i], loss, rtol=1e-4, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(
            gradients[i][legal], gradient, rtol=1e-4, atol=1e-5, err_msg=name
        )
        np.testing.assert_array_equal(gradients[i][~legal], 0.0, err_msg=name)


# --- continuous actions -------------------------------------------------------------------------


def normal_scores(actions, loc, log_scale):
    """∇ log π in (μ, log s) at each action: (a − μ)/s² and ((a − μ)/s)² − 1, each [N, D]."""
    standard = (np.asarray(actions) - loc) / np.exp(log_scale)
    return standard / np.exp(log_scale), standard**2 - 1


CONTINUOUS_UPDATES = ("muesli", "cmpo", "mpo", "direct_mpo", "pg", "trpo_penalty", "ppo")


@jax.jit
def continuous_losses_and_gradients(policy, prior, behaviour, action, advantage, q, actions, eta):
    def run(policy):
        inputs = state(
            policy,
            prior=prior,
            behaviour=behaviour,
            action=action,
            advantage=advantage,
            q_advantages=q,
            actions=actions,
            temperature=eta,
        )._replace(q_advantage=jnp.asarray(0.2))
        losses = all_losses(CONTINUOUS_UPDATES, "sampled", inputs)
        return losses, losses

    return jax.jacrev(run, has_aux=True)(policy)[::-1]


@pytest.mark.parametrize("name", CONTINUOUS_UPDATES)
def test_update_of_a_normal_policy_matches_the_printed_formulas(name):
    rng = np.random.default_rng(5)
    loc, log_scale, prior_loc, prior_log_scale = (rng.normal(size=(4, 2)) * 0.4).astype(np.float32)
    actions, q = rng.normal(size=(6, 2)).astype(np.float32), rng.normal(size=6).astype(np.float32)
    action, advantage, eta = np.array([0.3, -0.6], np.float32), 0.9, 0.7
    policy, prior = DiagonalNormal(loc, log_scale), DiagonalNormal(prior_loc, prior_log_scale)
    behaviour = DiagonalNormal(np.array([0.2, -0.1], np.float32), np.array([-0.3, 0.1], np.float32))
    losses, gradients = continuous_losses_and_gradients(
        policy, prior, behaviour, action, advantage, q, actions, eta
    )
    loss, gradient = jax.tree.map(lambda x: x[CONTINUOUS_UPDATES.index(name)], (losses, gradients))

    # Everything below is NumPy and distrax. Each term's gradient is Σ coefficient·∇log π(action),
    # but for the entropy, whose gradient is (0, 1) in (μ, log s).
    oracle = lambda d: distrax.MultivariateNormalDiag(d.loc, jnp.exp(d.log_scale))
    log_pi, log_prior = (np.asarray(oracle(d).log_prob(actions)) for d in (policy, prior))
    log_pi_a, log_b_a = (float(oracle(d).log_prob(action)) for d in (policy, behaviour))
    entropy = float(oracle(policy).entropy())
    at_candidates, at_action, bonus, expected = np.zeros(6), 0.0, 0.0, 0.0
    if name in ("muesli", "direct_mpo", "pg", "trpo_penalty"):
        rho, ratio = min(1.0, np.exp(log_pi_a - log_b_a)), np.exp(log_pi - log_prior)
        at_action -= rho * (advantage - 0.2)
        at_candidates -= ratio * q / 6
        expected += -rho * (advantage - 0.2) * log_pi_a - np.mean(ratio * q)
    if name in ("muesli", "cmpo", "mpo"):
        gains = q / eta if name == "mpo" else np.clip(1.2 * q, -0.9, 0.9)
        weight = 1.0 if name == "mpo" else 1.3
        exps = np.exp(gains)
        factors = exps / ((1.5 + exps.sum() - exps) / 6)
        at_candidates -= weight * factors / 6
        expected += weight * np.mean(factors * (log_prior + np.log(factors) - log_pi))
    if name == "direct_mpo":
        ratio = np.exp(log_pi - log_prior)
        at_candidates += 0.6 * ratio * np.log(ratio) / 6
        expected += 0.6 * np.mean(ratio * np.log(ratio) - ratio + 1)
    if name == "trpo_penalty":
        at_action -= 0.7
        expected += 0.7 * (log_b_a - log_pi_a)
    if name == "ppo":
        ratio = np.exp(log_pi_a - log_b_a)
        limit = np.clip(ratio, 0.6, 1.4)
        at_action -= ratio * advantage * (ratio <= limit)
        expected -= min(ratio, limit) * advantage
    if name in ("muesli", "pg", "trpo_penalty", "ppo"):
        bonus = 0.3
        expected -= 0.3 * entropy
    loc_scores, scale_scores = normal_scores(actions, loc, log_scale)
    loc_score, scale_score = normal_scores(action, loc, log_scale)
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        gradient.loc, at_candidates @ loc_scores + at_action * loc_score, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        gradient.log_scale,
        at_candidates @ scale_scores + at_action * scale_score - bonus,
        rtol=1e-4,
        atol=1e-5,
    )


def test_penalties_between_normal_policies_in_closed_form():
    # KL(N(0, 1), N(1, 2²)) = ln 2 + (1 + 1)/8 − ½ = 0.443147
    # KL(N(1, 2²), N(0, 1)) = −ln 2 + (4 + 1)/2 − ½ = 1.306853
    unit = DiagonalNormal(jnp.zeros(1), jnp.zeros(1))
    wide = DiagonalNormal(jnp.ones(1), jnp.log(2.0) * jnp.ones(1))
    inputs = state(
        unit, prior=wide, behaviour=wide, action=jnp.zeros(1), q_advantages=[0.0], actions=[[0.0]]
    )
    assert policy_updates.prior_penalty(inputs, EXACT) == pytest.approx(0.443147, abs=1e-5)
    assert policy_updates.behaviour_penalty(inputs, EXACT) == pytest.approx(1.306853, abs=1e-5)


def test_a_sampled_penalty_towards_all_actions_is_the_closed_form():
    # E_{π_prior}(ρ ln ρ − ρ + 1) over every action is KL(π, π_prior), since E ρ = 1.
    inputs = state(categorical(0.2, 0.3, 0.5), prior=categorical(0.6, 0.3, 0.1))
    exact = policy_updates.prior_penalty(inputs, EXACT)
    listed = policy_updates.prior_penalty(inputs, UpdateConfig(kl_samples=3))
    np.testing.assert_allclose(listed, exact, rtol=1e-5)


def test_a_sampled_prior_penalty_is_never_negative():
    inputs = state(categorical(0.2, 0.8), prior=categorical(0.6, 0.4), actions=[0, 0])
    # ρ = 1/3 at both samples: ⅓ ln ⅓ − ⅓ + 1 = 0.300463, where ρ ln ρ alone would be negative.
    penalty = policy_updates.prior_penalty(inputs, UpdateConfig(kl_samples=2))
    assert penalty == pytest.approx(0.300463, abs=1e-5)


# --- MPO's temperature --------------------------------------------------------------------------


def test_dual_gradient_by_hand():
    # ε = 0.01 and E KL = 0.03: (0.01 − 0.03)/0.01 = −2, so descent raises log η.
    config = UpdateConfig(mpo_kl_limit=0.01)
    assert policy_updates.mpo_dual_gradient(jnp.asarray(0.03), config) == pytest.approx(-2.0)
    assert policy_updates.mpo_dual_gradient(jnp.asarray(0.0), config) == pytest.approx(1.0)


@pytest.mark.parametrize("initial", [0.05, 50.0])
def test_descending_the_dual_gradient_brings_the_divergence_to_its_limit(initial):
    config = replace(EXACT, mpo_kl_limit=0.01)
    inputs = state(categorical(0.4, 0.35, 0.25), q_advantages=[1.2, -0.3, 0.4])

    @jax.jit
    def descend(log_eta):
        def step(_, log_eta):
            divergence = policy_updates.mpo(
                inputs._replace(temperature=jnp.exp(log_eta)), config
            ).loss
            return log_eta - 0.02 * policy_updates.mpo_dual_gradient(divergence, config)

        log_eta = jax.lax.fori_loop(0, 1500, step, log_eta)
        return policy_updates.mpo(inputs._replace(temperature=jnp.exp(log_eta)), config).loss

    assert descend(jnp.log(initial)) == pytest.approx(0.01, rel=1e-3)


def test_dual_gradient_agrees_with_the_dual_of_rlax():
    # rlax minimises η ε + η log E exp(q/η), whose slope in η is ε − KL(π_MPO, π_prior).
    values, eta, epsilon = jnp.array([1.2, -0.3, 0.4, 0.0]), 0.8, 0.05
    slope = jax.grad(
        lambda x: rlax.mpo_compute_weights_and_temperature_loss(
            values, rlax.LagrangePenalty(alpha=x, epsilon=jnp.asarray(epsilon)), lambda y: y
        )[0]
    )(jnp.asarray(eta))
    uniform = Categorical(jnp.zeros(4))
    config = replace(EXACT, mpo_kl_limit=epsilon)
    divergence = policy_updates.mpo(
        state(uniform, q_advantages=values, temperature=eta), config
    ).loss
    ours = epsilon * policy_updates.mpo_dual_gradient(divergence, config)
    np.testing.assert_allclose(ours, slope, rtol=1e-4)


def test_mpo_weights_agree_with_rlax():
    values, eta = jnp.array([1.2, -0.3, 0.4, 0.0]), 0.8
    _, weights, _ = rlax.mpo_compute_weights_and_temperature_loss(
        values, rlax.LagrangePenalty(jnp.asarray(eta), jnp.asarray(0.1)), lambda x: x
    )
    inputs = state(Categorical(jnp.zeros(4)), q_advantages=values, temperature=eta)
    np.testing.assert_allclose(policy_updates.mpo_target(inputs, EXACT).weights, weights, rtol=1e-5)


# --- the paper's table of per-loss hyperparameters ----------------------------------------------

# Transcribed from the appendix, column by column; a dash in the table is left out here.
PAPER_TABLE = {
    "pg": {"total_weight": 3.0, "entropy_weight": 0.003, "trpo_weight": 0.0},
    "trpo_penalty": {"total_weight": 3.0, "entropy_weight": 0.0003, "trpo_weight": 0.01},
    "ppo": {
        "total_weight": 3.0,
        "entropy_weight": 0.0003,
        "trpo_weight": 0.0,
        "ppo_clip": 0.5,
    },
    "mpo": {
        "total_weight": 3.0,
        "entropy_weight": 0.0,
        "trpo_weight": 0.0,
        "mpo_kl_limit": 0.01,
    },
    "muesli": {
        "total_weight": 3.0,
        "entropy_weight": 0.0,
        "trpo_weight": 0.0,
        "cmpo_weight": 1.0,
        "clip_threshold": 1.0,
    },
}


@pytest.mark.parametrize("name", PAPER_TABLE)
def test_defaults_are_the_papers_table(name):
    for field, value in PAPER_TABLE[name].items():
        assert getattr(UPDATE_DEFAULTS[name], field) == value, field


def test_every_update_has_defaults_under_its_own_name():
    assert set(UPDATE_DEFAULTS) == set(UPDATES)
    assert all(config.name == name for name, config in UPDATE_DEFAULTS.items())
    for config in UPDATE_DEFAULTS.values():  # shared by all experiments of the paper
        assert config.kl_samples == 16
        assert config.z_init == 1.0
        assert config.uniform_prior_weight == 0.003
        assert config.behaviour_prior_weight == 0.03


# What each update reads of the fields that differ between losses: the zeros of the table that are
# zeros because the term is not there.
READS = {
    "muesli": {"cmpo_weight", "clip_threshold", "entropy_weight"},
    "cmpo": {"cmpo_weight", "clip_threshold"},
    "mpo": set(),
    "direct_mpo": {"direct_mpo_weight"},
    "pg": {"entropy_weight"},
    "trpo_penalty": {"entropy_weight", "trpo_weight"},
    "ppo": {"entropy_weight", "ppo_clip"},
    "mcts": set(),
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_reads_exactly_its_own_hyperparameters(name):
    target = PolicyTarget(jnp.arange(2), jnp.array([0.5, 0.5]), jnp.log(jnp.array([0.5, 0.5])))
    inputs = state(
        categorical(0.9, 0.1),
        prior=categorical(0.5, 0.5),
        behaviour=categorical(0.4, 0.6),
        advantage=1.0,
        q_advantages=[1.5, -0.7],
        search=target,
    )
    base = UPDATES[name](inputs, EXACT).loss
    changes = {
        "entropy_weight": 0.5,
        "trpo_weight": 0.5,
        "ppo_clip": 0.1,
        "direct_mpo_weight": 0.5,
        "cmpo_weight": 0.5,
        "clip_threshold": 0.5,
    }
    read = {
        field
        for field, value in changes.items()
        if abs(UPDATES[name](inputs, replace(EXACT, **{field: value})).loss - base) > 1e-4
    }
    assert read == READS[name]


# --- the contract -------------------------------------------------------------------------------


def test_a_users_own_update_plugs_in(monkeypatch):
    def reverse_kl(inputs, config):
        loss = inputs.policy.kl(inputs.prior) * config.cmpo_weight
        return policy_updates.PolicyOutput(loss, None, {"loss_mine": loss})

    monkeypatch.setitem(UPDATES, "mine", reverse_kl)
    config = replace(EXACT, name="mine", cmpo_weight=2.0)
    inputs = state(categorical(0.5, 0.5), prior=categorical(0.25, 0.75))
    out = jax.jit(lambda x: UPDATES[config.name](x, config))(inputs)
    assert out.loss == pytest.approx(2 * 0.143841, abs=1e-5)
    assert out.metrics["loss_mine"] == out.loss


def test_updates_of_many_states_under_vmap_match_one_at_a_time():
    rng = np.random.default_rng(1)
    values = [random_values(rng) for _ in range(5)]
    run = compiled("sampled")
    losses, gradients = jax.jit(jax.vmap(run))(*jax.tree.map(lambda *x: np.stack(x), *values))
    for i, one in enumerate(values):
        loss, gradient = run(*one)
        np.testing.assert_allclose(losses[i], loss, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(gradients[i], gradient, rtol=1e-4, atol=1e-6)


def test_a_bfloat16_policy_gives_nearly_the_same_muesli_loss():
    logits = jnp.array([0.3, -0.4, 1.1])
    make = lambda x: state(
        Categorical(x), prior=categorical(0.6, 0.3, 0.1), advantage=0.5, q_advantages=[0.2, -0.5, 2]
    )
    exact, _ = loss_and_gradient(policy_updates.muesli, make(logits), EXACT)
    short, _ = loss_and_gradient(policy_updates.muesli, make(logits.astype(jnp.bfloat16)), EXACT)
    np.testing.assert_allclose(short, exact, atol=0.02)


@pytest.mark.parametrize("name", ["muesli", "cmpo", "mpo", "direct_mpo", "pg", "trpo_penalty"])
def test_a_nan_action_value_shows_in_the_loss(name):
    inputs = state(categorical(0.2, 0.3, 0.5), q_advantages=[0.1, jnp.nan, 0.2])
    assert jnp.isnan(UPDATES[name](inputs, EXACT).loss)


@pytest.mark.parametrize("name", ["muesli", "direct_mpo", "pg", "trpo_penalty", "ppo"])
def test_a_nan_return_shows_in_the_loss(name):
    inputs = state(categorical(0.2, 0.3, 0.5), advantage=jnp.nan)
    assert jnp.isnan(UPDATES[name](inputs, EXACT).loss)


def test_wrong_shapes_are_named_at_trace_time():
    inputs = state(categorical(0.2, 0.3, 0.5))
    candidates = inputs.candidates
    cases = {
        "advantage": inputs._replace(advantage=jnp.zeros(3)),
        "q_advantage": inputs._replace(q_advantage=jnp.zeros((1,))),
        "rho": inputs._replace(rho=jnp.ones(2)),
        "weights": inputs._replace(candidates=candidates._replace(weights=jnp.ones((3, 1)))),
        "advantages": inputs._replace(candidates=candidates._replace(advantages=jnp.zeros(1))),
    }
    for argument, bad in cases.items():
        with pytest.raises(ValueError, match=argument):
            jax.eval_shape(lambda x: policy_updates.pg(x, EXACT), bad)


def _mixed_state(weights, actions, log_mixed, advantages):
    """One state whose candidates come from another prior than the target network's own."""
    policy = Categorical(jnp.log(jnp.array([0.5, 0.3, 0.2])))
    prior = Categorical(jnp.log(jnp.array([0.6, 0.3, 0.1])))
    zero = jnp.zeros(())
    return PolicyInputs(
        policy, prior, prior, jnp.asarray(0), zero, zero, zero,
        Candidates(actions, weights, log_mixed, advantages), jnp.asarray(0.5),
    )  # fmt: skip


def test_the_sampled_prior_penalty_estimates_the_divergence_from_the_unmixed_prior() -> None:
    # Listing every action with its probability under the mixed prior is the estimate's expectation.
    mixed = jnp.array([0.4, 0.35, 0.25])
    inputs = _mixed_state(mixed, jnp.arange(3), jnp.log(mixed), jnp.zeros(3))
    exact = float(inputs.policy.kl(inputs.prior))
    estimate = float(prior_penalty(inputs, UpdateConfig(name="direct_mpo", kl_samples=3)))
    np.testing.assert_allclose(estimate, exact, rtol=1e-5)


def test_the_divergence_mpo_reports_normalises_the_target_over_its_own_samples() -> None:
    # Two samples with gains 0.2/0.5 and -0.1/0.5: weights e^0.4 and e^-0.2 over their sum.
    mixed = jnp.array([0.4, 0.25])
    inputs = _mixed_state(
        jnp.full(2, 0.5), jnp.array([0, 2]), jnp.log(mixed), jnp.array([0.2, -0.1])
    )
    gains = np.array([0.4, -0.2])
    weights = np.exp(gains) / np.exp(gains).sum()
    log_target = np.log([0.4, 0.25]) + gains - np.log(np.exp(gains).mean())
    expected = np.sum(weights * (log_target - np.log([0.5, 0.2])))
    output = mpo(inputs, UpdateConfig(name="mpo", kl_samples=2))
    np.testing.assert_allclose(output.metrics["loss_mpo"], expected, rtol=1e-5)
    assert abs(float(output.loss) - expected) > 1e-3
