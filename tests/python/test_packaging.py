"""The recipes of scripts/packaging name what the build asks for."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "scripts/packaging"
CMAKE = {path: path.read_text() for path in (
    ROOT / "CMakeLists.txt", *ROOT.glob("*/CMakeLists.txt"))}
OPTIONS = set(re.findall(r"^(?:set|option)\((LOCKSTEP_\w+)",
                         CMAKE[ROOT / "CMakeLists.txt"], re.MULTILINE))

# What CMake looks for, as Spack calls it; OpenMP and threads come with the
# compiler.
SPACK = {"MPI": "openmpi", "HDF5": "hdf5", "Boost": "boost", "fmt": "fmt",
         "OpenSSL": "openssl", "PkgConfig": "pkgconfig",
         "CUDAToolkit": "cuda@12:", "GTest": "googletest"}
COMPILER = {"OpenMP", "Threads"}


@pytest.fixture
def package(monkeypatch) -> SimpleNamespace:
    """What package.py says to Spack."""
    said = SimpleNamespace(depends_on={}, variant=set(), git="")

    class CMakePackage:
        def define(self, name, value):
            return name, value

        def define_from_variant(self, name, variant):
            assert variant in said.variant
            return name, variant

    spack = ModuleType("spack.package")
    for name in ("version", "generator", "conflicts"):
        setattr(spack, name, lambda *_, **__: None)
    spack.depends_on = lambda spec, when="", **_: said.depends_on.update(
        {spec: when})
    spack.variant = lambda name, **_: said.variant.add(name)
    cmake = ModuleType("cmake")
    cmake.CMakePackage = CMakePackage
    monkeypatch.setitem(sys.modules, "spack.package", spack)
    monkeypatch.setitem(sys.modules,
                        "spack_repo.builtin.build_systems.cmake", cmake)
    for parent in ("spack", "spack_repo", "spack_repo.builtin",
                   "spack_repo.builtin.build_systems"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    path = PACKAGING / "spack_repo/lockstep/packages/lockstep/package.py"
    names = {"__file__": str(path), "__name__": "package"}
    exec(compile(path.read_text(), path, "exec"), names)
    said.args = dict(names["Lockstep"]().cmake_args())
    said.git = names["Lockstep"].git
    return said


def test_spack_depends_on_all_that_cmake_looks_for(package):
    sought = set(re.findall(r"find_package\((\w+)", "".join(CMAKE.values())))
    assert sought - COMPILER <= set(SPACK)
    for name in sought - COMPILER:
        assert any(re.split(r"[@+~ ]", spec)[0] == re.split("@", SPACK[name])[0]
                   for spec in package.depends_on), name
    least = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)",
                      CMAKE[ROOT / "CMakeLists.txt"])[1]
    assert f"cmake@{least}:" in package.depends_on
    assert package.depends_on[SPACK["CUDAToolkit"]] == "+cuda"
    assert package.depends_on["nccl"] == "+cuda"
