"""Hosts as namespaces of this machine: own network, processes, name and /tmp, joined by a veth pair."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

_ADDRESSES = {"nlgraft1": "10.213.0.1", "nlgraft2": "10.213.0.2"}

# Arguments: the host's name, its address, its /etc/hosts, and what stays visible although /tmp is its own.
_HOLD = """
set -e
mount --make-rprivate /
hostname "$1"; address=$2 names=$3; shift 3
stage=$(mktemp -d /var/tmp/nlg-XXXXXX)
mount -t tmpfs none "$stage"
for path in "$@"; do mkdir -p "$stage$path"; mount --bind "$path" "$stage$path"; done
mount -t tmpfs none /tmp
for path in "$@"; do mkdir -p "$path"; mount --move "$stage$path" "$path"; done
umount "$stage"; rmdir "$stage"
echo "$names" > /tmp/hosts; mount --bind /tmp/hosts /etc/hosts
ip link set lo up
ip link add eth0 type bridge
ip address add "$address/24" dev eth0
ip link set eth0 up
echo held
cat > /dev/null
"""


class Host:
    """One host; all its processes end with it.

    Args:
        name: Its host name, a key of `_ADDRESSES`.
        shared: Directories below /tmp that it shares with this machine; code and Python are shared anyway.
    """

    def __init__(self, name: str, shared: Sequence[Path] = ()) -> None:
        self.name, self.address = name, _ADDRESSES[name]
        below_tmp = _outermost([ROOT, Path(sys.prefix), Path(sys.base_prefix), *shared], below=Path("/tmp"))
        names = {"localhost": "127.0.0.1", **_ADDRESSES}
        lines = "\n".join(f"{address} {host_name}" for host_name, address in names.items())
        separate = ["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._holder = subprocess.Popen(
            ["unshare", *separate, "sh", "-c", _HOLD, "sh", name, self.address, lines, *below_tmp],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._holder.stdout.readline() == "held\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self.pid = int(children.read_text())

    def command(self, *command: str | Path) -> list[str]:
        """Return the command that runs another one on this host."""
        inside = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--uts", "--pid"]
        return [*inside, f"--wd={ROOT}", *map(str, command)]

    def on_network(self, *command: str | Path) -> list[str]:
        """Return the command that runs another one of this machine on the host's network alone."""
        return ["nsenter", "--target", str(self.pid), "--net", *map(str, command)]

    def find(self, pattern: str) -> list[int]:
        """This machine's numbers of the host's processes whose command line, words ended by NUL, matches."""
        pids, namespace = [], Path(f"/proc/{self.pid}/ns/pid").readlink()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (path / "cmdline").read_text(errors="replace")
                if (path / "ns/pid").readlink() == namespace and re.match(pattern, command):
                    pids.append(int(path.name))
        return pids

    def start(self, *command: str | Path, **options: Any) -> subprocess.Popen[str]:
        """Start a process on this host."""
        return subprocess.Popen(self.command(*command), text=True, **options)

    def await_port(self, port: int, process: subprocess.Popen[str], timeout_s: float) -> None:
        """Wait until a process of this host listens on a port."""
        probe = f"import socket; socket.create_connection(('{self.address}', {port}), 2)"
        end_s = time.monotonic() + timeout_s
        while subprocess.run(self.command(sys.executable, "-c", probe), capture_output=True).returncode:
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < end_s, f"nothing listens on {self.address}:{port}"
            time.sleep(0.5)

    def end(self) -> None:
        """End the host with everything on it, as a power failure would: it closes no connection."""
        subprocess.run(self.command("ip", "link", "set", "eth0", "down"), check=False)
        self._holder.kill()
        self._holder.wait()
        for path in Path("/proc").glob("[0-9]*"):  # nsenter stopped itself with its child, and would stay
            with contextlib.suppress(OSError):
                if (path / "cmdline").read_bytes().startswith(f"nsenter\0--target\0{self.pid}\0".encode()):
                    os.kill(int(path.name), signal.SIGCONT)


def _outermost(paths: Sequence[Path], below: Path) -> list[str]:
    """Select the paths below a directory that lie in none of the others, such as a clone with its venv."""
    selected = {path for path in paths if path.is_relative_to(below)}
    return sorted(str(path) for path in selected if selected.isdisjoint(path.parents))


def join(first: Host, second: Host) -> None:
    """Lay a line between two hosts, into the bridge that holds the address of each."""
    first_end, second_end = f"to{second.pid}", f"to{first.pid}"
    ends = ["name", first_end, "netns", str(first.pid), "type", "veth"]
    peer = ["peer", "name", second_end, "netns", str(second.pid)]
    subprocess.run(["ip", "link", "add", *ends, *peer], check=True)
    for host, line in ((first, first_end), (second, second_end)):
        subprocess.run(host.command("ip", "link", "set", line, "master", "eth0", "up"), check=True)


@contextlib.contextmanager
def joined_hosts(shared: Sequence[Path] = ()) -> Iterator[tuple[Host, Host]]:
    """Yield two hosts that reach each other; skips the test where such hosts cannot be made."""
    tools = ["unshare", "nsenter", "ip", "hostname"]
    if os.geteuid() != 0 or not all(map(shutil.which, tools)):
        pytest.skip(f"hosts as namespaces need root and {', '.join(tools)}")
    with contextlib.ExitStack() as stack:
        hosts = []
        for name in _ADDRESSES:
            hosts.append(Host(name, shared))
            stack.callback(hosts[-1].end)
        first, second = hosts
        join(first, second)
        yield first, second
