"""Channels to a coordinator, by TLS where there is a folder with a certificate or a token (docs/roles.md)."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tacc import calls
from tacc.errors import InputError

MAX_TOKEN_BYTES = 4 << 10  # As the coordinator's.


@dataclass(frozen=True)
class Tls:
    """How a coordinator is talked to.

    Args:
        folder: With ca.crt, and tls.pem unless there is a token. None: without TLS.
        server_name: That the coordinator's certificate must have. None: the address's host.
        token_file: Whose token each call shows. None: a certificate is shown.
    """

    folder: str | None = None
    server_name: str | None = None
    token_file: str | None = None

    def certificate(self) -> object:
        """What changes when the files of the certificate are replaced. OSError: one of them is not there."""
        if self.folder is None:
            return None
        files = [os.stat(os.path.join(self.folder, name)) for name in (("ca.crt",) if self.token_file else ("ca.crt", "tls.pem"))]
        return [(file.st_ino, file.st_size, file.st_mtime_ns) for file in files]

    def options(self) -> list[str]:
        """Those of taccctl that say the same."""
        said = {"--tls-dir": self.folder, "--tls-server-name": self.server_name, "--token-file": self.token_file}
        return [word for option, value in said.items() if value for word in (option, value)]

    def arguments(self) -> dict[str, Any]:
        """Those of `tacc.Client` that say the same."""
        return {"tls_dir": self.folder, "tls_server_name": self.server_name, "token_file": self.token_file}


@dataclass(frozen=True)
class TlsSettings:
    """What a caller gives; None: as TACC_TLS_DIR, TACC_TLS_SERVER_NAME and TACC_TOKEN_FILE say."""

    tls_dir: str | os.PathLike[str] | None = None
    tls_server_name: str | None = None
    token_file: str | os.PathLike[str] | None = None


def find_tls(address: str, settings: TlsSettings) -> Tls:
    """InputError: the folder or the token's file is of no use, or a token would go without TLS."""
    if address.startswith("unix:"):
        return Tls()  # A Unix socket asks for its client's user alone.
    folder = _setting(settings.tls_dir, "TACC_TLS_DIR")
    token_file = _setting(settings.token_file, "TACC_TOKEN_FILE")
    if not folder and token_file:
        raise InputError("token_file (TACC_TOKEN_FILE): a token goes over TLS alone; give tls_dir, a folder with the coordinator's ca.crt")
    if not folder:
        if not _is_loopback(address):
            warnings.warn(
                f"{address} is reached without TLS: the network can read and change what goes there, and whoever has that address may answer; "
                "give tls_dir (TACC_TLS_DIR), a folder that `tacc-coordinator init` makes",
                stacklevel=2,
            )
        return Tls()
    name = settings.tls_server_name or os.environ.get("TACC_TLS_SERVER_NAME", "") or None
    tls = Tls(os.path.abspath(folder), name, os.path.abspath(token_file) if token_file else None)
    _credentials(tls)
    if tls.token_file:
        read_token(tls.token_file)
    return tls


def _is_loopback(address: str) -> bool:
    """Of HOST:PORT. A name but localhost may be anywhere."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _setting(given: str | os.PathLike[str] | None, variable: str) -> str:
    return os.fspath(given) if given is not None else os.environ.get(variable, "")


def open_channel(library: Any, address: str, tls: Tls) -> Any:
    """A channel with a connection of its own.

    Args:
        library: `grpc` or `grpc.aio`.
    """
    if tls.folder is None:
        return library.insecure_channel(address, options=calls.CHANNEL_OPTIONS)
    name = [("grpc.ssl_target_name_override", tls.server_name)] if tls.server_name else []
    return library.secure_channel(address, _credentials(tls), options=calls.CHANNEL_OPTIONS + name)


def read_token(path: str) -> str:
    """The bearer token in a file. InputError, without the token in its words: it cannot be read, may be read by everybody, or holds none."""
    where = f"token_file (TACC_TOKEN_FILE): {path}"
    try:
        with open(path, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & stat.S_IRWXO:
                raise InputError(f"{where}: everybody on this machine may read the token in it; chmod 600 {path}")
            token = file.read(MAX_TOKEN_BYTES + 2).rstrip()
    except OSError as error:
        raise InputError(f"{where}: {error.strerror}; it is a file with what `tacc-coordinator init token` prints") from error
    if len(token) > MAX_TOKEN_BYTES or not re.fullmatch(rb"[A-Za-z0-9._~+/=-]+", token):
        raise InputError(f"{where}: holds no token, as `tacc-coordinator init token` prints one")
    return token.decode()


def _token_of(path: str) -> Callable[[Any, Any], None]:
    """A plugin of gRPC that reads the file for each call, so that a new token needs no new channel."""

    def give(_: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        try:
            callback((("authorization", f"Bearer {read_token(path)}"),), None)
        except InputError as error:
            callback((), error)

    return give


def _read_key(path: Path) -> bytes:
    with open(path, "rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & stat.S_IRWXO:
            raise InputError(f"tls_dir (TACC_TLS_DIR): {path}: everybody on this machine may read the key in it; chmod 600 {path}")
        return file.read()


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    folder = tls.folder or ""
    try:
        authorities = Path(folder, "ca.crt").read_bytes()
        # The key and the certificate, of one moment.
        identity = None if tls.token_file else _read_key(Path(folder, "tls.pem"))
    except OSError as error:
        raise InputError(f"tls_dir (TACC_TLS_DIR): {error.filename}: {error.strerror}; it is a folder that `tacc-coordinator init` makes") from error
    channel = grpc.ssl_channel_credentials(root_certificates=authorities, private_key=identity, certificate_chain=identity)
    if tls.token_file is None:
        return channel
    return grpc.composite_channel_credentials(channel, grpc.metadata_call_credentials(_token_of(tls.token_file)))
