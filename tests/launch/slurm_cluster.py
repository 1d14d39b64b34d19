"""A SLURM of one's own: a controller and two nodes on this machine, from a private folder."""

import contextlib
import getpass
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import time

NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scontrol", "scancel")
SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
CPUS = 8  # pretended: nodes share what this machine has

CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort={controller}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd-%n.log
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_interval=5
ReturnToService=2
SwitchType=switch/none
MpiDefault=none
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmctldTimeout=60
SlurmdTimeout=60
InactiveLimit=0
KillWait=20
MinJobAge=600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
SlurmdParameters=config_overrides
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{second}] CPUs={cpus} State=UNKNOWN
PartitionName=low Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=10
"""  # noqa: E501


def missing():
    """Return the programs that are needed and not here."""
    return [name for name in NEEDED if shutil.which(name, path=SEARCHED) is None]


def _free_ports():
    """Return three free ports, the last two in a row."""
    while True:
        with contextlib.ExitStack() as held:
            found = []
            for port in (0, 0, None):
                opened = held.enter_context(socket.socket())
                try:
                    opened.bind(("127.0.0.1", found[-1] + 1 if port is None else port))
                except (OSError, OverflowError):
                    break
                found.append(opened.getsockname()[1])
            if len(found) == 3:
                return found


class SlurmCluster:
    """The daemons, and the environment in which its commands find them.

    Args:
      place: Where everything of it is kept; a short path, for a socket is in it.
    """

    def __init__(self, place: pathlib.Path):
        self.place = place
        self._daemons = []
        self.variables = {"SLURM_CONF": str(place / "slurm.conf"), "PATH": SEARCHED}

    @property
    def environment(self):
        """The variables of this process as they are now, and where this cluster is."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        return inherited | self.variables

    def __enter__(self):
        place = self.place
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o755)
        (place / "state").mkdir()
        host, user = socket.gethostname().partition(".")[0], getpass.getuser()
        controller, first, second = _free_ports()
        known = {"place": place, "host": host, "user": user, "cpus": CPUS}
        ports = {"controller": controller, "first": first, "second": second}
        (place / "slurm.conf").write_text(CONFIGURATION.format(**known, **ports))
        key = place / "munge.key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o400)
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_all(self):
        place = self.place
        files = [f"--{n}={place}/munge.{n.partition('-')[0]}" for n in ("socket", "log-file")]
        files += [f"--key-file={place}/munge.key", f"--pid-file={place}/munge.pid"]
        self._start("munged", "--foreground", "--force", *files, f"--seed-file={place}/munge.seed")
        self._await("munge", lambda: (place / "munge.socket").exists())
        self._start("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            (place / f"spool-{node}").mkdir()
            self._start("slurmd", "-D", "-N", node)
        self._await("the nodes", lambda: self.run("sinfo", "-h", "-o", "%D %t") == "2 idle\n")

    def _start(self, *command):
        program = shutil.which(command[0], path=SEARCHED)
        with open(self.place / f"{command[0]}-{len(self._daemons)}.out", "ab") as out:
            self._daemons.append(
                subprocess.Popen(
                    [program, *command[1:]],
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )

    def _await(self, what, is_there, seconds=60):
        deadline = time.monotonic() + seconds
        while not is_there():
            ended = [d.args for d in self._daemons if d.poll() is not None]
            assert not ended, f"{ended} ended: {self.logs()}"
            assert time.monotonic() < deadline, f"{what} did not come up: {self.logs()}"
            time.sleep(0.2)

    def logs(self):
        """Return the last lines of all daemons."""
        files = [*self.place.glob("*.log"), *self.place.glob("*.out")]
        return "\n".join(f"{f.name}: {f.read_text(errors='replace')[-1500:]}" for f in files)

    def run(self, *command):
        """Return what a command of SLURM prints; nothing where it fails."""
        program = shutil.which(command[0], path=SEARCHED)
        process = subprocess.run(
            [program, *command[1:]], env=self.environment, capture_output=True, text=True
        )
        return process.stdout

    def __exit__(self, *unused):
        if len(self._daemons) > 1:
            self.run("scancel", "--user", getpass.getuser())
            deadline = time.monotonic() + 30
            while self.run("squeue", "-h") and time.monotonic() < deadline:
                time.sleep(0.3)
        for daemon in reversed(self._daemons):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGTERM)
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
