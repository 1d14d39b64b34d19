"""Files that hold a run of byte records: ArrayRecord, Bagz, TFRecord."""

from luthier.data.sources.containers.array_record import ArrayRecord
from luthier.data.sources.containers.bagz import Bagz
from luthier.data.sources.containers.container import Container
from luthier.data.sources.containers.tf_record import TFRecord

__all__ = ["ArrayRecord", "Bagz", "Container", "TFRecord"]
