"""Weights as NumPy arrays: what is hashed, saved and loaded. What makes them of a model is in models/weights.py.

A set of weights is a dict from the path of a layer and the name of its tensor (`blocks.0.mlp.kernel`) to an array, in
the order of the layers. Saved as .npz without pickles, so that loading one runs no code.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from pipeline.errors import UserError
from pipeline.machine.regular_file import open_regular

if TYPE_CHECKING:
    import numpy as np  # functions import it themselves: a run that is not there is refused without it

Weights: TypeAlias = "dict[str, np.ndarray]"
SAFETENSORS = ".safetensors"
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}


def digest(weights: Weights) -> str:
    """sha256 over names, dtypes, shapes and bytes: two runs with one digest ended with the same weights to the bit."""
    import numpy as np

    total = hashlib.sha256()
    for name, array in weights.items():
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def digests(weights: Weights, names: Iterable[str]) -> dict[str, str]:
    """The digest of each of these weights by itself, by name."""
    return {name: digest({name: weights[name]}) for name in names}


def save(path: Path, weights: Weights) -> None:
    """Write `weights` as an .npz of plain arrays."""
    import numpy as np

    np.savez(path, **weights)  # type: ignore[arg-type]


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """As `save`, under that very name: NumPy adds .npz to one without it."""
    import numpy as np

    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> Weights:
    """Read what `save` wrote. Raises UserError for a file that is missing, damaged or holds pickled objects.

    Nothing is unpacked that would take more memory than the file takes on the disk.
    """
    import numpy as np

    try:
        with open_regular(path) as file:
            _check_sizes(file)
            with np.load(file, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise UserError(f"{path}: not a readable set of weights ({error})") from error
    except Exception as error:  # zipfile and zlib raise types of their own for damaged files
        raise UserError(f"{path}: damaged ({type(error).__name__}: {error})") from error


def safetensors(path: Path) -> Weights:
    """The tensors of a .safetensors file by their own names; bfloat16, which NumPy lacks, as float32.

    Raises UserError for a file that is missing, damaged or has tensors of another kind.
    """
    from safetensors import SafetensorError, deserialize

    try:
        with open_regular(path) as file:
            found = deserialize(file.read())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a readable set of weights ({error})") from error
    return {name: _array(tensor, f"{path}: {name}") for name, tensor in found}


def _array(tensor: Mapping[str, Any], named: str) -> np.ndarray:
    import numpy as np

    dtype, shape, data = tensor["dtype"], tensor["shape"], tensor["data"]
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)
    if dtype not in DTYPES:
        raise UserError(f"{named} is {dtype}; weights are {', '.join(DTYPES)} or BF16")
    return np.frombuffer(data, DTYPES[dtype]).reshape(shape)


def _check_sizes(file: BinaryIO) -> None:
    """Refuse an archive that unpacks to more than it is, by its own list of contents: `save` compresses nothing."""
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if unpacked > size:
        raise ValueError(f"it unpacks to {unpacked:,} bytes from {size:,}, and a run's weights are not compressed")
