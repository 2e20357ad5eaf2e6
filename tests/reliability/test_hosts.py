"""Hosts in miniature: two network namespaces with addresses and names of their own."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import TINY, checkpoints, until

pytestmark = pytest.mark.slow

NODES = {"muesli-a": "10.77.13.1", "muesli-b": "10.77.13.2"}
HOSTS = "127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in NODES.items())
LOST = 4


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


@pytest.fixture
def nodes():
    """Two namespaces with a cable between them."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("NEEDS root and the command 'ip' (package iproute2) for network namespaces")
    for name in NODES:
        ip("netns", "del", name, check=False)
    try:
        for name in NODES:
            if ip("netns", "add", name, check=False).returncode:
                pytest.skip("NEEDS leave to make network namespaces")
            folder = Path("/etc/netns") / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(HOSTS)
        first, second = NODES
        ip("link", "add", "veth0", "netns", first, "type", "veth", "peer", "veth0", "netns", second)
        for name, address in NODES.items():
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "veth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield list(NODES)
    finally:
        for name in NODES:
            ip("netns", "del", name, check=False)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


class Rank:
    """One process on its own host."""

    def __init__(self, node, rank, output, argv):
        words = [sys.executable, "-m", "muesli.cli.main", *map(str, argv)]
        words += ["--distributed.coordinator", f"{NODES['muesli-a']}:29871"]
        words += ["--distributed.processes", "2", "--distributed.process-id", str(rank)]
        words += ["--distributed.timeout-seconds", "5"]
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', node, *words]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg"}
        self.output = output
        with output.open("w") as stream:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", node, *named],
                env=environment, stdout=stream, stderr=stream,
            )  # fmt: skip

    def poll(self):
        return self.process.poll()

    @property
    def code(self):
        return self.process.returncode

    def text(self):
        return self.output.read_text()


def start(nodes, tmp_path, *argv):
    return [
        Rank(node, rank, tmp_path / f"{argv[0]}-{node}.txt", argv)
        for rank, node in enumerate(nodes)
    ]


def test_a_cut_cable_ends_both_sides_and_both_go_on_when_it_is_mended(nodes, tmp_path):
    run_dir = tmp_path / "run"
    # TINY's updates over the cable take some milliseconds each.
    argv = ["train", "catch", *TINY, "--total-env-steps", 6000, "--run-dir", run_dir]
    both = start(nodes, tmp_path, *argv)
    until(lambda: len(checkpoints(run_dir)) > 1, both[0])
    ip("-n", "muesli-a", "link", "set", "veth0", "down")
    cut = time.monotonic()
    for rank in both:
        assert rank.process.wait(30) == LOST, rank.text()
    assert time.monotonic() - cut < 15
    assert "leaves: process 1 (muesli-b) has not been heard of for 5 s" in both[0].text()
    assert "leaves: process 0 (muesli-a, the coordinator)" in both[1].text()
    ip("-n", "muesli-a", "link", "set", "veth0", "up")
    for rank in (resumed := start(nodes, tmp_path, "resume", run_dir)):
        assert rank.process.wait(300) == 0, rank.text()
    assert f"{run_dir}: return" in resumed[0].text()
