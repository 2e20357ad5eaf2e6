"""Every test process sees eight CPU devices, so that sharded code paths run on real meshes."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
