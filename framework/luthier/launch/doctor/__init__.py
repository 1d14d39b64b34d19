"""The doctor: what the hosts of a run can do, measured, and which of them is ill."""

from luthier.launch.doctor.examining import Examination, examine
from luthier.launch.doctor.findings import findings

__all__ = ["Examination", "examine", "findings"]
