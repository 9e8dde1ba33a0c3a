"""Two hosts on one machine: each has network, mount, host name, process and IPC namespaces of its own, and ends with the test."""

import os
import re
import select
import subprocess
from pathlib import Path

from cluster import BUILD, ROOT

SHARED = "/mnt"  # where both hosts see the shared folder
ADDRESSES = {"host-a": "10.0.0.1", "host-b": "10.0.0.2"}

# What a host is: its own /tmp, /var, /dev/shm, home and /etc/hosts; its name resolves to loopback, as Debian's installer sets it up.
# The build and the repository stay visible where they are, also when they lie in a folder that is hidden.
SETUP = r"""
set -e
mount --make-rprivate /
mount --bind "$SHARED_FOLDER" /mnt
mkdir -p /mnt/build && mount --bind "$BUILD" /mnt/build
mount --bind "$HOSTS_FILE" /etc/hosts
hostname "$HOST"
ip link set lo up
if [ "${ROOT#/tmp/}" != "$ROOT" ]; then mkdir -p /mnt/.keep && mount --rbind "$ROOT" /mnt/.keep; fi
mount -t tmpfs tmpfs /tmp
if [ "${ROOT#/tmp/}" != "$ROOT" ]; then mkdir -p "$ROOT" && mount --move /mnt/.keep "$ROOT"; fi
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /var/lib
mkdir /tmp/home
echo up
exec cat
"""


def why_not() -> str:
    """Why hosts cannot be made here, empty when they can."""
    trial = subprocess.run(["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
                            "mount -t tmpfs tmpfs /dev/shm && hostname trial && ip link add veth0 type veth peer name veth1"],
                           capture_output=True, text=True)
    return "" if trial.returncode == 0 else f"needs root and namespaces: {trial.stderr.strip()}"


class Host:
    def __init__(self, name: str, shared: Path, folder: Path):
        self.name = name
        hosts = folder / f"{name}.hosts"
        hosts.write_text(f"127.0.0.1\tlocalhost\n127.0.1.1\t{name}\n")
        self.log = folder / f"{name}.log"
        self.background: list[subprocess.Popen] = []
        # `cat` is the first process: when this test ends, however it does, its input ends, and with it the whole host.
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", SETUP],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "HOST": name, "SHARED_FOLDER": str(shared), "HOSTS_FILE": str(hosts), "ROOT": str(ROOT), "BUILD": str(BUILD)})
        assert self.holder.stdout.readline() == "up\n", f"{name} could not be set up"
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text().split()
        self.pid = int(children[0])

    def command(self, line: str) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--uts", "--ipc", "--pid", "env", "HOME=/tmp/home", "sh", "-c",
                f"cd {SHARED} && exec env {line}"]

    def run(self, line: str, timeout: float = 300) -> subprocess.CompletedProcess:
        return subprocess.run(self.command(line), capture_output=True, text=True, timeout=timeout)

    def start(self, line: str, timeout: float = 120) -> str:
        """Starts a daemon; returns the line that it prints when it is up."""
        with open(self.log, "ab") as stderr:
            daemon = subprocess.Popen(self.command(line), stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.background.append(daemon)
        ready, _, _ = select.select([daemon.stdout], [], [], timeout)
        answer = daemon.stdout.readline().strip() if ready else ""
        assert answer, f"{self.name}$ {line}: not up\n{self.log.read_text()}"
        return answer

    def stop(self) -> None:
        self.holder.stdin.close()
        self.holder.wait(timeout=30)
        self.holder.stdout.close()
        for daemon in self.background:
            daemon.wait(timeout=30)
            daemon.stdout.close()


class TwoHosts:
    def __init__(self, folder: Path, *, shares: bool = True):
        """Without `shares` each host has a folder of its own in the place of the shared one."""
        self.shared = folder / "shared"
        folders = {name: self.shared if shares else folder / name for name in ADDRESSES}
        for own in folders.values():
            own.mkdir(parents=True, exist_ok=True)
        self.hosts: dict[str, Host] = {}
        try:
            for name in ADDRESSES:
                self.hosts[name] = Host(name, folders[name], folder)
            a, b = (self.hosts[name].pid for name in ADDRESSES)
            # Made inside the namespaces: nothing of it is ever seen outside.
            subprocess.run(["ip", "link", "add", "eth0", "netns", str(a), "type", "veth", "peer", "name", "eth0", "netns", str(b)], check=True)
            for name, address in ADDRESSES.items():
                subprocess.run([*self.hosts[name].command(f"sh -c 'ip address add {address}/24 dev eth0 && ip link set eth0 up'")], check=True)
        except BaseException:
            self.stop()
            raise

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def logs(self) -> str:
        return "\n".join(f"== {host.name}\n{host.log.read_text()[-4000:]}" for host in self.hosts.values() if host.log.exists())

    def stop(self) -> None:
        for host in self.hosts.values():
            host.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def readme_commands() -> list[tuple[str, str]]:
    """(host, command) of README.md's two hosts, in order."""
    return re.findall(r"^(host-[ab])\$ (.*)$", (ROOT / "README.md").read_text(), re.M)
