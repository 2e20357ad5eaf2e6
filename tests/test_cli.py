"""The command's contract: exit codes, one clear line, files, resuming, JSON."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from muesli.agent.contract import is_taken
from muesli.cli.main import COMMANDS, main
from muesli.metrics import read_jsonl

ROOT = Path(__file__).parents[1]
TINY = (
    "--network.torso-units 8 --network.model-units 8 --network.value-bins 11 "
    "--network.reward-bins 11 --network.value-max 5 --network.reward-max 5 "
    "--env.num-envs 4 --batch.online-sequences 4 --batch.batch-sequences 8 "
    "--batch.sequence-length 5 --batch.replay-capacity-steps 400 --log.eval-episodes 4"
).split()
PARTS = ("environments", "acting", "learner")
SHORT = "--total-env-steps 400 --log.log-every-steps 100 --log.eval-every-steps 200".split()


def command(*arguments, **options):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"}
    return subprocess.run(
        [sys.executable, "-m", "muesli", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        check=False,
        **options,
    )


def parsed(preset, *arguments):
    from muesli.cli.configure import parse_config

    return parse_config(preset, arguments)[1]


@pytest.mark.parametrize("name", ["pg", "trpo_penalty", "ppo", "mpo", "cmpo"])
def test_naming_an_update_brings_its_own_hyperparameters(name):
    from muesli.presets import catch, with_update

    wanted = with_update(catch(), name)
    assert wanted.update.kl_samples is None  # the preset's
    assert parsed("catch", "--update.name", name) == parsed("catch", f"--update.name={name}")
    assert parsed("catch", "--update.name", name) == wanted


def test_flags_of_an_update_win_over_what_its_name_brings():
    for arguments in (
        ["--update.name", "trpo_penalty", "--update.entropy-weight", "0.5"],
        ["--update.entropy-weight", "0.5", "--update.name=trpo_penalty"],
    ):
        update = parsed("catch", *arguments).update
        assert (update.entropy_weight, update.trpo_weight) == (0.5, 0.01)


def test_what_a_preset_says_of_its_own_update_stays():
    from muesli.presets import pendulum

    assert parsed("pendulum", "--update.name", "muesli") == pendulum()
    assert parsed("pendulum", "--update.name", "mine").update.entropy_weight == 0.01
    assert parsed("pendulum", "--update.name", "mpo").update.entropy_weight == 0.0


@pytest.mark.parametrize(("found", "chosen"), [(False, "atari_laptop"), (True, "atari_small")])
def test_a_game_of_atari_gets_what_the_machine_is_good_for(monkeypatch, capsys, found, chosen):
    from dataclasses import replace

    from muesli.cli.configure import choice
    from muesli.presets import PRESETS
    from muesli.runners import device

    monkeypatch.setattr(device, "finds_accelerator", lambda: found)
    wanted = PRESETS[chosen]()
    assert parsed("atari:pong") == replace(wanted, env=replace(wanted.env, name="atari:pong"))
    assert f"atari:pong: as preset {chosen}, for JAX finds " in choice("atari:pong")
    assert choice("atari") is choice("gym:CartPole-v1") is choice(None) is None
    with pytest.raises(SystemExit):
        main(["train", "atari:pong", "--help"])
    assert f"as preset {chosen}" in " ".join(capsys.readouterr().out.split())


def test_an_accelerator_is_looked_for_without_starting_jax(monkeypatch):
    probe = (
        "from muesli.cli.configure import parse_config\n"
        "print(parse_config('atari:pong', [])[1].env.num_envs)\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    words = [sys.executable, "-c", probe]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    from muesli.runners import device

    ask = device.finds_accelerator.__wrapped__
    monkeypatch.setattr(device, "_may_have_accelerator", lambda: True)
    monkeypatch.setattr(device, "_asked_for", lambda: "")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert not ask()  # another process has had a look
    monkeypatch.setattr(device.sys, "executable", "/bin/true")
    assert ask()
    for platforms, found in (("cpu", False), ("cuda,cpu", True)):
        monkeypatch.setattr(device, "_asked_for", lambda platforms=platforms: platforms)
        assert ask() == found


def test_the_version_of_an_environment_is_kept():
    assert parsed("gym:CartPole").env.name == "gym:CartPole-v1"
    assert parsed("catch", "--env.name", "gym:CartPole").env.name == "gym:CartPole-v1"
    from muesli.presets import pendulum

    assert parsed("gym:Pendulum") == pendulum()
    heavy = parsed("gym:Pendulum-v1?g=12.0")
    assert heavy.env.name == "gym:Pendulum-v1?g=12.0" and heavy.batch == pendulum().batch


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import math\nimport nowhere", "line 2: ModuleNotFoundError: No module named 'nowhere'"),
        ("def f():\n  raise SystemExit(3)\nf()", "line 2: SystemExit: 3"),
        ("x = (", "line 1: SyntaxError: '(' was never closed"),
    ],
)
def test_a_plugin_that_raises_is_one_line(tmp_path, capsys, text, said):
    file = tmp_path / "mine.py"
    file.write_text(text)
    assert main(["--plugin", str(file), "list", "envs"]) == 2
    assert capsys.readouterr().err == f"muesli: --plugin: {file} {said}\n"


def test_whole_numbers_are_read_as_people_write_them():
    for text in ("2000000", "2_000_000", "2e6", "2.0e6"):
        assert parsed("catch", "--total-env-steps", text).total_env_steps == 2_000_000
    assert parsed("catch", "--update.kl-samples", "1e1").update.kl_samples == 10
    assert parsed("catch", "--update.kl-samples", "None").update.kl_samples is None
    assert parsed("catch", "--network.torso-channels", "1_6", "8").network.torso_channels == (16, 8)


def test_the_help_of_train_explains_its_own_options(capsys):
    with pytest.raises(SystemExit):
        main(["train", "catch", "--help"])
    said = capsys.readouterr().out
    options = said[: said.index("The fields of this preset")]
    for line in (
        "--run-dir DIR  ",
        "--seeds N  ",
        "--init-from RUN_DIR  ",
        "--distributed.local N",
    ):
        assert line in options


def test_where_there_is_no_terminal_a_line_is_said_now_and_then(monkeypatch, capsys):
    from muesli.cli import train

    now = [0.0]
    monkeypatch.setattr(train.time, "monotonic", lambda: now[0])
    row = {"env_steps": 0, "frames_per_second": 1234.5, "episode_return_mean": None}
    with train.Progress(1000, "x on y") as watch:
        watch.begin(0)
        for steps in range(100, 1001, 100):
            watch({**row, "env_steps": steps, "episode_return_mean": steps / 1000})
            now[0] += 10.0
        watch({**row, "env_steps": 1000})
    assert capsys.readouterr().out.splitlines() == [
        "training x on y: 1,000 steps (compiling first)",
        " 10%  step 100  return 0.10  1,234 frames/s",
        " 40%  step 400  return 0.40  1,234 frames/s",
        " 70%  step 700  return 0.70  1,234 frames/s",
        "100%  step 1,000  return 1.00  1,234 frames/s",
    ]
    with train.Progress(1000, "x on y") as watch:
        watch.begin(400)
    assert capsys.readouterr().out == "continuing x on y at step 400 of 1,000 (compiling first)\n"


def test_nobody_who_reads_a_training_is_no_reason_to_end_it(monkeypatch):
    from muesli.cli import train

    class Gone(io.StringIO):
        def flush(self):
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Gone())
    train.Progress(10, "x")({"env_steps": 1, "frames_per_second": 1.0})
    assert "step 1" in sys.stdout.getvalue()


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["list", "envs"]])
def test_a_reader_that_goes_away_is_no_error(words):
    """As in ``muesli list envs | head``: no traceback, and the exit code of a broken pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "muesli", *words],
            stdout=writer, stderr=subprocess.PIPE, text=True, timeout=240, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_help_is_quick_and_does_not_import_jax():
    began = time.monotonic()
    result = command("--help")
    assert result.returncode == 0 and all(name in result.stdout for name in COMMANDS)
    assert time.monotonic() - began < 1.5  # 0.05 s on an idle machine
    probe = "import sys, muesli.cli.main as m; m.main(['--help']); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself(name, capsys):
    try:
        status = main([name, "--help"])
    except SystemExit as left:
        status = left.code
    said = capsys.readouterr().out
    assert not status and f"muesli {name}" in said, said[:200]


