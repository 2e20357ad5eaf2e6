"""A user's own update and network: what does not fit is told in one line before anything starts."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from muesli import presets
from muesli.agent.contract import is_own
from muesli.cli.main import main
from muesli.config import ConfigError
from muesli.distributions import Categorical
from muesli.networks import NETWORKS, make_network
from muesli.policy_updates import UPDATES, muesli
from muesli.runners.parts import build
from muesli.types import EnvSpec, PolicyOutput

replace = dataclasses.replace


def branching(inputs, config):
    return PolicyOutput(inputs.advantage if inputs.advantage > 0 else 0.0, None, {})


def changed(**changes):
    """Muesli's own output with fields made of it."""

    def update(inputs, config):
        output = muesli(inputs, config)
        return output._replace(**{name: change(output) for name, change in changes.items()})

    return update


UPDATES_TOLD = {
    "a vector": (
        lambda i, c: PolicyOutput(i.candidates.advantages, None, {}),
        "loss must be a floating-point array of shape [], got float32[3]",
    ),
    "a whole number": (changed(loss=lambda o: jnp.int32(1)), "got int32[]"),
    "a bare loss": (lambda i, c: i.advantage, "must be a PolicyOutput, got float32[]"),
    "a tuple": (lambda i, c: (i.advantage, None, {}), "got (float32[], NoneType, dict)"),
    "nothing": (lambda i, c: None, "must be a PolicyOutput, got NoneType"),
    "no metrics": (changed(metrics=lambda o: None), "metrics must be a dict, got NoneType"),
    "a number for a name": (changed(metrics=lambda o: {3: o.loss}), "by strings, got 3"),
    "a metric that is taken": (
        changed(metrics=lambda o: {"loss_total": o.loss}),
        "metrics['loss_total'] is a metric of every run; take another name",
    ),
    "a column that is taken": (changed(metrics=lambda o: {"env_steps": o.loss}), "['env_steps']"),
    "a vector for a metric": (
        changed(metrics=lambda o: {"spread": o.target.weights}),
        "metrics['spread'] must be an array of shape [], got float32[3]",
    ),
    "another target": (
        lambda i, c: PolicyOutput(i.advantage, i.prior, {}),
        "target must be a PolicyTarget, got Categorical",
    ),
    "a misspelt field": (
        lambda i, c: PolicyOutput(i.advantages, None, {}),
        "raised AttributeError: 'PolicyInputs' object has no attribute 'advantages' (test_contract",
    ),
    "a branch": (branching, "cannot be traced by JAX: Attempted boolean conversion"),
    "one argument": (lambda i: i, "takes 1 positional argument but 2 were given"),
    "no function": (5, "'int' object is not callable"),
}


@pytest.mark.parametrize("how", UPDATES_TOLD)
def test_an_update_that_does_not_fit_is_told_in_one_line(how, monkeypatch):
    update, said = UPDATES_TOLD[how]
    monkeypatch.setitem(UPDATES, "mine", update)
    base = presets.catch()
    config = replace(base, update=replace(base.update, name="mine", kl_samples=None))
    with pytest.raises(ConfigError) as caught:
        build(config)
    line = str(caught.value)
    assert line.startswith("update.name: mine: ") and said in line and "\n" not in line


@pytest.mark.parametrize("preset", ["catch", "minatar", "pendulum", "go_5x5"])
def test_every_update_of_ours_would_pass_as_ones_own(preset, monkeypatch):
    base = presets.PRESETS[preset]()
    for name in sorted(UPDATES.keys() - {"mcts"}):
        monkeypatch.setitem(UPDATES, "mine", lambda i, c, name=name: UPDATES[name](i, c))
        assert is_own(UPDATES["mine"]) and not is_own(UPDATES[name])
        build(replace(base, update=replace(base.update, name="mine")))


def wrapped(**changes):
    """Our network with what its functions answer changed."""

    def make(spec, config):
        network = make_network(spec, config)

        def around(name, change):
            return lambda *arguments: change(getattr(network, name)(*arguments))

        return network._replace(**{name: around(name, c) for name, c in changes.items()})

    return make


def root(**changes):
    return lambda answer: (
        answer[0]._replace(**{name: change(answer[0]) for name, change in changes.items()}),
        answer[1],
    )


