"""Processes meet, agree and miss each other; here they are threads of one."""

import os
import socket
import threading
import time

import pytest

from muesli.config import ConfigError
from muesli.runners.distributed import compare, detect
from muesli.runners.peers import ALONE, Cluster, PeerFailedError, address, meet, receive, send


@pytest.fixture
def coordinator():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def together(*calls):
    """What each call answers or raises, made at the same time."""
    results = [None] * len(calls)

    def one(k):
        try:
            results[k] = calls[k]()
        except Exception as error:
            results[k] = error

    threads = [threading.Thread(target=one, args=(k,)) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def meeting(coordinator, processes, cards=None, timeout_seconds=10.0, ends=None, **changes):
    """Every process's Peers, or why it was sent away. ends: what each says when it gives up."""
    ends = [[] for _ in range(processes)] if ends is None else ends

    def one(k):
        cluster = Cluster(coordinator, processes, k, 10.0, timeout_seconds)._replace(**changes)
        return meet(cluster, (cards or [{}] * processes)[k], compare, ends[k].append)

    return together(*(lambda k=k: one(k) for k in range(processes)))


def until(condition):
    """What a thread does a moment later."""
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def leave(peers):
    for one in peers:
        one.leave()


def test_a_process_alone_agrees_with_itself():
    assert ALONE.gather(3) == [3] and ALONE.first(3) == 3
    assert ALONE.any(None) is None and ALONE.any(15) == 15


def test_all_hear_what_each_says_in_the_order_of_their_ranks(coordinator):
    peers = meeting(coordinator, 3)
    for number in range(50):
        answers = together(*(lambda p=p, n=number: p.gather([n, p.rank]) for p in peers))
        assert answers == [[[number, 0], [number, 1], [number, 2]]] * 3
    assert together(*(lambda p=p: p.first(f"of {p.rank}") for p in peers)) == ["of 0"] * 3
    said = [None, None, 15]
    assert together(*(lambda p=p: p.any(said[p.rank]) for p in peers)) == [15] * 3
    assert together(*(lambda p=p: p.any(None) for p in peers)) == [None] * 3
    leave(peers)


def test_who_leaves_in_peace_is_not_missed(coordinator):
    ends = [[], [], []]
    peers = meeting(coordinator, 3, timeout_seconds=0.5, ends=ends)
    leave(peers)
    time.sleep(1.5)
    assert ends == [[], [], []]


@pytest.mark.parametrize("lost", [0, 2])
def test_a_process_that_is_gone_is_named_by_all_others(coordinator, lost):
    ends = [[], [], []]
    peers = meeting(coordinator, 3, ends=ends)
    peers[lost]._leaving.set()  # it is dead and says nothing
    for link in peers[lost]._links.values():
        link.shutdown(socket.SHUT_RDWR)
    others = [p for p in peers if p.rank != lost]
    waiting = together(*(lambda p=p: p.gather(None) for p in others))
    assert all(isinstance(error, PeerFailedError) for error in waiting)
    title = f"process {lost} ({socket.gethostname()}{', the coordinator' * (lost == 0)}) is gone"
    for p in others:
        until(lambda p=p: ends[p.rank])
        assert ends[p.rank] == [f"process {p.rank} of 3 leaves: {title}"]


def test_a_process_that_falls_silent_is_named(coordinator):
    ends = [[], []]
    peers = meeting(coordinator, 2, timeout_seconds=0.8, ends=ends)
    peers[1]._leaving.set()  # it no longer gives a sign of life
    began = time.monotonic()
    assert isinstance(together(lambda: peers[0].gather(None))[0], PeerFailedError)
    assert time.monotonic() - began < 5
    until(lambda: ends[0])
    assert "process 1" in ends[0][0] and "has not been heard of for 0.8 s" in ends[0][0]


def test_a_failure_is_told_to_all(coordinator):
    ends = [[], [], []]
    peers = meeting(coordinator, 3, ends=ends)
    peers[1].fail("failed: no more cheese")
    waiting = together(lambda: peers[0].gather(None), lambda: peers[2].gather(None))
    assert all("process 1" in str(e) and "no more cheese" in str(e) for e in waiting)
    assert not ends[1]


def test_configurations_that_differ_are_told_apart(coordinator):
    cards = [{"config": {"seed": 1, "env": {"num_envs": 64}}}] * 2
    cards += [{"config": {"seed": 1, "env": {"num_envs": 32}}}]
    answers = meeting(coordinator, 3, cards)
    assert all(isinstance(answer, ConfigError) for answer in answers)
    assert all("env.num_envs is 64 at process 0 and 32 there" in str(answer) for answer in answers)
    assert all("process 2" in str(answer) for answer in answers)


def test_a_number_that_is_taken_is_refused_and_the_others_go_on(coordinator):
    cluster = Cluster(coordinator, 3, 0, 10.0, 10.0)
    ranks = [0, 1, 1]
    calls = [lambda r=r: meet(cluster._replace(process=r), {}, compare) for r in ranks]

    def late():
        time.sleep(0.5)
        return meet(cluster._replace(process=2), {}, compare)

    first, *doubles, last = together(*calls, late)
    refused = [x for x in doubles if isinstance(x, ConfigError)]
    assert len(refused) == 1 and "process_id: 1 is already here" in str(refused[0])
    leave([x for x in (first, *doubles, last) if not isinstance(x, ConfigError)])


def test_who_is_missing_is_named_within_the_time_given(coordinator):
    cluster = Cluster(coordinator, 3, 0, 0.6, 10.0)
    began = time.monotonic()
    answers = together(
        lambda: meet(cluster, {}, compare), lambda: meet(cluster._replace(process=2), {}, compare)
    )
    assert time.monotonic() - began < 5
    for answer in answers:
        assert "process 1 of 3 did not come within 0.6 s" in str(answer)


def test_a_coordinator_that_does_not_answer_is_named(coordinator):
    cluster = Cluster(coordinator, 2, 1, 0.5, 10.0)
    with pytest.raises(ConfigError, match=f"coordinator: {coordinator} did not answer within 0.5"):
        meet(cluster, {}, compare)


def test_strangers_at_the_door_are_ignored(coordinator):
    def stranger(message):
        def call():
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                try:
                    with socket.create_connection(address(coordinator), 1) as link:
                        message(link)
                    return
                except ConnectionRefusedError:
                    time.sleep(0.02)

        return call

    cluster = Cluster(coordinator, 2, 0, 10.0, 10.0)

    def guest():
        time.sleep(0.5)
        return meet(cluster._replace(process=1), {}, compare)

    answers = together(
        lambda: meet(cluster, {}, compare),
        stranger(lambda link: link.sendall(b"GET / HTTP/1.1\r\n\r\n")),
        stranger(lambda link: send(link, {"process": "one"})),
        guest,
    )
    assert [answers[0].rank, answers[3].rank] == [0, 1]
    leave([answers[0], answers[3]])


def test_a_taken_port_is_named(coordinator):
    taken = socket.create_server(address(coordinator))
    with taken, pytest.raises(ConfigError, match=r"port .* cannot be had"):
        meet(Cluster(coordinator, 2, 0, 1.0, 1.0), {}, compare)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"processes": 1}, "distributed.processes: must be at least 2"),
        ({"process": 2}, "distributed.process_id: must be from 0 to 1"),
        ({"coordinator": "nowhere"}, "distributed.coordinator: must be HOST:PORT"),
        ({"coordinator": "host:99999"}, "distributed.coordinator: must be HOST:PORT"),
    ],
)
def test_settings_that_cannot_be_are_named(changes, field):
    cluster = Cluster("127.0.0.1:1", 2, 0, 1.0, 1.0)._replace(**changes)
    with pytest.raises(ConfigError, match=field):
        meet(cluster, {}, compare)


