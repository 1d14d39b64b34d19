import math

from luthier.durations import Progress
from luthier.train.early_stopping import Patience
from luthier.train.loop import Position


def test_a_position_survives_a_checkpoint():
    for position in (
        Position(),
        Position(Progress(3, 4, 0.5, 6.0), Patience(1.0, 2, 3), "no improvement", True),
    ):
        again = Position.from_dict(position.to_dict())
        assert again.to_dict() == position.to_dict()
        assert math.isnan(again.patience.best) == math.isnan(position.patience.best)
