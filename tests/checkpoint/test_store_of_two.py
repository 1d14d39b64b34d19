"""Two real processes save together."""

import json
import socket
import subprocess
import sys

import pytest

PROCESS = """
import errno, json, os, sys, time
import jax
index, address, directory = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.distributed.initialize(address, 2, index)
import numpy as np
from luthier.checkpoint import Store, commit
from luthier.errors import CheckpointError

mesh = jax.make_mesh((2,), ("data",))
sharding = jax.NamedSharding(mesh, jax.P("data"))
array = jax.make_array_from_callback((4,), sharding, lambda at: np.arange(4.0)[at])
write = commit.write

def slowly(path, content):
    if content.step == 2:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    time.sleep(1.0)
    return write(path, content)

commit.write = slowly
told = {}
for again in range(2):  # a second store of the same directory begins anew
    with Store(directory) as store:
        for step in (1, 2, 3):
            store.save(step, {"a": array})
            try:
                store.wait()
            except CheckpointError as error:
                told[step] = str(error)
            else:
                told[step] = os.path.exists(f"{directory}/{step}/commit.json")
print(json.dumps(told), flush=True)
"""


@pytest.mark.timeout(180)
def test_all_wait_for_the_commit_and_raise_what_it_fails_over(tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    directory = str(tmp_path / "checkpoints")
    command = [sys.executable, "-c", PROCESS]
    processes = [
        subprocess.Popen([*command, str(i), address, directory], stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    told = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    full = (
        f"{directory}: step 2 was not saved: the disk is full; free some space and rerun the "
        "command: it continues from step {}"
    )
    assert told[0] == told[1] == {"1": True, "2": full.format(3), "3": True}
