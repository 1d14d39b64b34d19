"""What several processes that train one run agree on."""

from luthier.train.processes.agreeing import Agreed, Agreeing
from luthier.train.processes.facts import check_devices, check_same

__all__ = ["Agreed", "Agreeing", "check_devices", "check_same"]
