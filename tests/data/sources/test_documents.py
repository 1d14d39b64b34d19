from luthier.data import Documents


def test_text_is_utf_8_and_bytes_are_kept():
    source = Documents(["naïve", b"\xff", ""])
    assert list(source) == ["naïve".encode(), b"\xff", b""]
    assert len(source) == 3
    assert source.name(2) == "document 3"


def test_the_text_is_not_in_messages():
    assert repr(Documents(["secret"])) == "Documents(<1>)"
