"""What `bench` writes: one table of results a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from lockstep.runfile import NotARecord, attributes, strings, open_record


@dataclass
class Benchmark:
    """A table of results. `columns` are of equal length: texts as lists,
    numbers as arrays in which nan could not be measured."""
    path: Path
    name: str  # attention, collectives, gemm, …
    attrs: dict[str, Any]
    columns: dict[str, list[str] | np.ndarray]
    units: dict[str, str]

    @property
    def rows(self) -> list[dict[str, Any]]:
        names = list(self.columns)
        return [dict(zip(names, row)) for row in zip(*self.columns.values())]

    @property
    def device_name(self) -> str:
        return str(self.attrs.get("gpu_name") or self.attrs.get("cpu_name")
                   or self.attrs.get("device", ""))

    @property
    def ranks(self) -> int:
        return int(self.attrs.get("world_size", 1))


def _tables(file: h5py.File) -> list[str]:
    return [name for name, item in file.items()
            if isinstance(item, h5py.Dataset) and item.dtype.names]


def is_benchmark(path: Path) -> bool:
    """Whether a file is of `bench` rather than of `train`."""
    with open_record(path) as file:
        return "steps" not in file and bool(_tables(file))


def read_benchmark(path: Path) -> Benchmark:
    with open_record(path) as file:
        names = _tables(file)
        if len(names) != 1:
            raise NotARecord(f"{path}: no results of a benchmark, it has "
                             f"{len(names)} tables")
        table = file[names[0]]
        rows = table[()]
        units = [u.decode() if isinstance(u, bytes) else str(u)
                 for u in table.attrs.get("units", [])]
        fields = rows.dtype.names
        return Benchmark(
            path, names[0], attributes(file),
            {f: strings(rows[f]) if rows[f].dtype.kind == "S" else rows[f]
             for f in fields},
            dict(zip(fields, units + [""] * len(fields))))
