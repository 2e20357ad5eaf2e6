"""The suites as data, and every ablation switch on a fixed batch: what moves and what stays."""

import dataclasses

import jax
import numpy as np
import pytest

from muesli import presets, statistics
from muesli import replay as ring
from muesli.config import UPDATE_DEFAULTS, Config, ConfigError
from muesli.envs import ENVS
from muesli.envs.atari import GAMES
from muesli.executors.jobs import probe
from muesli.fields import differences, get_field, set_field
from muesli.runners.anakin import make_anakin
from muesli.runners.parts import build
from muesli.suites import (
    SCALES,
    SUITES,
    Claim,
    Row,
    Scale,
    Selection,
    base_config,
    expand,
    set_fields,
)
from muesli.suites.paper import ALL_GAMES, MUJOCO, TUNING_GAMES
from muesli.suites.published import TABLE_3, TABLE_11

replace = dataclasses.replace
EVERY = [(name, scale) for name, suite in SUITES.items() for scale in suite.scales]


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_a_suite_expands(name, scale):
    suite = SUITES[name]
    assert tuple(suite.scales) == SCALES
    runs = expand(suite, Selection(scale, seeds=2))
    assert len({run.path for run in runs}) == len(runs)
    for run in runs:
        assert run.config.seed == run.seed and run.config.env.name == run.env
        if ":" in run.env:  # outside JAX, each group of actors fills a batch's fresh sequences
            share = run.config.actors.groups * run.config.batch.online_sequences
            assert run.config.env.num_envs % share == 0, run.path
    names = {row.name for row in suite.rows}
    assert len(names) == len(suite.rows)
    for claim in suite.claims:
        assert {claim.first, claim.second} <= names and claim.first != claim.second


@pytest.mark.slow
def test_every_row_can_be_built():
    """At every scale, on one environment; only what is not installed may be lacking."""
    every = []
    for name, scale in EVERY:
        envs = SUITES[name].scales[scale].envs[:1]
        if envs[0] in MUJOCO:  # which not everyone has: as continuous, and there with the extra
            envs = ("gym:Pendulum-v1",)
        every += expand(SUITES[name], Selection(scale, seeds=1, envs=envs))
    checked, _ = probe(every)
    lacking = {run.missing for run in checked if run.missing}
    assert all("pip install" in text for text in lacking), lacking
    if lacking:
        pytest.skip(f"NOT ALL ROWS BUILT: {'; '.join(sorted(lacking))}")


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_an_entropy_bonus_is_the_updates_in_all_rows_or_the_presets_in_all(name, scale):
    """Else rows would differ in it beside their updates."""
    suite = SUITES[name]
    preset = base_config(suite.scales[scale]).update
    its_own = preset.entropy_weight != UPDATE_DEFAULTS[preset.name].entropy_weight
    assert its_own == (name == "mujoco")
    for run in expand(suite, Selection(scale, seeds=1)):
        (row,) = (row for row in suite.rows if row.name == run.row)
        update, usual = run.config.update, UPDATE_DEFAULTS[run.config.update.name]
        if "update.entropy_weight" not in row.fields:
            wanted = preset if its_own else usual
            assert update.entropy_weight == wanted.entropy_weight, run.path


def test_the_games_are_the_papers():
    assert set(ALL_GAMES) == set(GAMES) and len(ALL_GAMES) == 57
    assert len(TUNING_GAMES) == 10 and set(TUNING_GAMES) < set(ALL_GAMES)
    assert set(TABLE_11) == {f"atari:{game}" for game in ALL_GAMES}
    assert set(TABLE_3) == set(SUITES["atari_40m"].scales["paper"].envs)
    # Three of them, read from the page a second time.
    assert TABLE_11["atari:alien"] == "139,409 ± 12,178" and TABLE_3["atari:qbert"] == "30,937"
    assert TABLE_11["atari:zaxxon"] == "65,325 ± 395"


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_a_scale_has_runs_enough_for_its_claims(name, scale):
    suite = SUITES[name]
    if not suite.claims or (name, scale) == ("go", "paper"):  # three seeds, as were printed
        return
    runs = np.arange(suite.scales[scale].seeds * len(suite.scales[scale].envs), dtype=float)
    runs = runs.reshape(suite.scales[scale].seeds, -1)
    assert statistics.welch(runs, runs + 0.5).low is not None


def test_a_claim_is_tested_as_it_is_worded():
    for suite in SUITES.values():
        for claim in suite.claims:
            assert (claim.kind == "no_worse") == ("at least as well" in claim.text), claim.text


def test_a_row_changes_its_fields_and_nothing_else():
    for name in ("returns", "kl_samples", "model", "q_model", "acting", "beta_loo", "prior"):
        suite = SUITES[name]
        base = expand(suite, Selection("gpu", seeds=1, envs=("minatar_breakout",)))[0].config
        assert base is not None
        for row in suite.rows:
            config = set_fields(base, row.fields)
            assert set(differences(config, base)) <= set(row.fields)


