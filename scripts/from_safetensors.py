#!/usr/bin/env python3
"""Writes the tensors of a safetensors file as a weight file for --init.

    scripts/from_safetensors.py model.safetensors weights.h5
    train ... --init weights.h5

Names and shapes stay as they are, values become fp32. Needs h5py and
safetensors, which checks sizes and offsets before it reads, and runs nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import lockstep

lockstep.use_an_interpreter_with("h5py", "numpy", "safetensors")

import h5py  # noqa: E402
import numpy as np  # noqa: E402
from safetensors import SafetensorError, deserialize  # noqa: E402


DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


def as_fp32(dtype: str, data: bytes) -> np.ndarray:
    """The values of a tensor, in one axis."""
    if dtype == "BF16":  # the upper half of fp32, which NumPy does not know
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    if dtype not in DTYPES:
        raise ValueError(f"values of type {dtype} are no weights")
    return np.frombuffer(data, DTYPES[dtype]).astype("<f4")


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor by name, in fp32."""
    tensors = {}
    for name, entry in deserialize(path.read_bytes()):
        if not name or "/" in name or name in (".", ".."):
            raise ValueError(f"{path}: '{name}' is no name of a parameter")
        values = as_fp32(entry["dtype"], bytes(entry["data"]))
        tensors[name] = values.reshape(entry["shape"])
    if not tensors:
        raise ValueError(f"{path} holds no tensors")
    return tensors


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="FILE.safetensors")
    parser.add_argument("target", type=Path, help="weight file to write")
    args = parser.parse_args(arguments)
    temporary = args.target.with_name(args.target.name + ".partial")
    try:
        tensors = read_tensors(args.source)
        with h5py.File(temporary, "w") as file:
            for name, values in tensors.items():
                file.create_dataset(name, data=values, fletcher32=values.ndim > 0,
                                    chunks=True if values.ndim > 0 else None)
        os.replace(temporary, args.target)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(tensors)} tensors in {args.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
