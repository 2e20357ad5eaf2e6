"""What every test process shares: eight CPU devices, and quick compilation.

Eight devices let sharded code paths run on real meshes. Most tests run a program once and compile
it first, so XLA's optimisations cost more than they save; tests that train keep them.
"""

import os

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_disable_most_optimizations", True)
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"


@pytest.fixture(autouse=True)
def _optimise_where_something_is_trained(request: pytest.FixtureRequest):
    if "learning" not in request.path.parts:
        yield
        return
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
