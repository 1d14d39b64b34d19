from luthier.layers import Tokens


def test_single_documents():
    tokens = Tokens.single(2, 3)
    assert tokens.positions_BL.tolist() == [[0, 1, 2]] * 2
    assert tokens.segments_BL.tolist() == [[1, 1, 1]] * 2