def test_every_part_is_timed(capsys):
    assert main(["bench", "catch", *TINY, "--seconds", "0.05", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    rates = {key: value for key, value in result.items() if key.endswith("_per_second")}
    assert result["preset"] == "catch" and rates and min(rates.values()) > 0.0, result
    rates = {name: result[f"{name}_env_steps_per_second_alone"] for name in PARTS}
    rates["end_to_end"] = result["env_steps_per_second"]
    slowest = min(rates[name] for name in PARTS)
    for name, rate in rates.items():
        assert result[f"{name}_to_slowest_bound"] == pytest.approx(rate / slowest)


@pytest.mark.slow
def test_the_parts_of_a_run_without_replay_are_timed_too(capsys):
    everything_fresh = ["--batch.batch-sequences", "4"]
    words = ["bench", "catch", *TINY, *everything_fresh, "--seconds", "0.01"]
    assert main(words) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert float(lines["update_ms"]) > 0.0 and float(lines["end_to_end_to_slowest_bound"]) > 0.0
    shares = [float(lines[f"{name}_to_slowest_bound"].replace(",", "")) for name in PARTS]
    assert min(shares) == 1.0 and "replay_sample_ms" not in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "catch", "--optimiser.max-gradient-norm", "0"],
            "optimiser.max_gradient_norm: must be positive",
        ),
        (["tarin"], "unknown command 'tarin' (did you mean train?)"),
        (["train", "ctach"], "unknown preset 'ctach' (did you mean catch?)"),
        (["train", "catch", "--batch.online-sequencess", "3"], "mean --batch.online-sequences?"),
        (["train", "catch", "--nosuch", "3"], "--nosuch: there is no such field"),
        (["train", "catch", "--plugin", "x.py"], "--plugin: comes before the command: muesli --pl"),
        (["eval", "--plugin=x.py", "RUN"], "muesli --plugin FILE eval ..."),
        (["train", "catch", "--network.maker", "mine"], "(one of your own: muesli --plugin FILE"),
        (["train", "catch", "--env.name", "corridor"], "(one of your own: muesli --plugin FILE"),
        (["train", "catch", "--seed", "x"], "expected --seed INT"),
        (["train", "catch", "--network.torso-channels", "a"], "torso-channels [INT [INT ...]]"),
        (["train", "catch", "--actors.device", "tpu"], "Expected one of ('learner', 'cpu')"),
        (["train", "catch", "catch"], "Unrecognized options: catch"),
        (["train", "--seeds", "2", "catch"], "catch: PRESET comes first"),
        (["train", "catch", "--total-env-steps", "1.5"], "1.5 is no whole number"),
        (["train", "catch", "--update.name", "muesly"], "update.name: there is no 'muesly'"),
        (["train", "catch", "--agent.discount", "1.5"], "agent.discount: must be in [-1, 1]"),
        (["train", "catch", "--agent.discount", "-1"], "agent.discount: catch has one player"),
        (["train", "go_5x5", "--agent.discount", "0.9"], "go_5x5 is played against oneself"),
        (["train", "catch", "--batch.online-sequences", "3"], "env.num_envs: must be a multiple"),
        (["train", "catch", "--batch.replay-capacity-steps", "10"], "batch.replay_capacity_steps"),
        (["train", "catch", "--batch.sequence-length", "3"], "batch.sequence_length: must be at"),
        (["train", "catch", "--update.kl-samples", "0"], "update.kl_samples: must be at least 1"),
        (["train", "catch", "--env.name", "cach"], "did you mean catch"),
        (["train", "catch", "--seed", "-1"], "seed: must be in [0, 4294967295], got -1"),
        (["train", "catch", "--seed", "4294967296"], "seed: must be in [0, 4294967295]"),
        (["train", "catch", "--seed", "4294967295", "--seeds", "2"], "seed: must be in [0, 42949"),
        (["train", "catch", "--network.torso-units", "0"], "network.torso_units: must be at least"),
        (["train", "catch", "--optimiser.learning-rate", "inf"], "learning_rate: must be a finite"),
        (["train", "catch", "--network.torso", "mlp", "--seeds", "0"], "--seeds: must be at least"),
        (["train", "catch", "--env.name", "recall", "--network.torso", "impala"], "network.torso"),
        (["train", "atari", "--batch.replay-capacity-steps", f"{10**12}"], "GiB of the"),
        (["train", "atari:pacman"], "ms_pacman"),
        (["train", "gym:CartPol-v1"], "CartPole-v1"),
        (["train", "CartPole-v1"], "unknown preset 'CartPole-v1' (did you mean gym:CartPole-v1?)"),
        (["train", "CartPole"], "(did you mean gym:CartPole-v1?)"),
        (["train", "ALE/Pong-v5"], "unknown preset 'ALE/Pong-v5' (did you mean atari:pong?)"),
        (["train", "ATARI:pong"], "did you mean atari:pong?"),
        (["train", ":"], "':' names no module"),
        (["train", "catch", "--env.name", "CartPole-v1"], "did you mean gym:CartPole-v1?"),
        (["train", "gym:FrozenLake-v1?slippery"], "arguments as Python writes them"),
        (["train", "gym:CartPole-v1", "--actors.runner", "anakin"], "actors.runner: gym:CartPole"),
        (["train", "gym:CartPole-v1", "--actors.groups", "3"], "env.num_envs: must be a multiple"),
        (["train", "gym:CartPole-v1", "--seeds", "2"], "seeds: several at once"),
        (["train", "--init-from", "/nowhere"], "--init-from: /nowhere holds no run"),
        (["resume", "/nowhere"], "/nowhere holds no run"),
        (["eval", "/nowhere"], "/nowhere holds no run"),
        (["plot", "/nowhere"], "/nowhere holds no run"),
        (["record", "RUN", "-o", "x.txt"], "--output: must end in .mp4 or .mkv or"),
        (["record", "RUN", "-o", "/dev"], "--output: must end in .mp4"),
        (["record", "RUN", "-o", "/dev/null/x.mp4"], "--output: /dev/null is no directory"),
        (
            ["export", "RUN", "-o", "/dev/null/x/agent"],
            "--output: cannot write /dev/null/x/agent (",
        ),
        (["export", "RUN", "-o", "/dev"], "--output: /dev is a directory"),
        (["record", "RUN", "--max-steps", "0"], "--max-steps: must be at least 1, got 0"),
        (["record", "RUN", "--episodes", "0"], "--episodes: must be at least 1, got 0"),
        (["record", "RUN", "--fps", "0"], "--fps: must be at least 1, got 0"),
        (["record", "RUN", "--search.model", "rules"], "--search.model: a video is searched"),
        (["eval", "RUN", "--episodes", "0"], "--episodes: must be at least 1, got 0"),
        (["eval", "RUN", "--seed", "-1"], "--seed: must be in [0, 4294967295], got -1"),
        (
            ["eval", "RUN", "--act-with", "prior", "--search.max-depth", "8"],
            "--search.max-depth: has no effect with --act-with prior, only with mcts",
        ),
        (["bench", "catch", "--seconds", "0"], "--seconds: must be a positive number, got 0"),
        (["bench", "catch", "--seconds", "-1"], "--seconds: must be a positive number, got -1"),
        (["list", "prests"], "invalid choice"),
        (["eval"], "the following arguments are required: run_dir"),
        (["eval", "RUN", "--episodes", "two"], "--episodes: must be a whole number, got two"),
        (["plot", "RUN", "--outptu", "x"], "--outptu: there is no such option (did you mean --out"),
        (["doctor", "--json"], "--json: there is no such option"),
        (["bench", "catch", "--seconds", "soon"], "--seconds: must be a number, got soon"),
    ],
)
def test_bad_input_is_answered_in_one_line_with_exit_code_2(arguments, message, capsys, tmp_path):
    if arguments[0] == "train":
        arguments = [*arguments, "--run-dir", str(tmp_path / "run")]
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert code == 2
    assert message in text
    assert "Traceback" not in text and len(text.splitlines()) < 25
    assert len(captured.err.splitlines()) == 1, captured.err
    assert "training" not in captured.out
    assert not (tmp_path / "run" / "config.json").exists()