NETWORKS_TOLD = {
    "too few bins": (
        wrapped(unroll=root(value_logits=lambda r: r.value_logits[..., 1:])),
        "unroll: value_logits must be a floating-point array of shape [2, 3, 81], got float32[2, 3",
    ),
    "too few actions": (
        wrapped(unroll=root(policy=lambda r: Categorical(r.policy.logits[..., 1:]))),
        "unroll: policy.logits must be a floating-point array of shape [2, 3, 3], got",
    ),
    "no policy": (
        wrapped(unroll=root(policy=lambda r: r.policy.logits)),
        "unroll: policy must be a Categorical, got float32[2, 3, 3]",
    ),
    "no state": (
        wrapped(unroll=lambda answer: answer[0]),
        "unroll must return (RootOutput, state), got RootOutput",
    ),
    "another state": (
        wrapped(unroll=lambda answer: (answer[0], jnp.zeros(3))),
        "unroll: the state must keep its parts",
    ),
    "too few rewards": (
        wrapped(model_step=lambda o: o._replace(reward_logits=o.reward_logits[..., 1:])),
        "model_step: reward_logits must be a floating-point array of shape [5, 81]",
    ),
    "too few actions of the model": (
        wrapped(model_step=lambda o: o._replace(policy=Categorical(o.policy.logits[..., 1:]))),
        "model_step: policy.logits must be a floating-point array of shape [5, 3]",
    ),
    "another dtype": (
        wrapped(unroll=root(embedding=lambda r: jnp.bfloat16(1) * r.value_logits)),
        "model_step",
    ),
    "one look": (
        wrapped(look_ahead=lambda answer: answer[0]),
        "look_ahead must return (reward_logits, value_logits), got float32[5, 7, 81]",
    ),
    "whole numbers": (
        wrapped(init=lambda params: {"w": jnp.zeros(3, jnp.int32)}),
        "init: params['w'] must be floating-point, got int32[3]",
    ),
    "no network": (lambda spec, config: 3, "what makes 'mine' must return a Network, got int"),
    "a refusal": (lambda spec, config: {}["images"], "cannot be made: KeyError: 'images' (test_"),
}


@pytest.mark.parametrize("how", NETWORKS_TOLD)
def test_a_network_that_does_not_fit_is_told_in_one_line(how, monkeypatch):
    maker, said = NETWORKS_TOLD[how]
    monkeypatch.setitem(NETWORKS, "mine", maker)
    base = presets.catch()
    with pytest.raises(ConfigError) as caught:
        build(replace(base, network=replace(base.network, maker="mine")))
    line = str(caught.value)
    assert line.startswith("network.maker: ") and "mine" in line and "\n" not in line
    assert said in line


@pytest.mark.parametrize(
    "preset", ["catch", "minatar", "recall", "pendulum", "tic_tac_toe", "go_5x5", "go"]
)
def test_our_networks_would_pass_as_ones_own(preset, monkeypatch):
    monkeypatch.setitem(NETWORKS, "mine", lambda spec, config: make_network(spec, config))
    base = presets.PRESETS[preset]()
    assert is_own(NETWORKS["mine"]) and not is_own(make_network)
    build(replace(base, network=replace(base.network, maker="mine")))


def test_the_network_sees_standardised_observations_as_floats(monkeypatch):
    seen = []

    def mine(spec: EnvSpec, config):
        network = make_network(spec, config)

        def unroll(params, inputs, state):
            seen.append(inputs.observation.dtype)
            return network.unroll(params, inputs, state)

        return network._replace(unroll=unroll)

    monkeypatch.setitem(NETWORKS, "mine", mine)
    base = presets.catch()
    for normalise in (False, True):
        build(replace(base, network=replace(
            base.network, maker="mine", normalise_observations=normalise
        )))  # fmt: skip
    assert seen == [np.bool_, np.float32]


def test_train_ends_with_exit_code_2_and_writes_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(UPDATES, "mine", lambda inputs, config: inputs.advantage)
    arguments = ["train", "catch", "--update.name", "mine", "--run-dir", str(tmp_path / "run")]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("muesli train: update.name: mine: what it returns must be a PolicyOut")
    assert said.count("\n") == 1 and not (tmp_path / "run").exists()
