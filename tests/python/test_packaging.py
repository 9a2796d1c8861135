"""The recipes of scripts/packaging name what the build asks for."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "scripts/packaging"
SPACK = PACKAGING / "spack_repo/lockstep/packages/lockstep/package.py"
MAIN = (ROOT / "CMakeLists.txt").read_text()

# What CMake looks for, as Spack calls it.
PACKAGES = {"MPI": "openmpi", "HDF5": "hdf5", "Boost": "boost", "fmt": "fmt",
            "OpenSSL": "openssl", "PkgConfig": "pkgconfig",
            "CUDAToolkit": "cuda", "GTest": "googletest"}
OF_THE_COMPILER = {"OpenMP", "Threads"}


def test_spack_depends_on_all_that_cmake_looks_for():
    depends = dict(re.findall(r'depends_on\("(\w+)([^"]*)"',
                              SPACK.read_text()))
    files = [MAIN, *(path.read_text() for path in ROOT.glob("*/CMakeLists.txt"))]
    sought = {name: version for text in files for name, version in re.findall(
        r"find_package\((\w+) ?([\d.]*)", text)}
    for name in sought.keys() - OF_THE_COMPILER:
        assert PACKAGES[name] in depends, name
    assert {"openblas", "nccl"} <= depends.keys()
    least = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)", MAIN)[1]
    assert depends["cmake"] == f"@{least}:"
    assert f"{depends['cuda'].strip('@:')}.0" == sought["CUDAToolkit"]


def test_recipes_set_options_that_there_are():
    options = set(re.findall(r"^(?:set|option)\((LOCKSTEP_\w+)", MAIN,
                             re.MULTILINE))
    for recipe in (SPACK, PACKAGING / "Dockerfile", PACKAGING / "lockstep.def"):
        used = set(re.findall(r"LOCKSTEP_\w+", recipe.read_text()))
        assert used and used <= options, recipe.name
