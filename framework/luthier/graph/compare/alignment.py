"""Alignment of the elements of two lists, so that an insertion is one change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

# Up to this many comparisons (two lists of 500: some 0.03 s) the longest common subsequence is
# found exactly, by the table of all pairs; longer lists are matched by occurrence in n log n.
_EXACT = 250_000

Pair = tuple[int | None, int | None]


def align(
    equal_a: Sequence[Any],
    equal_b: Sequence[Any],
    alike_a: Sequence[Any],
    alike_b: Sequence[Any],
) -> list[Pair]:
    """Align two lists: pairs of places, in order; None where an element has no partner.

    Args:
      equal_a: A key for each element of the first list; equal elements have equal keys.
      equal_b: The same for the second list.
      alike_a: Coarser keys, such as the class: between equal elements, those are paired next.
        An element with an equal one in another place of the other list is left alone: it moved.
      alike_b: The same for the second list.

    Returns:
      Pairs (place in the first list, place in the second list).
    """
    # Equal elements in the same order (a common subsequence) are the anchors; between two anchors
    # the rest is paired by class, so that a changed layer is compared with its old self. Elements
    # that are equal but out of order are taken out first: the differ merges each into one move.
    pairs: list[Pair] = []
    start_a = start_b = 0
    anchors = common(equal_a, equal_b)
    moved_a, moved_b = _moved(equal_a, equal_b, anchors)
    # The last pair is no anchor: it ends the stretch behind the last one.
    for end_a, end_b in [*anchors, (len(equal_a), len(equal_b))]:
        if start_a < end_a or start_b < end_b:
            # `_between` must not see the moved ones: it pairs by position where the lengths agree.
            kept_a = [i for i in range(start_a, end_a) if i not in moved_a]
            kept_b = [j for j in range(start_b, end_b) if j not in moved_b]
            between = _between([alike_a[i] for i in kept_a], [alike_b[j] for j in kept_b])
            alone: list[Pair] = [(i, None) for i in range(start_a, end_a) if i in moved_a]
            alone_b: list[Pair] = [(None, j) for j in range(start_b, end_b) if j in moved_b]
            inside = [
                (None if i is None else kept_a[i], None if j is None else kept_b[j])
                for i, j in between
            ]
            pairs += _merged(inside, alone, alone_b)
        # Not for the last pair, where both ends are the lengths, so that one of them is enough.
        if end_a < len(equal_a):
            pairs.append((end_a, end_b))
        start_a, start_b = end_a + 1, end_b + 1
    return pairs


def _moved(
    equal_a: Sequence[Any], equal_b: Sequence[Any], anchors: Sequence[tuple[int, int]]
) -> tuple[set[int], set[int]]:
    """Return the places of equal elements that are in another order in the two lists."""
    taken_a, taken_b = ({pair[side] for pair in anchors} for side in (0, 1))
    places: dict[Any, list[int]] = {}
    for j in range(len(equal_b) - 1, -1, -1):
        if j not in taken_b:
            places.setdefault(equal_b[j], []).append(j)
    moved_a, moved_b = set(), set()
    for i, key in enumerate(equal_a):
        if i not in taken_a and places.get(key):
            moved_a.add(i)
            moved_b.add(places[key].pop())
    return moved_a, moved_b


def _merged(pairs: list[Pair], alone_a: list[Pair], alone_b: list[Pair]) -> list[Pair]:
    """Insert elements without a partner between pairs, in the order of both lists."""
    made: list[Pair] = []
    rest = {0: alone_a[::-1], 1: alone_b[::-1]}
    for pair in [*pairs, None]:
        for side in (0, 1):
            place = None if pair is None else pair[side]
            if pair is not None and place is None:
                continue
            while rest[side] and (place is None or (rest[side][-1][side] or 0) < place):
                made.append(rest[side].pop())
        if pair is not None:
            made.append(pair)
    return made


def _between(alike_a: Sequence[Any], alike_b: Sequence[Any]) -> list[Pair]:
    """Pair the elements of one class among elements of which no two are equal."""
    # As many elements as before: each was most likely changed in place, even to another class.
    if len(alike_a) == len(alike_b):
        return [(index, index) for index in range(len(alike_a))]
    pairs: list[Pair] = []
    start_a = start_b = 0
    for end_a, end_b in [*common(alike_a, alike_b), (len(alike_a), len(alike_b))]:
        pairs += [(index, None) for index in range(start_a, end_a)]
        pairs += [(None, index) for index in range(start_b, end_b)]
        if end_a < len(alike_a):
            pairs.append((end_a, end_b))
        start_a, start_b = end_a + 1, end_b + 1
    return pairs


def common(a: Sequence[Any], b: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the places of a long common subsequence: the longest where that is cheap to find.

    Args:
      a: Keys of the first list.
      b: Keys of the second list.
    """
    # A common head and tail belong to some longest common subsequence, so only the middle needs
    # the quadratic table; most lists differ in one place, and have no middle to speak of.
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    if len(middle_a) * len(middle_b) <= _EXACT:
        middle = _longest(middle_a, middle_b)
    else:
        middle = _by_occurrence(middle_a, middle_b)
    return [
        *((index, index) for index in range(head)),
        *((head + i, head + j) for i, j in middle),
        *((len(a) - tail + k, len(b) - tail + k) for k in range(tail)),
    ]


def _longest(a: Sequence[Any], b: Sequence[Any]) -> list[tuple[int, int]]:
    """Return a longest common subsequence by dynamic programming."""
    # `rows[i][j]` is the length for `a[i:]` and `b[j:]`: filled from the end, so that the pairs can
    # be read off from the start. On a tie (`>=`) the element of `a` is skipped first.
    rows = [[0] * (len(b) + 1)]
    for left in reversed(a):
        last, row = rows[-1], [0] * (len(b) + 1)
        for j in range(len(b) - 1, -1, -1):
            row[j] = last[j + 1] + 1 if left == b[j] else max(last[j], row[j + 1])
        rows.append(row)
    rows.reverse()
    pairs, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif rows[i + 1][j] >= rows[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def _by_occurrence(a: Sequence[Any], b: Sequence[Any]) -> list[tuple[int, int]]:
    """Match equal elements by occurrence, first with first; keep the matches that are in order."""
    places: dict[Any, int] = {}
    for index, key in enumerate(_numbered(b)):
        places[key] = index
    matches = [(i, places[key]) for i, key in enumerate(_numbered(a)) if key in places]
    return _increasing(matches)


def _numbered(elements: Sequence[Any]) -> list[tuple[Any, int]]:
    counts: dict[Any, int] = {}
    keys = []
    for element in elements:
        counts[element] = counts.get(element, 0) + 1
        keys.append((element, counts[element]))
    return keys


def _increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a longest subsequence whose second numbers rise (patience sorting)."""
    ends: list[int] = []  # the smallest second number that a subsequence of each length ends in
    last: list[int] = []  # which pair that is
    before: list[int] = []
    for index, (_, second) in enumerate(pairs):
        length = bisect_left(ends, second)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(second)
            last.append(index)
        else:
            ends[length], last[length] = second, index
    chosen, index = [], last[-1] if last else -1
    while index >= 0:
        chosen.append(pairs[index])
        index = before[index]
    return chosen[::-1]
