"""A coordinator under attack: what an honest client notices, and what the coordinator's memory does. Prints a table.

    .venv/bin/python bench/hostile.py --build build [--insecure] [--seconds 60] [--only NAME]

Each attack runs from a process of its own against a fresh coordinator, while an honest client calls List 20 times a second, each second call over
a connection of its own. Bars: no failed call, P99 under 1 s, memory at most twice what it was before; who talks no TLS, an old one or shows no
certificate is never let in.

The coordinator has certificates, and so has the honest client. Floods come from strangers, whose calls are refused but who may begin a connection, as
holders of tokens do, and from a user with a certificate. With --insecure the coordinator's port is open to all, and attackers are anybody.
"""

import argparse
import contextlib
import itertools
import multiprocessing
import os
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import grpc

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "client/python"))
from tacc.v1 import coordinator_pb2, coordinator_pb2_grpc  # noqa: E402

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
METHOD = b"/tacc.v1.CoordinatorService/List"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4
TLS_ALERT = 21  # The first byte of a TLS record that says why there is no connection (RFC 8446, 5.1).
NUM_IDLE = 10_000
NUM_SLOW = 1_000
CALLS_PER_SECOND = 20
WAITS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)  # The connection can do no more just now.


OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]  # Otherwise gRPC takes up that of a channel before.


def list_jobs(channel: grpc.Channel) -> None:
    coordinator_pb2_grpc.CoordinatorServiceStub(channel).List(coordinator_pb2.ListRequest(), timeout=10)


@dataclass(frozen=True)
class Target:
    """A coordinator's port.

    Args:
        host, port: Where it listens.
        pki: The folder that `tacc-coordinator init` has made for it. None: it talks in the clear.
        who: Whose certificate attackers have. Empty: none.
        num_idle, num_slow: Connections that attackers hold at the same time.
    """

    host: str
    port: int
    pki: Path | None = None
    who: str = ""
    num_idle: int = NUM_IDLE
    num_slow: int = NUM_SLOW

    def dial(self) -> socket.socket:
        """A TCP connection."""
        return socket.create_connection((self.host, self.port), timeout=2)

    def context(self, who: str = "") -> ssl.SSLContext:
        """For TLS with the certificate of `who`, or without one."""
        assert self.pki is not None
        context = ssl.create_default_context(cafile=str(self.pki / "server/ca.crt"))
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
        if who:
            context.load_cert_chain(self.pki / who / "tls.pem")
        return context


@dataclass
class Tally:
    """What became of an attacker's connections."""

    tried: int = 0
    let_in: int = 0  # Those to which anything but a refusal was said.


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2 (RFC 9113)."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header that is not indexed, without Huffman's code (RFC 7541, 6.2.2); both shorter than 127 bytes."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers() -> bytes:
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", METHOD), (b":authority", b"x")]
    return b"".join(literal(*field) for field in [*fields, (b"te", b"trailers"), (b"content-type", b"application/grpc")])


def first_call() -> bytes:
    """The beginning of a connection, and a whole call: whose calls are accepted is known from then on."""
    return PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, call_headers()) + frame(DATA, END_STREAM, 1, bytes(5))


class Attacker:
    """Makes connections, of TLS where the coordinator has it."""

    def __init__(self, target: Target):
        self.target = target
        self._context = target.context(target.who) if target.pki else None

    def connect(self, begin: bytes = b"") -> socket.socket | None:
        connection = None
        try:
            connection = self.target.dial()
            if self._context is not None:
                connection = self._context.wrap_socket(connection)
            connection.sendall(begin)
            connection.setblocking(False)
            return connection
        except OSError:
            if connection is not None:
                connection.close()
            return None


class Silent(Attacker):
    """Makes connections that do not even begin with TLS."""

    def __init__(self, target: Target):
        self.target = target
        self._context = None


def drain(connection: socket.socket) -> None:
    """Reads what is there, so that the peer can go on writing. OSError: it is closed."""
    try:
        while connection.recv(1 << 16):
            pass
    except WAITS:
        return
    raise ConnectionError


def keep(attacker: Attacker, number: int, begin: bytes, work: Callable[[socket.socket], None], end: float) -> Tally:
    """Holds `number` connections, opening those anew that are closed, and does `work` on each in turn."""
    connections: list[socket.socket | None] = [None] * number
    tally = Tally()
    while True:
        for i, connection in enumerate(connections):
            if time.monotonic() > end:
                return tally
            if connection is None:
                connections[i] = attacker.connect(begin)
                tally.tried += 1
                continue
            try:
                work(connection)
            except WAITS:
                pass
            except OSError:
                connection.close()
                connections[i] = None


def knock(attempt: Callable[[], bool], end: float) -> Tally:
    """Makes attempts, one after the other, each of which says whether it was let in."""
    tally = Tally()
    while time.monotonic() < end:
        tally.tried += 1
        tally.let_in += attempt()
    return tally