def test_an_update_brings_its_own_hyperparameters():
    runs = expand(SUITES["baselines"], Selection("paper", seeds=1, envs=("atari:alien",)))
    configs = {run.row: run.config for run in runs}
    assert configs["pg"].update.entropy_weight == 0.003
    assert configs["ppo"].update.ppo_clip == 0.5
    tuned = expand(SUITES["tuning"], Selection("paper", rows=("mpo_0.03",), envs=("atari:alien",)))
    assert tuned[0].config.update.name == "mpo" and tuned[0].config.update.mpo_kl_limit == 0.03


def test_fields_for_every_run_come_before_what_rows_compute_and_after_updates():
    fields = {"batch.batch_sequences": 60, "env.num_envs": 60}
    large = expand(SUITES["large"], Selection("laptop", rows=("replay_80",), fields=fields))
    assert large[0].config.batch.online_sequences == 12
    chosen = Selection("laptop", rows=("pg",), fields={"update.entropy_weight": 0.5})
    assert expand(SUITES["baselines"], chosen)[0].config.update.entropy_weight == 0.5


def test_replayed_shares():
    for scale, share in (("laptop", 0.8), ("gpu", 0.8), ("paper", 0.8)):
        run = expand(SUITES["large"], Selection(scale, rows=("replay_80",)))[0]
        batch = run.config.batch
        found = 1 - batch.online_sequences / batch.batch_sequences
        assert found == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize(
    ("selection", "complaint"),
    [
        (Selection("laptop", rows=("zzz",)), "rows: there is no 'zzz'; there are muesli,"),
        (Selection("laptop", rows=("trpo_penal",)), "no 'trpo_penal'; did you mean trpo_penalty"),
        (
            Selection("laptop", fields={"env.num_envs": 3}),
            "row muesli on catch: env.num_envs: must be a multiple",
        ),
        (Selection("cluster"), "scale: this suite has no 'cluster'"),
        (Selection("laptop", seeds=0), "seeds: must be at least 1"),
    ],
)
def test_a_mistake_is_named(selection, complaint):
    with pytest.raises(ConfigError, match=complaint):
        expand(SUITES["baselines"], selection)


