"""The batch scripts of slurm/, submitted to a real Slurm."""

from __future__ import annotations

import re
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import h5py
import hosts
import pytest
import slurm_cluster
from hosts import ROOT, launch
from slurm_cluster import Cluster

TINY = ["--model-size", "test", "--vocab-size", "64", "--context-length", "16",
        "--data", "random", "--device", "cpu", "--progress", "plain"]
# Steps that take long enough to be stopped at one.
ENDLESS = ["--model-size", "test", "--vocab-size", "64", "--context-length",
           "128", "--batch-size", "32", "--data", "random", "--device", "cpu",
           "--steps", "1000000"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    missing = slurm_cluster.missing_programs()
    if missing:
        pytest.skip(f"Slurm is not installed: there is no {', '.join(missing)}")
    if obstacle := hosts.obstacle():
        pytest.skip(f"no nodes for Slurm: {obstacle}")
    folder = tmp_path_factory.mktemp("slurm")
    with hosts.running(folder, ["node1", "node2"]) as nodes, \
            slurm_cluster.running(nodes, cores=2) as made:
        # What users have: a folder with the scripts and the programs.
        for name in ("slurm", "scripts", "inputs"):
            (made.folder / name).symlink_to(ROOT / name)
        yield made


@contextmanager
def launching_by(cluster: Cluster, name: str):
    cluster.environment["LOCKSTEP_LAUNCHER"] = name
    yield
    del cluster.environment["LOCKSTEP_LAUNCHER"]


@pytest.fixture(autouse=True)
def empty_cluster(cluster):
    """No test leaves jobs to the next."""
    yield
    cluster.slurm("scancel", "--me")


def submit(cluster: Cluster, *words: str, nodes: int = 1) -> str:
    """The number of a job that asks for two tasks a node, on a core and a GPU
    each, where a real one asks for more."""
    return cluster.slurm(
        "sbatch", "--parsable", f"--nodes={nodes}", "--ntasks-per-node=2",
        "--cpus-per-task=1", "--gpus-per-node=2", "--time=5", *words).strip()


def wait_for(cluster: Cluster, job: str, *states: str, seconds: float = 60):
    deadline = time.monotonic() + seconds
    while (found := cluster.state(job)["JobState"]) not in states:
        assert time.monotonic() < deadline and found not in (
            "FAILED", "TIMEOUT", "NODE_FAIL"), f"{job} is {found}\n{logs(cluster, job)}"
        time.sleep(0.2)


def start_now(cluster: Cluster, job: str):
    """Spares a requeued job the two minutes that Slurm lets it wait, all but
    what its earlier start needs to be gone: its PMIx sockets, and the second in
    which its credential was revoked."""
    wait_for(cluster, job, "PENDING")
    deadline = time.monotonic() + 60
    while list(cluster.folder.glob("spool-*/stepd.slurm.pmix.*")):
        assert time.monotonic() < deadline, logs(cluster, job)
        time.sleep(0.2)
    cluster.slurm("scontrol", "update", f"JobId={job}", "StartTime=now+2")


def logs(cluster: Cluster, job: str) -> str:
    """The ends of what a job and Slurm wrote, for a failed test's message."""
    number = job.partition("_")[0]
    files = [*cluster.folder.glob(f"slurm-{number}*.out"),
             *cluster.folder.glob(f"runs/*-{number}/*.log"),
             *cluster.folder.glob("slurm*.log")]
    return "\n".join(f"--- {file.name}\n{file.read_text()[-2000:]}"
                     for file in files)


def steps_of(record: Path) -> list[int]:
    with h5py.File(record) as run:
        return run["steps/step"][:].tolist()


def wait_for_step(cluster: Cluster, job: str, record: Path, step: int):
    deadline = time.monotonic() + 60
    while not record.exists() or steps_of(record)[-1:] < [step]:
        assert time.monotonic() < deadline, logs(cluster, job)
        time.sleep(0.2)


@pytest.mark.parametrize("name", ["srun", "mpirun"])
def test_one_node_trains_under_either_launcher(cluster, name):
    with launching_by(cluster, name):
        job = submit(cluster, "slurm/train.sbatch", *TINY, "--steps", "3")
    wait_for(cluster, job, "COMPLETED")
    run = cluster.folder / f"runs/train-{job}"
    with h5py.File(run / "run.h5") as record:
        assert record.attrs["world_size"] == 2
        assert record.attrs["status"] == "finished"
        assert record["steps/step"][:].tolist() == [1, 2, 3]
    facts = (run / "run.environment.txt").read_text()
    assert "lockstep 0." in facts and f"SLURM_JOB_ID={job}" in facts
    assert (run / "checkpoints/latest").exists()
    # A core for each rank, by the table at the start.
    table = (run / "run.log").read_text().partition(" rank  host")[2].splitlines()
    cores = [row.split()[-1] for row in table[1:3]]
    assert all(core.isdigit() for core in cores) and len(set(cores)) == 2, table


def test_several_nodes_train_one_model(cluster):
    job = submit(cluster, "slurm/multi_node.sbatch", *TINY, "--steps", "3",
                 "--sync", "fsdp", nodes=2)
    wait_for(cluster, job, "COMPLETED")
    with h5py.File(cluster.folder / f"runs/multi-node-{job}/run.h5") as record:
        assert record.attrs["world_size"] == 4
        assert record.attrs["sync"] == "fsdp"
    assert "on node[1-2]" in (cluster.folder / f"runs/multi-node-{job}/"
                              "run.environment.txt").read_text()


def test_an_array_trains_each_point_of_a_sweep(cluster):
    (cluster.folder / "small.toml").write_text(
        '[options]\nmodel-size = "test"\nvocab-size = 64\ncontext-length = 16\n'
        'data = "random"\ndevice = "cpu"\nsteps = 2\n'
        '[grid]\nranks = [1, 2]\nlr = [0.01, 0.02]\n')
    job = submit(cluster, "--array=0-3", "slurm/array_sweep.sbatch",
                 "small.toml")
    for index in range(4):
        wait_for(cluster, f"{job}_{index}", "COMPLETED")
    found = {}
    for file in (cluster.folder / f"runs/small-{job}").glob("*.h5"):
        with h5py.File(file) as record:
            found[file.stem] = (int(record.attrs["world_size"]),
                                float(record["config"].attrs["lr"]),
                                record.attrs["status"])
    assert found == {f"ranks-{ranks}_lr-{lr}": (ranks, lr, "finished")
                     for ranks in (1, 2) for lr in (0.01, 0.02)}


@pytest.mark.parametrize("name", ["srun", "mpirun"])
def test_a_job_whose_time_is_nearly_up_saves_and_goes_on_later(cluster, name):
    # Slurm looks every half minute whose time is nearly up. Once is enough to
    # wait for that; the other time the test sends the signal.
    by_slurm = name == "srun"
    limit = ["--time=1", "--signal=B:USR1@59"] if by_slurm else []
    with launching_by(cluster, name):
        job = submit(cluster, *limit, "slurm/train.sbatch", *ENDLESS,
                     "--checkpoint-every", "0")
    run = cluster.folder / f"runs/train-{job}"
    wait_for_step(cluster, job, run / "run.h5", 5)
    if not by_slurm:
        cluster.slurm("scancel", "--signal=USR1", "--batch", job)
    start_now(cluster, job)
    stopped = steps_of(run / "run.h5")[-1]
    wait_for_step(cluster, job, run / "run.h5", stopped + 5)
    cluster.slurm("scancel", job)
    wait_for(cluster, job, "CANCELLED")
    steps = steps_of(run / "run.h5")
    assert steps == list(range(1, steps[-1] + 1))
    log = (run / "run.log").read_text()
    assert f"after step {stopped} of 1000000" in log
    assert "start 1," in log and "start 2," in log
    assert "could not be requeued" not in log


def test_a_job_that_is_put_back_by_force_goes_on_from_its_checkpoint(cluster):
    job = submit(cluster, "slurm/train.sbatch", *ENDLESS,
                 "--checkpoint-every", "2")
    run = cluster.folder / f"runs/train-{job}"
    wait_for_step(cluster, job, run / "run.h5", 5)
    cluster.slurm("scontrol", "requeue", job)
    start_now(cluster, job)
    stopped = steps_of(run / "run.h5")[-1]
    wait_for_step(cluster, job, run / "run.h5", stopped + 5)
    steps = steps_of(run / "run.h5")
    assert steps == list(range(1, steps[-1] + 1))
    resumed = re.search(r"resumed from \S+/step-(\d+)",
                        (run / "run.log").read_text())
    assert 2 <= int(resumed[1]) <= stopped


def test_one_task_of_an_array_is_requeued_by_itself(cluster):
    (cluster.folder / "long.toml").write_text(
        '[options]\nmodel-size = "test"\nvocab-size = 64\ncontext-length = 128\n'
        'data = "random"\ndevice = "cpu"\nsteps = 1000000\nbatch-size = 32\n'
        '[grid]\nlr = [0.01, 0.02]\n')
    job = submit(cluster, "--array=0-1", "slurm/array_sweep.sbatch",
                 "long.toml")
    run = cluster.folder / f"runs/long-{job}"
    for rate in (0.01, 0.02):
        wait_for_step(cluster, job, run / f"lr-{rate}.h5", 5)
    cluster.slurm("scancel", "--signal=USR1", "--batch", f"{job}_1")
    wait_for(cluster, f"{job}_1", "PENDING")
    assert cluster.state(f"{job}_0")["JobState"] == "RUNNING"
    assert cluster.state(f"{job}_0")["Restarts"] == "0"
    cluster.slurm("scancel", job)
    assert "start 2," not in (run / "lr-0.01.log").read_text()


def test_a_finished_job_that_is_requeued_ends_at_once(cluster):
    job = submit(cluster, "slurm/train.sbatch", *TINY, "--steps", "3")
    wait_for(cluster, job, "COMPLETED")
    cluster.slurm("scontrol", "requeue", job)
    start_now(cluster, job)
    wait_for(cluster, job, "COMPLETED")
    run = cluster.folder / f"runs/train-{job}"
    assert steps_of(run / "run.h5") == [1, 2, 3]
    assert "start 2," in (run / "run.log").read_text()


def without_pmix(cluster: Cluster, *words: str):
    return subprocess.run(
        ["srun", "--mpi=none", *words, str(launch.find_program("train")),
         *TINY, "--steps", "2"], env=cluster.environment, cwd=cluster.folder,
        text=True, capture_output=True, timeout=60)


def test_one_task_without_pmix_is_a_run_of_one_rank(cluster):
    done = without_pmix(cluster, "-n1")
    assert done.returncode == 0, done.stderr
    (cluster.folder / "run.h5").unlink()


def test_several_tasks_without_pmix_are_refused(cluster):
    done = without_pmix(cluster, "-N2", "-n4")
    assert done.returncode == 2
    assert done.stderr.count("Slurm started 4 tasks, MPI sees 1") == 4
    assert not (cluster.folder / "run.h5").exists()


def test_a_job_without_programs_says_where_it_looked(cluster):
    cluster.environment["LOCKSTEP_BUILD"], right = "/nowhere", \
        cluster.environment["LOCKSTEP_BUILD"]
    job = submit(cluster, "slurm/train.sbatch", *TINY)
    cluster.environment["LOCKSTEP_BUILD"] = right
    wait_for(cluster, job, "FAILED")
    assert "no program 'train' in /nowhere" in \
        (cluster.folder / f"slurm-{job}.out").read_text()


def test_a_job_whose_ranks_could_not_be_started_fails(cluster):
    job = submit(cluster, "--hold", "--nodelist=node1", "slurm/train.sbatch",
                 *TINY)
    in_the_way = cluster.folder / f"spool-node1/stepd.slurm.pmix.{job}.0"
    in_the_way.mkdir()
    cluster.slurm("scontrol", "release", job)
    wait_for(cluster, job, "FAILED")
    in_the_way.rmdir()
    assert "did not run" in \
        (cluster.folder / f"runs/train-{job}/run.log").read_text()