def plaintext(target: Target, end: float) -> Tally:
    """HTTP/2, HTTP/1 and garbage at a port of TLS."""
    words = itertools.cycle(
        [PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, call_headers()), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(64)) * 64]
    )

    def attempt() -> bool:
        with target.dial() as connection, contextlib.suppress(OSError):
            connection.sendall(next(words))
            return connection.recv(1 << 10)[:1] not in (b"", bytes([TLS_ALERT]))
        return False

    return knock(attempt, end)


def old_tls(target: Target, end: float) -> Tally:
    """Handshakes of TLS 1.0 and 1.1, by a user with a certificate."""
    contexts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Of the old versions, which are the point.
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            context = target.context("user")
            context.set_ciphers("ALL:@SECLEVEL=0")  # Otherwise this side has none for them.
            context.minimum_version = context.maximum_version = version
            contexts.append(context)
    turns = itertools.cycle(contexts)

    def attempt() -> bool:
        try:
            with next(turns).wrap_socket(target.dial()):
                return True
        except ssl.SSLError as error:
            # What this side refused is no attack.
            if not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) and "ALERT" not in (error.reason or ""):
                raise
        except OSError:
            pass
        return False

    return knock(attempt, end)


def no_certificate(target: Target, end: float) -> Tally:
    """Calls without a certificate, each over a connection of its own."""
    credentials = grpc.ssl_channel_credentials((target.pki / "server/ca.crt").read_bytes())

    def attempt() -> bool:
        try:
            with grpc.secure_channel(f"{target.host}:{target.port}", credentials, OWN_CONNECTION) as channel:
                list_jobs(channel)
            return True
        except grpc.RpcError:
            return False

    return knock(attempt, end)


