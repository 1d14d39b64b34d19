"""Settings of the whole test session: eight virtual CPU devices, a cache of programs."""

import atexit
import shutil
import tempfile

import jax

jax.config.update("jax_num_cpu_devices", 8)

# Many tests compile the same small programs: each is compiled once a session.
_CACHE = tempfile.mkdtemp(prefix="luthier-tests-")
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
jax.config.update("jax_compilation_cache_dir", _CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
