"""Who is started again, how often, and with which exit code it ends."""

import sys

import pytest

from muesli.runners.supervise import supervise

KILLED = -9


@pytest.mark.parametrize(
    ("codes", "restarts", "starts", "code"),
    [
        ([[0, 0]], 3, [False], 0),
        ([[2, 4]], 3, [False], 2),  # refused: it would be refused again
        ([[4, 3]], 3, [False], 3),
        ([[4, KILLED], [0, 0]], 3, [False, True], 0),
        ([[4, 4], [KILLED, 4], [0, 0]], 2, [False, True, True], 0),
        ([[KILLED, 4], [4, KILLED]], 1, [False, True], 137),
        ([[143, 143]], 3, [False], 143),
    ],
)
def test_processes_are_started_again_when_one_is_lost(codes, restarts, starts, code, capfd):
    asked, seen = [], []

    def command(coordinator, process, again):
        if process == 0:
            asked.append(again)
        seen.append(coordinator)
        wanted = codes[len(asked) - 1][process]
        end = f"os.kill(os.getpid(), {-wanted})" if wanted < 0 else f"sys.exit({wanted})"
        return [sys.executable, "-S", "-c", f"import os, sys; {end}"]

    there = iter([False, True, True, True])
    assert supervise(command, 2, restarts, lambda: next(there)) == code
    assert asked == starts
    assert len(set(seen)) == len(asked)  # each time at another port
    said = capfd.readouterr().err
    assert said.count("started again") == len(starts) - 1
