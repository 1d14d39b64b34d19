"""Settings of the whole test session: eight virtual CPU devices."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