def test_a_row_that_contradicts_itself_is_an_error():
    suite = SUITES["baselines"]
    for fields, complaint in (
        ({"update.cmpo_wieght": 1}, "cmpo_wieght: .* no such field; did you mean update.cmpo_weig"),
        ({"update.entropy": 1}, "update.entropy: this version knows no such field; did you mean"),
        ({"env.num_envs": 3}, "row odd on catch: env.num_envs: must be a multiple"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            expand(suite.with_rows(Row("odd", fields)), Selection("laptop", rows=("odd",)))
    # What only its environment can decide is found before anything starts, too.
    for fields, envs, complaint in (
        ({"update.name": "mueslli"}, (), "row odd on catch: update.name: there is no 'mueslli'"),
        ({}, ("cach",), "^envs: this version has no environment 'cach'; did you mean catch"),
        ({}, ("atari:pog",), "^envs: there is no Atari game 'pog'"),
    ):
        runs = expand(suite.with_rows(Row("odd", fields)), Selection(rows=("odd",), envs=envs))
        with pytest.raises(ConfigError, match=complaint):
            probe(runs)
    with pytest.raises(ConfigError, match="agent.nothing: this version knows no such field"):
        get_field(presets.catch(), "agent.nothing")
    assert get_field(set_field(presets.catch(), "env.atari.grey", True), "env.atari.grey") is True


def test_an_extra_that_is_not_installed_is_missing(monkeypatch):
    def robots():
        raise ModuleNotFoundError("No module named 'robots'")

    monkeypatch.setitem(ENVS, "robots", robots)
    chosen = Selection("laptop", seeds=1, rows=("muesli",), envs=("catch", "robots", "catch"))
    runs, _ = probe(expand(SUITES["baselines"], chosen))
    assert [run.env for run in runs] == ["catch", "robots"]
    assert runs[0].missing == "" and "No module named 'robots'" in runs[1].missing


def test_a_suite_refuses_what_it_cannot_mean():
    suite = SUITES["baselines"]
    for attempt, complaint in (
        (lambda: Claim("beter", "muesli", "pg", ""), "no kind 'beter'; did you mean better"),
        (lambda: suite.with_claims(Claim("better", "muesli", "pgg", "")), "no row 'pgg'; did you"),
        (lambda: suite.with_rows(Row("../up")), "cannot name a directory"),
        (lambda: replace(suite, rows=(*suite.rows, Row("pg"))), "'pg' is there twice"),
        (lambda: base_config(Scale("catsh", ("catch",), 1)), "no 'catsh'; did you mean catch"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            attempt()


# --- the switches ---------------------------------------------------------------------------


def small() -> Config:
    base = presets.catch()
    return replace(
        base,
        env=replace(base.env, num_envs=8),
        network=replace(
            base.network, torso_units=8, model_units=8, core_units=8,
            value_bins=11, value_max=10.0, reward_bins=11, reward_max=10.0,
            value_head_prior_rate=0.0,  # told that all is 0, stirred heads would still say so
        ),
        batch=replace(base.batch, batch_sequences=16, sequence_length=6),
        model=replace(base.model, unroll_steps=2),
        agent=replace(base.agent, retrace_samples=None),
    )  # fmt: skip


@pytest.fixture(scope="module")
def batch():
    """Real experience, and an agent whose networks are no longer fresh nor alike."""
    anakin = make_anakin(build(small()))
    state, warm_up = jax.jit(anakin.init)(jax.random.key(0)), jax.jit(anakin.warm_up)
    for _ in range(3):
        state, _ = warm_up(state)
    generator = np.random.default_rng(0)
    stir = lambda tree: jax.tree.map(
        lambda x: x + np.float32(0.3) * generator.standard_normal(x.shape, np.float32), tree
    )
    agent = state.agent._replace(online=stir(state.agent.online), prior=stir(state.agent.prior))
    return agent, ring.sample(state.replay, jax.random.key(1), 16).batch


@pytest.fixture(scope="module")
def losses(batch):
    state, sequences = batch
    known = {}

    def of(fields):
        key = repr(sorted(fields.items()))
        if key not in known:
            agent = build(set_fields(small(), fields)).agent

            def only_losses(*inputs):  # without gradients, it compiles in half the time
                metrics = agent.update(*inputs)[1]
                return {name: x for name, x in metrics.items() if name.startswith("loss_")}

            found = jax.jit(only_losses)(state, sequences, jax.random.key(2))
            known[key] = {name: float(value) for name, value in found.items()}
        return known[key]

    return of


MODEL = {"loss_reward", "loss_value", "loss_policy_model"}
POLICY = {"loss_pg", "loss_cmpo"}


@pytest.mark.parametrize(
    ("fields", "against", "moves", "stays"),
    [
        # A one-step model: the policy's own losses and the first step of each prediction stay.
        (
            {"model.unroll_steps": 1}, {}, MODEL,
            POLICY | {"loss_reward_step_1", "loss_value_step_1", "loss_policy_step_1"},
        ),
        ({"model.policy_model": False}, {}, {"loss_policy_model"},
         POLICY | {"loss_value", "loss_reward"}),
        ({"model.q_model": "direct"}, {}, {"loss_reward", "loss_pg", "loss_cmpo"}, set()),
        ({"agent.return_estimator": "q"}, {}, {"loss_pg"}, {"loss_reward", "loss_value"}),
        (
            {"agent.return_estimator": "vtrace", "update.beta_loo": False}, {},
            {"loss_pg", "loss_value"}, {"loss_reward"},
        ),
        ({"update.beta_loo": False}, {}, {"loss_pg"}, MODEL | {"loss_cmpo"}),
        ({"update.kl_samples": 1}, {}, {"loss_cmpo"}, {"loss_reward", "loss_value"}),
        (
            {"update.kl_samples": 1, "update.sampled_normaliser": "oracle"},
            {"update.kl_samples": 1}, {"loss_cmpo"}, {"loss_pg", "loss_reward", "loss_value"},
        ),
        ({"update.clip_threshold": None}, {}, {"loss_cmpo", "loss_policy_model"},
         {"loss_pg", "loss_reward", "loss_value"}),
        ({"update.advantage_scale": 100.0}, {}, {"loss_cmpo", "loss_policy_model"},
         {"loss_pg", "loss_reward", "loss_value"}),
        ({"update.cmpo_weight": 3.0}, {}, {"loss_policy"}, MODEL | POLICY),
        ({"update.prior_mixing": False}, {}, {"loss_cmpo"},
         {"loss_pg", "loss_reward", "loss_value"}),
        (
            {"update.prior_mixing": False},
            {"update.uniform_prior_weight": 0.0, "update.behaviour_prior_weight": 0.0},
            set(), MODEL | POLICY,
        ),
    ],
    ids=lambda x: "-".join(f"{k}={v}" for k, v in x.items()) if isinstance(x, dict) and x else "",
)  # fmt: skip
def test_a_switch_changes_what_it_says(losses, fields, against, moves, stays):
    base, found = losses(against), losses(fields)
    for name in moves:
        assert abs(found[name] - base[name]) > 1e-4, f"{name} did not move"
    for name in stays:
        assert found[name] == pytest.approx(base[name], rel=1e-4, abs=1e-6), f"{name} moved"


def test_what_a_switch_takes_away_is_nought(losses):
    assert losses({"model.policy_model": False})["loss_policy_model"] == 0.0
    assert losses({"model.q_model": "direct"})["loss_reward"] == 0.0
    weighted = losses({"update.cmpo_weight": 3.0})
    total = weighted["loss_pg"] + 3.0 * weighted["loss_cmpo"]
    assert weighted["loss_policy"] == pytest.approx(total, rel=1e-5)
