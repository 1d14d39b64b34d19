"""CRC-32C, the checksum of TFRecord files."""

from __future__ import annotations

import functools

import numpy as np

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41 with its bits reversed
_SHORT = 512


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of bytes.

    Args:
      data: Any bytes.

    Returns:
      The checksum, in 0..2**32 - 1.

    Source: RFC 3720, appendix B.4. The checksum is linear over GF(2), so long data is cut into
      columns whose checksums run side by side and are then joined pairwise.
    """
    if len(data) < _SHORT:
        return _bytewise(data, 0xFFFFFFFF) ^ 0xFFFFFFFF
    whole = np.frombuffer(data, np.uint8)
    rounds = (len(whole).bit_length() - 1) // 2
    num_columns = 1 << rounds
    # Zeros in front change nothing once the initial value is folded into the first four bytes.
    length = -(-len(whole) // num_columns)
    padded = np.zeros(num_columns * length, np.uint8)
    start = len(padded) - len(whole)
    padded[start:] = whole
    padded[start : start + 4] ^= 0xFF
    columns = padded.reshape(num_columns, length)
    table, state = _table(), np.zeros(num_columns, np.uint32)
    for place in range(length):
        state = table[(state ^ columns[:, place]) & 0xFF] ^ (state >> np.uint32(8))
    operator = _zeros(length)
    while len(state) > 1:
        state = _apply(operator, state[0::2]) ^ state[1::2]
        operator = _apply(operator, operator)
    return int(state[0]) ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | memoryview) -> int:
    """Return the checksum as TFRecord stores it: rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _bytewise(data: bytes | memoryview, state: int) -> int:
    table = _list()
    for byte in bytes(data):
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state


@functools.cache
def _table() -> np.ndarray:
    """Return the state after each byte, from state 0; uint32 [256]."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


@functools.cache
def _list() -> list[int]:
    return _table().tolist()


@functools.lru_cache(maxsize=64)
def _zeros(count: int) -> np.ndarray:
    """Return what `count` zero bytes make of each bit of the state; uint32 [32]."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    result, power = bits.copy(), _table()[bits & 0xFF] ^ (bits >> np.uint32(8))
    while count:
        if count & 1:
            result = _apply(power, result)
        power = _apply(power, power)
        count >>= 1
    return result


def _apply(operator: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Apply a linear map, given by the images of the 32 bits, to states; uint32 [n]."""
    result = np.zeros(len(states), np.uint32)
    for bit in range(32):
        result ^= np.where(states >> np.uint32(bit) & np.uint32(1), operator[bit], np.uint32(0))
    return result
