"""Another user of this machine, who tries all that a service of somebody else has there. Reads what there is as JSON, and prints what it got of it:
nothing, if all is well.

Run as that user, by e2e/strangers/test_other_users.py."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time

SECONDS = 0.5  # That an answer may take.


def says(family: socket.AddressFamily, address, words: bytes) -> bytes:
    """What is answered to these words; nothing where there is no connection."""
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(SECONDS)
        try:
            client.connect(address)
            client.sendall(words)
            return client.recv(1 << 16)
        except OSError:
            return b""


def words() -> list[bytes]:
    """HTTP/2 and HTTP/1, a client of a rank, a query of a store, and the numbers by which Gloo knows the connections of its peers."""
    hello = json.dumps({"hello": True, "protocol": 1, "token": "0" * 32, "client": "stranger"}).encode()
    return [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", struct.pack("<I", len(hello)) + hello,
            b"\x09" + struct.pack("<I", 0x3C85F7CE), *(struct.pack("<q", number) for number in range(32))]


def sockets(there: dict) -> list[str]:
    got = []
    for name in there["unix"]:
        got += [f"{name}: {answer!r}" for text in words()[:3] if (answer := says(socket.AF_UNIX, name.replace("@", "\0", 1), text))]
    for port in there["ports"]:
        got += [f"port {port}: {answer!r}" for text in words() if (answer := says(socket.AF_INET, ("127.0.0.1", port), text))]
    return got


def kept_open(there: dict) -> list[socket.socket]:
    """Connections to all ports, which say nothing."""
    clients = []
    for port in there["ports"]:
        with contextlib.suppress(OSError):
            clients.append(socket.create_connection(("127.0.0.1", port), timeout=SECONDS))
    return clients


def calls(there: dict) -> list[str]:
    """As users call it: each has to fail."""
    got = []
    for command in ("version", "list", "workers"):
        done = subprocess.run([there["taccctl"], "--address", there["address"], command, "-o", "json"], capture_output=True, text=True, check=False)
        if command == "version":  # It tells its own version, too.
            if '"coordinator": {' in done.stdout or '"coordinator":{' in done.stdout:
                got.append(f"taccctl version: {done.stdout}")
        elif done.returncode != 5:
            got.append(f"taccctl {command}: exit {done.returncode}: {done.stdout}{done.stderr}")
    return got


def files(there: dict) -> list[str]:
    got = []
    for path in there["files"]:
        for what, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY | os.O_APPEND)):
            with contextlib.suppress(OSError):
                os.close(os.open(path, flags | os.O_NONBLOCK))
                got.append(f"{path}: {what}")
        for what, change in (("chmod", lambda path: os.chmod(path, 0o777)), ("rename", lambda path: os.rename(path, path + ".mine"))):
            with contextlib.suppress(OSError):
                change(path)
                got.append(f"{path}: {what}")
    for folder in there["folders"]:
        with contextlib.suppress(OSError):
            got.append(f"{folder}: lists {os.listdir(folder)}")
        with contextlib.suppress(OSError):
            os.close(os.open(os.path.join(folder, "new"), os.O_WRONLY | os.O_CREAT))
            got.append(f"{folder}: made a file")
    return got


def processes(there: dict) -> list[str]:
    got = []
    for pid in there["pids"]:
        with contextlib.suppress(OSError):
            os.kill(pid, 0)
            got.append(f"{pid}: may be signalled")
        for name in ("environ", "mem", "maps"):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    if file.read(1):
                        got.append(f"{pid}: {name}")
    return got


def main() -> None:
    there = json.load(sys.stdin)
    open_connections = kept_open(there)
    got = sockets(there) + calls(there) + files(there) + processes(there)
    time.sleep(SECONDS)
    got += [f"a connection was answered: {answer!r}" for client in open_connections if (answer := answer_of(client))]
    print(json.dumps({"got": got, "tried": {kind: len(there[kind]) for kind in ("unix", "ports", "files", "folders", "pids")}}))


def answer_of(client: socket.socket) -> bytes:
    try:
        return client.recv(1 << 16)
    except OSError:
        return b""


if __name__ == "__main__":
    main()
