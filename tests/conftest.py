"""What every test process shares: eight CPU devices, and quick compilation.

Eight devices let sharded code paths run on real meshes. Most tests run a program once and compile
it first, so XLA's optimisations cost more than they save; tests that train keep them. Programs that
several tests of one process share, its commands included, are compiled once.
"""

import os

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_disable_most_optimizations", True)
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
if jax.__version_info__ < (0, 11):
    # Its new way to write fused loops takes a third longer to compile; later ones know no other.
    flags = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join([*flags, "--xla_cpu_use_fusion_emitters=false"])


@pytest.fixture(scope="session", autouse=True)
def _compile_once(tmp_path_factory: pytest.TempPathFactory):
    # A directory for each worker: JAX does not write its cache atomically.
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    directory = str(tmp_path_factory.mktemp("compiled"))
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = directory
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"


@pytest.fixture(autouse=True)
def _optimise_where_something_is_trained(request: pytest.FixtureRequest):
    if "learning" not in request.path.parts:
        yield
        return
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def compilations():
    """A list that grows by one at every compilation."""
    seen, watching = [], [True]

    def listen(event, *_, **__):
        if watching and "backend_compile" in event:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    watching.clear()
