"""Lockstep as a package of Spack 1.0 or later."""

from pathlib import Path

from spack.package import *
from spack_repo.builtin.build_systems.cmake import CMakePackage


class Lockstep(CMakePackage):
    """Data-parallel training of transformer language models under MPI."""

    # The checkout that this file is in, as it is committed.
    git = Path(__file__).resolve().parents[6].as_uri()
    version("main", branch="main")

    variant("cuda", default=False, description="Train on GPUs, over NCCL")
    variant("tests", default=False, description="Build the tests")

    generator("ninja")
    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.24:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("openmpi@4.1:")
    depends_on("hdf5~mpi")
    depends_on("boost+program_options")
    depends_on("openblas threads=openmp")
    depends_on("fmt")
    depends_on("openssl")
    depends_on("cuda@12:", when="+cuda")
    depends_on("nccl", when="+cuda")
    depends_on("googletest", type="build", when="+tests")
    conflicts("%gcc@:10", msg="Lockstep is written in C++20")

    def cmake_args(self):
        return [
            self.define_from_variant("LOCKSTEP_CUDA", "cuda"),
            self.define_from_variant("LOCKSTEP_TESTS", "tests"),
            # Spack's compilers know the target.
            self.define("LOCKSTEP_ARCH", ""),
        ]
