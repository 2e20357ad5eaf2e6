"""An untrained Go run on disk, made once for all tests of this folder."""

import dataclasses

import pytest

from muesli import presets


def tiny_go(size=5):
    """A Go run of a few updates of a very small network."""
    base = presets.go_5x5()
    replace = dataclasses.replace
    return replace(
        base,
        total_env_steps=2 * 4 * 4,
        env=replace(base.env, name=f"go_{size}x{size}", num_envs=4),
        network=replace(base.network, torso_channels=(4,), torso_units=16, model_units=16),
        update=replace(base.update, kl_samples=2),
        batch=replace(base.batch, batch_sequences=4, online_sequences=4, sequence_length=4),
        log=replace(
            base.log, log_every_steps=16, eval_episodes=0, checkpoint_every_steps=16, keep_every=1
        ),
    )


@pytest.fixture(scope="session")
def go_run(tmp_path_factory):
    from muesli.runners.train import train

    path = tmp_path_factory.mktemp("go") / "run"
    train(tiny_go(), path)
    return path
