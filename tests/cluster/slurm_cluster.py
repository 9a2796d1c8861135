"""A Slurm cluster on this machine: munge, slurmctld and a slurmd on each of
several hosts as hosts.py makes them. All of it lies in a folder of its own, so
that an installed Slurm does not get in the way."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hosts import Hosts, launch

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
GPUS = ("null", "zero")

CONFIGURATION = """\
ClusterName=lockstep
SlurmctldHost={machine}({login})
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=100000,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
MessageTimeout=60
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=10 State=UP
"""


def missing_programs() -> list[str]:
    """Of Slurm and munge, those that are not installed."""
    return [name for name in PROGRAMS if _find(name) is None]


def _find(name: str) -> str | None:
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")


class Cluster:
    """Runs Slurm's commands against the cluster; jobs start in `folder`."""

    def __init__(self, hosts: Hosts, cores: int) -> None:
        self.folder = hosts.folder
        self.environment = launch.environment() | {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "LOCKSTEP_BUILD": str(launch.find_program("train").parent)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._hosts = hosts
        self._cores = cores

    def start(self) -> None:
        (self.folder / "state").mkdir()
        for node in self._hosts.names:
            (self.folder / f"spool-{node}").mkdir()
            (self.folder / f"tmp-{node}").mkdir()
        nodes = [f"NodeName={node} NodeAddr={self._hosts.address(node)} "
                 f"CPUs={self._cores} RealMemory=1000 Gres=gpu:{len(GPUS)}"
                 for node in self._hosts.names]
        self._write("slurm.conf", CONFIGURATION.format(
            folder=self.folder, machine=socket.gethostname(),
            login=self._hosts.login, user=getpass.getuser(),
            nodes="\n".join(nodes)))
        # GPUs to ask for, which no process opens: any devices will do.
        self._write("gres.conf", "".join(
            f"Name=gpu File=/dev/{device}\n" for device in GPUS))
        self._write("cgroup.conf", "CgroupPlugin=cgroup/v1\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

        self._daemon("munged", "--foreground", "--force", f"--key-file={key}",
                     *(f"--{what}-file={self.folder}/munge.{what}"
                       for what in ("log", "pid", "seed")),
                     f"--socket={self.folder}/munge.socket")
        self._wait("munge", (self.folder / "munge.socket").exists)
        self._daemon("slurmctld", "-D")
        for node in self._hosts.names:
            self._daemon("slurmd", "-D", host=node)
        self._wait("the nodes", self._nodes_are_idle)

    def _nodes_are_idle(self) -> bool:
        states = self.slurm("sinfo", "-h", "-N", "-o", "%N %T", check=False)
        nodes = dict(line.split() for line in states.splitlines())
        for node, state in nodes.items():
            # A slow machine's node may have been given up before it spoke.
            if state.rstrip("*") in ("down", "drained"):
                self.slurm("scontrol", "update", f"NodeName={node}",
                           "State=RESUME", check=False)
        return [nodes.get(name) for name in self._hosts.names] == \
            ["idle"] * len(self._hosts.names)

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 180
        while not ready():
            ended = {name: daemon.returncode
                     for name, daemon in self._daemons.items()
                     if daemon.poll() is not None}
            assert not ended and time.monotonic() < deadline, \
                f"{what}: not ready; ended: {ended}\n{self._reports()}"
            time.sleep(0.2)

    def _reports(self) -> str:
        """What Slurm says of its nodes, and the ends of all logs."""
        nodes = self.slurm("sinfo", "-N", "-o", "%N %T %E", check=False)
        logs = [log for end in ("out", "log")
                for log in sorted(self.folder.glob(f"*.{end}"))]
        return "\n".join([nodes, *(
            f"{log.name}: {log.read_text(errors='replace')[-1500:]}"
            for log in logs)])

    def stop(self) -> None:
        daemons = list(self._daemons.values())
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons:
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def slurm(self, *command: str, check: bool = True) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(command, env=self.environment, text=True,
                              cwd=self.folder, capture_output=True, timeout=60)
        assert not check or done.returncode == 0, \
            f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def state(self, job: str) -> dict[str, str]:
        """What scontrol knows of a job, `JobState` and so on."""
        words = self.slurm("scontrol", "-o", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words)

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def _daemon(self, name: str, *words: str, host: str = "") -> None:
        command = [str(_find(name)), *words]
        if host:
            command = self._hosts.command(host, *command)
        with open(self.folder / f"{name}{host}.out", "ab") as log:
            self._daemons[name + host] = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log,
                cwd=self.folder)


@contextmanager
def running(hosts: Hosts, cores: int) -> Iterator[Cluster]:
    cluster = Cluster(hosts, cores)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
