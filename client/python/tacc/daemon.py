"""Finds the coordinator of this machine, as `taccctl` does, and starts one where there is none."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tacc.errors import CoordinatorError, InputError
from tacc.tls import Tls, TlsSettings, find_tls

DEFAULT_ADDRESS = "127.0.0.1:7070"
_UNIX = "unix:"
_MAX_SOCKET_PATH = 107  # Bytes that the path of a Unix socket may have.
_UP_SECONDS = 120


def find_program(name: str) -> Path | None:
    """The program: on PATH, else of the build of the checkout that this package lies in; None where there is neither."""
    if found := shutil.which(name):
        return Path(found)
    checkout = Path(__file__).resolve().parents[3]
    build = Path(os.environ.get("TACC_BUILD", checkout / "build")) / name
    return build if (checkout / "CMakeLists.txt").exists() and os.access(build, os.X_OK) else None


def up_folder() -> Path:
    """Where `taccctl up` keeps what it has started."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return Path(state) / "tacc/up" if state.startswith("/") else Path.home() / ".local/state/tacc/up"


def check_address(address: str, source: str) -> str:
    """The address. InputError: it is neither HOST:PORT nor unix:/PATH."""
    if not isinstance(address, str):
        raise InputError(f"{source} is a text HOST:PORT, as {DEFAULT_ADDRESS!r}, not {address!r}")
    if address.startswith(_UNIX):
        return _check_socket(address, source)
    host, _, port = address.rpartition(":")
    is_host = re.fullmatch(r"[\w.-]+|\[[0-9a-fA-F:.]+(%\w+)?\]", host) is not None
    if not is_host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise InputError(f'{source} = "{address}" is not HOST:PORT, as {DEFAULT_ADDRESS} or [::1]:7070, nor unix:/PATH')
    return address


def _check_socket(address: str, source: str) -> str:
    path = address.removeprefix(_UNIX)
    if not re.fullmatch(r"(/+[A-Za-z0-9._~+@-]+)+", path):
        raise InputError(f'{source} = "{address}" is not unix:/PATH, with a whole path of letters, digits and /._~+@-')
    if len(path) > _MAX_SOCKET_PATH:
        raise InputError(f'{source} = "{address}": its path has {len(path)} bytes; that of a socket may have {_MAX_SOCKET_PATH}: give a shorter one')
    return address


class Place(NamedTuple):
    """Where a coordinator is, and how it is talked to."""

    address: str
    tls: Tls


def find_coordinator(address: str | None, start: bool, settings: TlsSettings) -> Place:
    """The coordinator at the address, else that of `local_address`. What `taccctl up` has started is without TLS, unless a folder or a token is
    given.

    InputError: the address is none, or a file cannot be read. CoordinatorError: there is none.
    """
    if address is not None:
        return Place(check_address(address, "address"), find_tls(address, settings))
    if (settings.tls_dir, settings.token_file) != (None, None) and not os.environ.get("TACC_ADDRESS", ""):
        return Place(DEFAULT_ADDRESS, find_tls(DEFAULT_ADDRESS, settings))
    found = local_address(start)
    is_up = not os.environ.get("TACC_ADDRESS", "") and _up_state() is not None
    return Place(found, Tls() if is_up else find_tls(found, settings))


def local_address(start: bool = True) -> str:
    """TACC_ADDRESS, else the address of the coordinator that `taccctl up` has started, else of one at 127.0.0.1:7070; else one is started.

    CoordinatorError: there is none, and none can be started, or shall be.
    """
    if address := os.environ.get("TACC_ADDRESS", ""):
        return check_address(address, "TACC_ADDRESS")
    state = _up_state()
    if state is not None and all(_is_running(process) for process in state["processes"]):
        return str(state["address"])
    if state is None and _listens(DEFAULT_ADDRESS):
        return DEFAULT_ADDRESS
    if not start:
        return str(state["address"]) if state else DEFAULT_ADDRESS
    program = find_program("taccctl")
    if program is None:
        raise CoordinatorError(
            "no coordinator on this machine, and no taccctl on PATH to start one: install tacc's programs (`make install` in a checkout), "
            "or say where a coordinator is: tacc.Client(address) or TACC_ADDRESS"
        )
    return _up(program)


def _up(program: Path) -> str:
    try:
        # Detached: what it starts outlives this process.
        done = subprocess.run(
            [program, "up", "-o", "json"], capture_output=True, text=True, errors="replace", timeout=_UP_SECONDS, stdin=subprocess.DEVNULL, start_new_session=True
        )
    except subprocess.TimeoutExpired as error:
        raise CoordinatorError(f"{program} up has not ended after {_UP_SECONDS} s; its logs are in {up_folder()}") from error
    except OSError as error:
        raise CoordinatorError(f"{program} cannot be started: {error.strerror}") from error
    state = _up_state()
    if done.returncode != 0 or state is None:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise CoordinatorError(f"no coordinator on this machine, and `{program} up` could not start one: {said}")
    return str(state["address"])


def _up_state() -> dict[str, Any] | None:
    path = up_folder() / "up.json"
    try:
        state = json.loads(path.read_text())
        return {"address": str(state["address"]), "processes": [(int(p["pid"]), int(p["start_ticks"])) for p in state["processes"]]}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CoordinatorError(f"{path} is damaged ({error}); stop what runs in {path.parent} by hand and remove it") from error


def _is_running(process: tuple[int, int]) -> bool:
    pid, start_ticks = process
    try:
        # PID (NAME) STATE PPID ...; the name may hold anything. Start time is field 22.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return False
    return len(fields) > 19 and fields[0] not in "ZX" and int(fields[19]) == start_ticks


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
