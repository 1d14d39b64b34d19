"""What several processes that train one run agree on."""

from luthier.train.processes.agreeing import Agreed, Agreeing
from luthier.train.processes.facts import check_devices, check_same
from luthier.train.processes.times import HOSTS_FILE, HostTimes, Times, laggards

__all__ = [
    "HOSTS_FILE",
    "Agreed",
    "Agreeing",
    "HostTimes",
    "Times",
    "check_devices",
    "check_same",
    "laggards",
]
