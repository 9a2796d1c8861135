"""Several hosts on this machine: each a network namespace with an address and,
for its processes, a host name of its own, all on one bridge. They share the
file system, as the nodes of a cluster do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from lockstep import launch  # noqa: E402, F401

# How a process enters the host $2 of the set $1, to run the rest.
ENTER = """\
set=$1 host=$2
shift 2
exec ip netns exec "$set-$host" unshare --uts sh -c \
  'hostname "$1"; shift; exec "$@"' - "$host" "$@"
"""


def obstacle() -> str:
    """Why there can be no such hosts here, or nothing."""
    for program in ("ip", "unshare", "hostname"):
        if shutil.which(program) is None:
            return f"there is no {program}"
    name = f"lockstep{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True,
                          text=True)
    if made.returncode != 0:
        return f"no network namespaces: {made.stderr.strip()}"
    _run("ip", "netns", "delete", name)
    return ""


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


class Hosts:
    """Where the tests' own commands run, the machine itself, has the address
    `login` among them."""

    network = "10.213.77"
    login = f"{network}.254"

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder = folder
        self.names = names
        self._set = f"lockstep{os.getpid()}"
        self._bridge = f"ls{os.getpid()}"

    def address(self, host: str) -> str:
        return f"{self.network}.{self.names.index(host) + 1}"

    def command(self, host: str, *words: str) -> list[str]:
        """Runs the words on a host."""
        return ["sh", "-c", ENTER, "-", self._set, host, *words]

    def agent(self) -> Path:
        """What mpirun calls in place of ssh: AGENT HOST COMMAND…"""
        path = self.folder / "agent"
        path.write_text("#!/bin/sh\nhost=$1\nshift\n"
                        f"set -- {self._set} \"$host\" sh -c \"$*\"\n" + ENTER)
        path.chmod(0o755)
        return path

    def limit(self, host: str, *discipline: str) -> None:
        """Traffic from and to a host, by a queueing discipline of tc."""
        for where in (self._on(host), []):
            _run(*where, "tc", "qdisc", "replace", "dev",
                 "eth0" if where else self._outer(host), "root", *discipline)

    def unlimit(self, host: str) -> None:
        for where in (self._on(host), []):
            _run(*where, "tc", "qdisc", "delete", "dev",
                 "eth0" if where else self._outer(host), "root")

    def cannot_limit(self, host: str, *discipline: str) -> str:
        """Why the kernel has no such discipline, or nothing."""
        try:
            self.limit(host, *discipline)
        except subprocess.CalledProcessError as refused:
            return refused.stderr.decode().strip()
        self.unlimit(host)
        return ""

    def unplug(self, host: str) -> None:
        _run("ip", "link", "set", self._outer(host), "down")

    def plug(self, host: str) -> None:
        _run("ip", "link", "set", self._outer(host), "up")

    def _on(self, host: str) -> list[str]:
        return ["ip", "netns", "exec", f"{self._set}-{host}"]

    def _outer(self, host: str) -> str:
        return f"{self._bridge}-{self.names.index(host) + 1}"

    def start(self) -> None:
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        _run("ip", "address", "add", f"{self.login}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        names = "127.0.0.1 localhost\n" + "".join(
            f"{self.address(host)} {host}\n" for host in self.names)
        for host in self.names:
            space, outer = f"{self._set}-{host}", self._outer(host)
            own = Path("/etc/netns") / space
            own.mkdir(parents=True)
            (own / "hosts").write_text(names)
            _run("ip", "netns", "add", space)
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name",
                 "eth0", "netns", space)
            _run("ip", "link", "set", outer, "master", self._bridge, "up")
            inside = ["ip", "-n", space]
            _run(*inside, "address", "add", f"{self.address(host)}/24", "dev",
                 "eth0")
            _run(*inside, "link", "set", "lo", "up")
            _run(*inside, "link", "set", "eth0", "up")

    def stop(self) -> None:
        for host in self.names:
            space = f"{self._set}-{host}"
            # What a test that failed may have left behind.
            left = subprocess.run(["ip", "netns", "pids", space], text=True,
                                  capture_output=True).stdout
            for process in left.split():
                os.kill(int(process), signal.SIGKILL)
            # Namespaces go when they can, their names and links now.
            for words in (["link", "delete", self._outer(host)],
                          ["netns", "delete", space]):
                subprocess.run(["ip", *words], capture_output=True)
            shutil.rmtree(Path("/etc/netns") / space, ignore_errors=True)
        subprocess.run(["ip", "link", "delete", self._bridge],
                       capture_output=True)


@contextmanager
def running(folder: Path, names: list[str]) -> Iterator[Hosts]:
    hosts = Hosts(folder, names)
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.stop()