def test_a_cluster_is_found_as_jax_finds_it(monkeypatch):
    for name, value in {
        "SLURM_JOB_ID": "4321",
        "SLURM_STEP_NODELIST": "node[07-08]",
        "SLURM_NTASKS": "4",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NUM_NODES": "2",
    }.items():
        monkeypatch.setenv(name, value)
    coordinator, processes, process = detect(5.0)
    assert coordinator.startswith("node07:") and (processes, process) == (4, 3)


def test_no_cluster_is_said_to_be_none(monkeypatch):
    for name in [n for n in os.environ if n.startswith(("SLURM_", "OMPI_", "KUBERNETES_"))]:
        monkeypatch.delenv(name)
    with pytest.raises(ConfigError, match=r"^distributed.coordinator: auto found no cluster"):
        detect(1.0)


def test_a_process_that_is_started_again_takes_its_place(coordinator):
    cluster = Cluster(coordinator, 3, 0, 10.0, 10.0)

    def leaves_again():
        hello = {"muesli": {"versions": 1}, "process": 1, "processes": 3, "host": "old"}
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(address(coordinator), 1) as link:
                    send(link, hello)
                    return receive(link)
            except ConnectionRefusedError:
                time.sleep(0.02)

    def late(rank):
        time.sleep(0.7 + 0.2 * rank)
        return meet(cluster._replace(process=rank), {"versions": 1}, compare)

    first, told, *others = together(
        lambda: meet(cluster, {"versions": 1}, compare),
        leaves_again,
        lambda: late(1),
        lambda: late(2),
    )
    assert "wait" in told
    assert first.names[1] == socket.gethostname()
    leave([first, *others])
