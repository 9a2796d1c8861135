"""The archive of scripts/bundle.sh, unpacked elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hosts import ROOT, launch


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    if shutil.which("patchelf") is None:
        pytest.skip("patchelf is not installed")
    folder = tmp_path_factory.mktemp("bundle")
    build = launch.find_program("train").parent
    subprocess.run([ROOT / "scripts/bundle.sh", "--build", build, "-o",
                    folder / "bundle.tar.gz"], check=True, cwd=ROOT)
    with tarfile.open(folder / "bundle.tar.gz") as archive:
        archive.extractall(folder)
    return next(path for path in folder.iterdir() if path.is_dir())


def libraries(program: Path) -> dict[str, str]:
    text = subprocess.run(["ldd", program], capture_output=True, text=True,
                          check=True).stdout
    return dict(re.findall(r"(\S+) => (\S+)", text))


def test_a_bundle_brings_all_but_mpi_and_the_c_library(bundle):
    for program in ("train", "bench"):
        found = libraries(bundle / "bin" / program)
        own = {name for name, path in found.items()
               if (bundle / "lib") in Path(os.path.normpath(path)).parents}
        assert {"libstdc++.so.6", "libgomp.so.1"} <= own
        assert any(name.startswith("libhdf5") for name in own)
        assert not {name for name in own
                    if re.match(r"lib(c|m|mpi|cuda|pmix)\.so", name)}
        assert "libmpi.so.40" in found and "libc.so.6" in found


def test_a_bundle_trains_where_it_was_unpacked(bundle, tmp_path):
    subprocess.run(
        [*launch.mpirun(2), bundle / "bin/train", "--model-size", "test",
         "--vocab-size", "64", "--context-length", "16", "--data", "random",
         "--device", "cpu", "--steps", "2", "--output", tmp_path / "run.h5"],
        check=True, env=launch.environment(), cwd=bundle / "share/lockstep",
        timeout=120)
    assert (tmp_path / "run.h5").exists()


def test_the_scripts_of_a_bundle_find_its_programs(bundle):
    environment = launch.environment()
    environment.pop("LOCKSTEP_BUILD", None)
    said = subprocess.run(
        ["bash", "-c", ". slurm/job.sh; find_build"], text=True, check=True,
        env=environment, cwd=bundle / "share/lockstep", capture_output=True)
    assert said.stdout.strip() == str(bundle / "bin")
    doctor = subprocess.run(
        [bundle / "share/lockstep/scripts/doctor"], text=True,
        env=environment, capture_output=True)
    assert "ok    Programs     ../../bin/train" in doctor.stdout