def test_an_unwritable_run_directory_is_named(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert main(["train", "catch", *TINY, "--run-dir", str(tmp_path / "file" / "run")]) == 2
    assert "run_dir: cannot write to" in capsys.readouterr().err


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "finished"
    assert main(["train", "catch", *TINY, *SHORT, "--run-dir", str(run_dir)]) == 0
    return run_dir


def test_a_run_directory_holds_what_the_contract_says(finished_run):
    names = {p.name for p in finished_run.iterdir()}
    assert names >= {
        "config.json", "run.json", "metrics.jsonl", "episodes.jsonl", "curve.png", "checkpoints",
        "tensorboard",
    }  # fmt: skip
    rows = read_jsonl(finished_run / "metrics.jsonl")
    assert [r["env_steps"] for r in rows] == [120, 220, 320, 420]
    last = rows[-1]
    for name in (
        "env_frames", "updates", "episode_return_mean", "frames_per_second", "replay_fraction",
        "policy_lag_updates", "replay_age_updates", "policy_entropy", "kl_prior_online",
        "kl_cmpo_online", "advantage_clipped_share", "value_explained_variance",
        "q_action_gap_sigmas", "q_error_ratio", "feature_scale", "rho_clipped_share",
        "advantage_sigma", "update_clip_share", "loss_reward_step_1", "eval_return_mean",
    ):  # fmt: skip
        assert name in last, name
    # So that no update of one's own can report another number by the name of one of these.
    assert all(is_taken(name) for name in last.keys() - {"loss_pg", "loss_cmpo"})
    assert last["replay_fraction"] == 0.5 and last["updates"] == 20
    episodes = read_jsonl(finished_run / "episodes.jsonl")
    assert all(e["length"] == 9 and e["return"] in (-1.0, 1.0) for e in episodes)
    # 4 environments, 105 records each, 10 records an episode: 10 whole episodes each.
    assert len(episodes) == 40
    config = json.loads((finished_run / "config.json").read_text())
    assert config["batch"]["online_sequences"] == 4
    assert json.loads((finished_run / "run.json").read_text())["muesli"]


def test_eval_prints_one_json_object(finished_run, capsys):
    assert main(["eval", str(finished_run), "--episodes", "6", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["episodes"] == 6 and result["length_mean"] == 9.0
    assert {"return_mean", "return_stderr"} <= set(result)
    for mode in ("online", "cmpo", "q_softmax", "random"):
        assert main(["eval", str(finished_run), "--episodes", "4", "--act-with", mode]) == 0


def test_evaluations_say_how_many_episodes_were_cut(finished_run, tmp_path, capsys, monkeypatch):
    assert main(["eval", str(finished_run), "--episodes", "4"]) == 0
    assert capsys.readouterr().out.endswith("over 4 episodes of 9.0 steps\n")
    monkeypatch.setattr("muesli.runners.evaluate.MAX_STEPS", 5)
    assert main(["eval", str(finished_run), "--episodes", "4"]) == 0
    assert "over 4 episodes of 5.0 steps; 4 cut after 5 steps\n" in capsys.readouterr().out
    assert main(["train", "catch", *TINY, *SHORT, "--run-dir", str(tmp_path / "run")]) == 0
    assert "over 4 episodes; 4 cut after 5 steps\n" in capsys.readouterr().out


def test_what_a_file_refuses_is_one_line(finished_run, tmp_path, capsys):
    (tmp_path / "agent").mkdir()
    run_dir = tmp_path / "agent"
    (run_dir / "config.json").write_text((finished_run / "config.json").read_text())
    assert main(["eval", str(run_dir)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1  # there is no checkpoint
    file = tmp_path / "shared"
    assert main(["export", str(finished_run), "-o", str(file)]) == 0
    assert main(["eval", str(file), "--best"]) == 2
    assert "is an exported agent" in capsys.readouterr().err


def test_an_error_without_a_files_name_keeps_its_traceback(monkeypatch, capsys):
    from muesli.cli import info

    def fail(argv):
        raise OSError(28, "No space left on device", *argv)

    monkeypatch.setattr(info, "list_command", fail)
    with pytest.raises(OSError, match="No space"):
        main(["list"])
    assert main(["list", "this/file"]) == 2
    assert capsys.readouterr().err == "muesli list: this/file: No space left on device\n"


def test_a_finished_run_answers_already_complete(finished_run, capsys):
    assert main(["resume", str(finished_run)]) == 0
    assert "already complete" in capsys.readouterr().out


def test_a_run_says_at_which_step_it_continues(finished_run):
    from muesli.runners.train import resume

    steps: list[int] = []
    resume(finished_run, on_start=steps.append)
    assert steps == [420]


def test_a_second_run_does_not_overwrite_the_first(finished_run, capsys):
    assert main(["train", "catch", *TINY, "--run-dir", str(finished_run)]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_record_and_plot_make_files(finished_run, tmp_path):
    video, picture = tmp_path / "new" / "v.mp4", tmp_path / "other" / "p.png"
    arguments = ["--episodes", "1", "-o", str(video)]
    assert main(["record", str(finished_run), *arguments]) == 0
    assert video.stat().st_size > 1000
    assert main(["plot", str(finished_run), "-o", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "way", [["--greedy", "--best"], ["--act-with", "random"], ["--search.simulations", "2"]]
)
def test_a_video_can_be_of_any_way_to_act(finished_run, tmp_path, way, capsys):
    video = tmp_path / "v.gif"
    assert main(["record", str(finished_run), "--max-steps", "2", "-o", str(video), *way]) == 0
    assert capsys.readouterr().out == f"{video}: 2 frames\n"
    assert video.read_bytes().startswith(b"GIF")


@pytest.mark.slow
def test_init_from_starts_with_another_runs_parameters(finished_run, tmp_path):
    from muesli.runners.player import load

    run_dir = tmp_path / "second"
    steps = "--total-env-steps 40 --log.log-every-steps 20 --optimiser.learning-rate 1e-9".split()
    assert main(["train", "catch", *TINY, *steps, "--init-from", str(finished_run), "--run-dir",
                 str(run_dir)]) == 0  # fmt: skip
    import jax
    import numpy as np

    first, second = (
        dict(jax.tree_util.tree_leaves_with_path(load(path).state.online))
        for path in (finished_run, run_dir)
    )
    assert first.keys() == second.keys()
    for path, parameter in first.items():
        # How often each bin is a target is counted anew, at whatever rate.
        if "frequencies" not in jax.tree_util.keystr(path):
            np.testing.assert_allclose(parameter, second[path], atol=1e-6)


def test_only_checkpoints_that_are_there_can_be_chosen(finished_run, tmp_path, capsys):
    import shutil

    import muesli
    from muesli.config import ConfigError

    names = {path.name for path in (finished_run / "checkpoints").glob("*-*")}
    (best,) = (name for name in names if name.startswith("best-"))
    steps = {name: int(muesli.load(finished_run, checkpoint=name).state.step) for name in names}
    assert steps == {name: int(name.partition("-")[2]) for name in names} and len(steps) > 1
    for chosen in ({"checkpoint": "best"}, {"best": True}):
        assert int(muesli.load(finished_run, **chosen).state.step) == steps[best]
    for name in ("nope", "best-", "best-99999", "step-99999", "kept-1", "ring", f"../{best}"):
        with pytest.raises(ConfigError, match="checkpoint: .* has no ") as refused:
            muesli.load(finished_run, checkpoint=name)
        assert f"'{name}'; it has best, {best}, step-" in str(refused.value)
        assert all(there in str(refused.value) for there in names)
    shutil.copy(finished_run / "config.json", tmp_path)
    assert main(["eval", str(tmp_path), "--best"]) == 2
    assert "has no 'best'; it has none\n" in capsys.readouterr().err


def test_an_exported_agent_plays_and_starts_another_run(finished_run, tmp_path, capsys):
    import jax
    import numpy as np

    import muesli

    file = tmp_path / "new" / "agent"
    assert main(["export", str(finished_run), "-o", str(file)]) == 0
    played = []
    for source in (finished_run, file):
        assert main(["eval", str(source), "--episodes", "6", "--json"]) == 0
        played.append(capsys.readouterr().out.splitlines()[-1])
    assert played[0] == played[1]
    assert main(["eval", str(file), "--best"]) == 2
    assert "is an exported agent, of which no 'best' can be" in capsys.readouterr().err
    ours, theirs = muesli.load(file).state, muesli.load(finished_run).state
    assert ours.optimiser is None
    for a, b in zip(jax.tree.leaves(ours.prior), jax.tree.leaves(theirs.prior), strict=True):
        np.testing.assert_array_equal(a, b)
    steps = "--total-env-steps 40 --log.log-every-steps 20 --log.eval-episodes 0".split()
    start = ["train", "catch", *TINY, *steps, "--init-from", str(file)]
    assert main([*start, "--run-dir", str(tmp_path / "second")]) == 0
    other = [*start, "--network.torso-units", "9", "--run-dir", str(tmp_path / "third")]
    assert main(other) == 2
    assert "this configuration needs" in capsys.readouterr().err
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["eval", str(file)]) == 2
    assert "cut short" in capsys.readouterr().err


@pytest.mark.slow
def test_several_seeds_train_at_once_with_a_directory_each(tmp_path):
    assert main(["train", "catch", *TINY, *SHORT, "--seeds", "2", "--run-dir", str(tmp_path)]) == 0
    rows = [read_jsonl(tmp_path / f"seed-{k}" / "metrics.jsonl") for k in (0, 1)]
    assert rows[0][-1]["env_steps"] == rows[1][-1]["env_steps"] == 420
    assert rows[0][-1]["loss_total"] != rows[1][-1]["loss_total"]
    seeds = [
        json.loads((tmp_path / f"seed-{k}" / "config.json").read_text())["seed"] for k in (0, 1)
    ]
    assert seeds == [0, 1]
    manifests = [next((tmp_path / f"seed-{k}").glob("checkpoints/step-*/manifest.json"))
                 for k in (0, 1)]  # fmt: skip
    assert [json.loads(m.read_text())["meta"]["config"]["seed"] for m in manifests] == [0, 1]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143)],
)
@pytest.mark.slow  # tests/reliability/test_signals.py does the like
def test_a_signal_saves_and_resume_ends_where_an_unbroken_run_ends(tmp_path, number, code):
    arguments = [*TINY, "--total-env-steps", "20000", "--log.log-every-steps", "400"]
    arguments += ["--log.eval-every-steps", "4000"]
    run_dir = tmp_path / "broken"
    process = subprocess.Popen(
        [sys.executable, "-m", "muesli.cli.main", "train", "catch", *arguments, "--run-dir",
         str(run_dir)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for_rows(run_dir / "metrics.jsonl", 3)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == code and "muesli resume" in output
    if number == signal.SIGTERM:
        return
    assert main(["resume", str(run_dir)]) == 0
    whole = tmp_path / "whole"
    assert main(["train", "catch", *arguments, "--run-dir", str(whole)]) == 0
    assert timeless(run_dir) == timeless(whole)


def wait_for_rows(path: Path, count: int) -> None:
    for _ in range(600):
        if path.exists() and len(read_jsonl(path)) >= count:
            return
        time.sleep(0.2)
    raise AssertionError("the run did not start")


def timeless(run_dir: Path) -> list[dict]:
    rows = read_jsonl(run_dir / "metrics.jsonl")
    return [{k: v for k, v in r.items() if "second" not in k and "time" not in k} for r in rows]


def test_a_directory_in_use_is_refused(tmp_path, capsys):
    from muesli.config import Config
    from muesli.runners.rundir import RunDirectory

    held = RunDirectory.create(tmp_path / "run", Config())
    assert main(["train", "catch", *TINY, "--run-dir", str(tmp_path / "run")]) == 2
    assert "in use by another process" in capsys.readouterr().err
    held.release()


@pytest.mark.parametrize("what", ["presets", "envs", "updates", "networks"])
def test_list_prints_names_and_json(what, capsys):
    assert main(["list", what, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(e["name"] and e["summary"] for e in entries)
    assert not [e for e in entries if "`" in e["summary"] or not e["summary"].endswith(".")]


def test_doctor_says_what_is_there(capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "device 0" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in project["optional-dependencies"].keys() - {"dev", "cuda", "cuda12"}:
        assert f"extra {extra}: " in text


def test_make_help_names_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    said = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    listed = said[said.index("EXTRAS=") : said.index("PYTHON=")]
    for extra in project["optional-dependencies"].keys() - {"dev"}:
        assert extra in listed


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--distributed.local", "1", "--distributed.local: must be at least 2, got 1"),
        ("--distributed.processes", "2", "--distributed.coordinator: HOST:PORT of process 0 is"),
        ("--distributed.timeout-seconds", "0", "--distributed.timeout-seconds: must be above 0"),
        ("--distributed.proceses", "2", "--distributed.proceses: there is no such option (did you"),
        ("--devices.actor", "0", "--devices.actor: there is no such option (did you mean"),
    ],
)
def test_wrong_settings_of_processes_are_one_line_however_it_is_started(flag, value, said):
    # As --distributed.local starts its processes.
    words = [sys.executable, "-m", "muesli.cli.main", "train", "catch", flag, value]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"muesli train: {said}") and done.stderr.count("\n") == 1
