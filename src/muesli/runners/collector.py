"""How a group of environments builds a chunk of records on the device, as pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from muesli import keys
from muesli.agent import Acting
from muesli.runners.host import Memory, initial_memory, remember
from muesli.runners.parts import Parts
from muesli.symmetry import next_symmetry
from muesli.types import Array, PRNGKey, PyTree, TimeStep, Trajectory, Transition


class Carry(NamedTuple):
    """A group between two steps, on the device. records: Transition [E, T + 1], the chunk being
    built; start: the ActorState at its first record; memory: Memory [E]; seen: what acts next.
    """

    records: Transition
    start: PyTree
    memory: Memory
    seen: TimeStep


class Collector(NamedTuple):
    """How a group builds a chunk, as pure functions.

    begin(timestep) -> Carry; act(acting, key, slots, carry, step, t) -> (actions [E], Carry);
    advance(acting, key, slots, carry, timestep, step, t): takes in what came of record t − 1, then
    acts; finish(carry, timestep) -> (Trajectory [E, T + 1], Carry of the next chunk);
    go_on(memory, seen) -> Carry, between two chunks.
    """

    begin: Callable[[TimeStep], Carry]
    act: Callable[..., tuple[Array, Carry]]
    advance: Callable[..., tuple[Array, Carry]]
    finish: Callable[[Carry, TimeStep], tuple[Trajectory, Carry]]
    go_on: Callable[[Memory, TimeStep], Carry]


def make_collector(parts: Parts, group_size: int) -> Collector:
    """The collector of a group of ``group_size`` environments."""
    agent, length = parts.agent, parts.config.batch.sequence_length

    def empty(memory: Memory, seen: TimeStep) -> Transition:
        example = jax.eval_shape(
            lambda: agent.act(
                agent.acting(agent.init(jax.random.key(0))),
                seen,
                memory.actors,
                jax.random.split(jax.random.key(0), group_size),
            )
        )
        one = Transition(
            seen.observation, example[0], example[1], seen.reward, seen.discount,
            seen.step_type, seen.legal_actions,
        )  # fmt: skip
        return jax.tree.map(
            lambda x: jnp.zeros((x.shape[0], length + 1, *x.shape[1:]), x.dtype), one
        )

    def begin(timestep: TimeStep) -> Carry:
        return go_on(*remember(parts, initial_memory(parts, group_size), timestep))

    def go_on(memory: Memory, seen: TimeStep) -> Carry:
        records = _put_seen(empty(memory, seen), seen, 0)
        return Carry(records, memory.actors, memory, seen)

    def take_in(carry: Carry, timestep: TimeStep, t: Array | int) -> Carry:
        memory, seen = remember(parts, carry.memory, timestep)
        records = _put_seen(carry.records, seen, t)
        records = records._replace(
            reward=_put(records.reward, seen.reward, t - 1),
            discount=_put(records.discount, seen.discount, t - 1),
        )
        return Carry(records, carry.start, memory, seen)

    def act(
        acting: Acting, key: PRNGKey, slots: Array, carry: Carry, step: Array, t: Array
    ) -> tuple[Array, Carry]:
        act_keys = keys.act_keys(key, slots, step)
        action, behaviour, actors = agent.act(acting, carry.seen, carry.memory.actors, act_keys)
        records = carry.records._replace(
            action=_put(carry.records.action, action, t),
            behaviour=jax.tree.map(lambda b, x: _put(b, x, t), carry.records.behaviour, behaviour),
        )
        memory = carry.memory._replace(actors=actors)
        return action, carry._replace(records=records, memory=memory)

    def advance(
        acting: Acting,
        key: PRNGKey,
        slots: Array,
        carry: Carry,
        timestep: TimeStep,
        step: Array,
        t: Array,
    ) -> tuple[Array, Carry]:
        return act(acting, key, slots, take_in(carry, timestep, t), step, t)

    def finish(carry: Carry, timestep: TimeStep) -> tuple[Trajectory, Carry]:
        carry = take_in(carry, timestep, length)
        memory = carry.memory._replace(actors=next_symmetry(carry.memory.actors))
        return Trajectory(carry.records, carry.start), go_on(memory, carry.seen)

    return Collector(begin, act, advance, finish, go_on)


def _put(buffer: Array, x: Array, t: Array | int) -> Array:
    """``buffer`` [E, T + 1, ...] with x as its record t."""
    return jax.lax.dynamic_update_index_in_dim(buffer, x.astype(buffer.dtype), t, axis=1)


def _put_seen(records: Transition, seen: TimeStep, t: Array | int) -> Transition:
    """What is known of record t before anything is done there."""
    observation, legal_actions = jax.tree.map(
        lambda b, x: _put(b, x, t),
        (records.observation, records.legal_actions),
        (seen.observation, seen.legal_actions),
    )
    return records._replace(
        observation=observation,
        legal_actions=legal_actions,
        step_type=_put(records.step_type, seen.step_type, t),
    )