def slow_handshake(target: Target, end: float) -> Tally:
    """1,000 connections that begin TLS byte by byte."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        target.context().wrap_bio(incoming, outgoing).do_handshake()
    return trickle(Silent(target), outgoing.read(), end)


def trickle(attacker: Attacker, text: bytes, end: float) -> Tally:
    """Sends a text byte by byte on many connections."""
    sent: dict[int, int] = {}

    def work(connection: socket.socket) -> None:
        drain(connection)
        position = sent.get(connection.fileno(), 0) % len(text)
        connection.send(text[position : position + 1])
        sent[connection.fileno()] = position + 1
        time.sleep(0.001)

    return keep(attacker, attacker.target.num_slow, b"", work, end)


def idle(target: Target, end: float) -> Tally:
    """10,000 connections that say nothing, and are made anew when they are closed."""
    return keep(Silent(target), target.num_idle, b"", drain, end)


def idle_http2(target: Target, end: float) -> Tally:
    """10,000 connections that begin HTTP/2 and say nothing more."""
    return keep(Attacker(target), target.num_idle, PREFACE + frame(SETTINGS, 0, 0), drain, end)


def idle_known(target: Target, end: float) -> Tally:
    """10,000 connections that make one call and say nothing more."""
    return keep(Attacker(target), target.num_idle, first_call(), drain, end)


def slow_loris(target: Target, end: float) -> Tally:
    """1,000 connections that send a request byte by byte."""
    return trickle(Attacker(target), PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, call_headers()), end)


def header_flood(target: Target, end: float) -> Tally:
    """Headers that never end: CONTINUATION after CONTINUATION."""
    piece = b"".join(frame(CONTINUATION, 0, 1, literal(b"x-%d" % i, b"y" * 100) * 60) for i in range(16))
    begin = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, call_headers())

    def work(connection: socket.socket) -> None:
        drain(connection)
        connection.send(piece)

    return keep(Attacker(target), 16, begin, work, end)


def rapid_reset(target: Target, end: float) -> Tally:
    """Calls that are taken back at once, as fast as it goes (CVE-2023-44487)."""
    streams: dict[int, int] = {}

    def work(connection: socket.socket) -> None:
        drain(connection)
        first = streams.get(connection.fileno(), 1)
        ids = range(first, first + 400, 2)
        data = b"".join(frame(HEADERS, END_HEADERS, i, call_headers()) + frame(RST_STREAM, 0, i, struct.pack(">I", 8)) for i in ids)
        streams[connection.fileno()] = first + 400
        connection.setblocking(True)
        connection.settimeout(1)
        try:
            connection.sendall(data)
        except OSError:
            streams.pop(connection.fileno(), None)
            raise ConnectionError from None
        finally:
            connection.setblocking(False)

    return keep(Attacker(target), 8, PREFACE + frame(SETTINGS, 0, 0), work, end)


def ping_flood(target: Target, end: float) -> Tally:
    """After a call pings, each of which wants an answer."""
    pings = frame(PING, 0, 0, b"12345678") * 500

    def work(connection: socket.socket) -> None:
        drain(connection)
        connection.send(pings)

    return keep(Attacker(target), 16, first_call(), work, end)


REFUSED = [plaintext, old_tls, no_certificate]  # They count how often they were let in.
FLOODS = [idle_http2, slow_loris, header_flood, rapid_reset, ping_flood]
# Each with whose certificate it has.
TLS_ATTACKS = [(attack, "") for attack in [*REFUSED, slow_handshake, idle, *FLOODS]] + [(attack, "user") for attack in [*FLOODS, idle_known]]
INSECURE_ATTACKS = [(attack, "") for attack in [idle, *FLOODS, idle_known]]


def name_of(attack: Callable[[Target, float], Tally], who: str) -> str:
    return f"{attack.__name__} by a {who}" if who else attack.__name__


def memory_of(pid: int) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def start(build: Path, folder: Path, pki: Path | None) -> tuple[subprocess.Popen, str]:
    said = ["--tls-dir", pki / "server"] if pki else ["--insecure"]
    command = [build / "tacc-coordinator", "--listen", "127.0.0.1:0", "--state-dir", folder / "state", *said]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    return process, process.stdout.readline().split()[1]


class Honest:
    """A client of the coordinator, an administrator where there are certificates."""

    def __init__(self, address: str, pki: Path | None):
        self._address = address
        self._credentials = None
        if pki:
            key = (pki / "admin/tls.pem").read_bytes()
            self._credentials = grpc.ssl_channel_credentials((pki / "admin/ca.crt").read_bytes(), key, key)
        self._kept = self._open()

    def _open(self) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(self._address, OWN_CONNECTION)
        return grpc.secure_channel(self._address, self._credentials, OWN_CONNECTION)

    def call(self) -> None:
        list_jobs(self._kept)

    def call_anew(self) -> None:
        """Over a connection of its own."""
        with self._open() as channel:
            list_jobs(channel)

    def close(self) -> None:
        self._kept.close()


def run(attack: Callable[[Target, float], Tally], target: Target, seconds: float, result: Connection) -> None:
    """In a process of its own: attacks once it has said that it is about to."""
    result.send("begins")
    result.send(attack(target, time.monotonic() + seconds))


def measure(attack: Callable[[Target, float], Tally], who: str, build: Path, seconds: float, *, tls: bool, **numbers: int) -> dict:
    """What the honest client and the memory did: milliseconds, MiB; and of the attacker's connections how many were tried and let in."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ending:
        folder = Path(name)
        pki = folder / "pki" if tls else None
        if pki:
            subprocess.run([build / "tacc-coordinator", "init", "--out", pki], check=True, capture_output=True)
        process, address = start(build, folder, pki)
        ending.callback(process.wait)
        ending.callback(process.send_signal, signal.SIGTERM)
        host, _, port = address.rpartition(":")
        honest = Honest(address, pki)
        ending.callback(honest.close)
        for _ in range(50):
            honest.call()
        before = memory_of(process.pid)
        spawn = multiprocessing.get_context("spawn")  # A fork would have gRPC's threads in it.
        result, of_attacker = spawn.Pipe(duplex=False)
        attacker = spawn.Process(target=run, args=(attack, Target(host, int(port), pki, who, **numbers), seconds, of_attacker))
        attacker.start()
        of_attacker.close()
        ending.callback(attacker.join)
        result.recv()
        took, failed, most = [], 0, before
        end = time.monotonic() + seconds
        for call in itertools.cycle([honest.call, honest.call_anew]):
            began = time.monotonic()
            if began > end:
                break
            try:
                call()
            except grpc.RpcError:
                failed += 1
            took.append(time.monotonic() - began)
            most = max(most, memory_of(process.pid))
            time.sleep(max(0.0, began + 1 / CALLS_PER_SECOND - time.monotonic()))
        tally = result.recv()
        took.sort()
        return {
            "attack": name_of(attack, who),
            "tried": tally.tried,
            "let_in": tally.let_in if attack in REFUSED else "",
            "calls": len(took),
            "failed": failed,
            "p50_ms": round(took[len(took) // 2] * 1e3, 1),
            "p99_ms": round(took[int(len(took) * 0.99)] * 1e3, 1),
            "before_mib": round(before / 2**20, 1),
            "most_mib": round(most / 2**20, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--insecure", action="store_true", help="attack a coordinator without certificates")
    parser.add_argument("--seconds", type=float, default=60)
    names = sorted({attack.__name__ for attack, _ in TLS_ATTACKS + INSECURE_ATTACKS})
    parser.add_argument("--only", choices=names)
    arguments = parser.parse_args()
    wanted = NUM_IDLE + 1000
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < wanted:
        sys.exit(f"error: needs {wanted} open files, the limit is {hard}: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    print(
        "| attack | connections | let in | calls | failed | P50 ms | P99 ms | MiB before | MiB at most |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    for attack, who in INSECURE_ATTACKS if arguments.insecure else TLS_ATTACKS:
        if arguments.only in (None, attack.__name__):
            row = measure(attack, who, arguments.build.resolve(), arguments.seconds, tls=not arguments.insecure)
            print("|", " | ".join(map(str, row.values())), "|", flush=True)


if __name__ == "__main__":
    main()
