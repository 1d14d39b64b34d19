import dataclasses

from luthier.data import Filtered, JsonLines, Length, Skip, left_out


@dataclasses.dataclass
class Mixed:
    parts: dict
    others: list


def source(folder, name, *lines):
    path = folder / f"{name}.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return JsonLines(str(path))


def test_what_is_left_out_is_counted_and_named(tmp_path):
    good, bad = '{"text": "to be"}', '{"text": '
    one = Filtered(source(tmp_path, "one", good, bad, good), corrupt=Skip())
    two = Filtered(source(tmp_path, "two", bad, good, bad, good), corrupt=Skip())
    whole = Filtered(source(tmp_path, "whole", good), corrupt=Skip())
    lines = left_out(Mixed({"a": one, "b": whole}, [Filtered(two, [Length(1)])]))
    assert lines == [
        f"1 document of 3 cannot be used, left out: {tmp_path}/one.jsonl:2: not JSON: Expecting "
        "value at column 10; correct or remove the line",
        f"2 documents of 4 cannot be used, left out: the first: {tmp_path}/two.jsonl:1: not JSON: "
        "Expecting value at column 10; correct or remove the line",
    ]
    assert left_out(source(tmp_path, "plain", bad)) == []
