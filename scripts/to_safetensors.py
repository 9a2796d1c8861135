#!/usr/bin/env python3
"""Writes the weights of a checkpoint, or of a weight file, as safetensors.

    scripts/to_safetensors.py ck/latest model.safetensors

Names and shapes stay as they are. A checkpoint that is not what was written
is refused. Needs h5py and safetensors.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import lockstep

lockstep.use_an_interpreter_with("h5py", "numpy", "safetensors")

import h5py  # noqa: E402
import numpy as np  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

SEAL_BYTES = 512
TITLE = b"Lockstep checkpoint\n"


def is_checkpoint(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(TITLE)) == TITLE


def verify(path: Path) -> None:
    """Raises ValueError unless a checkpoint has the SHA-256 in its user block."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        seal = file.read(SEAL_BYTES)
        while piece := file.read(1 << 20):
            digest.update(piece)
    if f"sha256 {digest.hexdigest()} ".encode() not in seal:
        raise ValueError(f"{path} is damaged: it is not what was written")


def read_weights(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The fp32 tensors by name, and what is worth knowing of them."""
    metadata = {"format": "pt"}
    checkpoint = is_checkpoint(path)
    if checkpoint:
        verify(path)
    with h5py.File(path, "r") as file:
        group = file["weights"] if checkpoint else file
        if checkpoint:
            metadata["step"] = str(int(file.attrs["step"]))
            for name, value in file["options"].attrs.items():
                metadata[f"option.{name}"] = str(value)
        tensors = {}
        for name in group:
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise ValueError(f"{path}: '{name}' leads out of the file")
            data = group[name]
            if not isinstance(data, h5py.Dataset):
                continue
            if data.external or data.is_virtual:
                raise ValueError(f"{path}: '{name}' keeps its values elsewhere")
            tensors[name] = data[()].astype(np.float32, casting="same_kind")
    if not tensors:
        raise ValueError(f"{path} holds no tensors")
    return tensors, metadata


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path,
                        help="a checkpoint, or what --save-weights wrote")
    parser.add_argument("target", type=Path, help="FILE.safetensors to write")
    args = parser.parse_args(arguments)
    try:
        tensors, metadata = read_weights(args.source)
        save_file(tensors, args.target, metadata)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(tensors)} tensors in {args.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
