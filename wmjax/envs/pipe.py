"""Messages to and from a worker process: a length, a small JSON header, the raw bytes of numpy arrays; never pickle."""

import json
import math
import struct
from typing import Any, BinaryIO

import numpy as np

_LENGTH = struct.Struct("<I")


def send(stream: BinaryIO, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write one message: `header` (JSON values only) and named arrays."""
    described = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    text = json.dumps({"header": header, "arrays": described}).encode()
    stream.write(_LENGTH.pack(len(text)) + text)
    for array in arrays.values():
        stream.write(array.tobytes())
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read one message, waiting for it. Raises EOFError when the other side is gone, even in mid-message."""
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    message = json.loads(_read(stream, length))
    arrays = {}
    for name, code, shape in message["arrays"]:
        dtype = np.dtype(code)
        arrays[name] = np.frombuffer(_read(stream, dtype.itemsize * math.prod(shape)), dtype).reshape(shape)
    return message["header"], arrays


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other side closed the pipe")
    return data
