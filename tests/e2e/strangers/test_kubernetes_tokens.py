"""A coordinator that takes tokens of a Kubernetes cluster's service accounts, beside a stand-in for its API server."""

import base64
import concurrent.futures
import http.server
import json
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import pytest
import tacc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import BUILD, Process

OWN = "own.token.x"
ACCOUNTS = """\
audience: tacc-coordinator
service_accounts:
  vision/trainer: {role: user, project: vision}
  ops/watcher: {role: viewer}
"""


def init(*arguments) -> None:
    subprocess.run([BUILD / "tacc-coordinator", "init", *map(str, arguments)], check=True, capture_output=True, timeout=100)


def jwt(account: str, audience: str = "tacc-coordinator") -> str:
    """As a cluster would sign it; the stand-in knows it by its claims."""
    claims = {"sub": f"system:serviceaccount:{account}", "aud": [audience], "exp": time.time() + 600}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "RS256", "kid": "k"}, claims)]
    return ".".join([*parts, "c2lnbmF0dXJl"])


class ApiServer(http.server.ThreadingHTTPServer):
    """Counts what it is asked, and answers as `mode` says."""

    def __init__(self, certificate):
        super().__init__(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.asked: list[str] = []
        self.mode = "good"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # Of a client that has not trusted it.


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/apis/authentication.k8s.io/v1/tokenreviews"
        token = body["spec"]["token"]
        self.server.asked.append(token)
        if self.mode("late"):
            time.sleep(8)
        allowed = self.headers["Authorization"] == f"Bearer {OWN}" and not self.mode("forbidden")
        answer = json.dumps({"kind": "TokenReview", "status": self.review(token, body["spec"]["audiences"])} if allowed else {}).encode()
        self.send_response(201 if allowed else 403)
        self.send_header("Content-Length", str(len(answer)))  # Without it newer ones of curl take the connection's end for a cut.
        self.end_headers()
        self.wfile.write(answer)

    def mode(self, name: str) -> bool:
        return self.server.mode == name

    def review(self, token: str, audiences: list[str]) -> dict:
        try:
            claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
        except (IndexError, ValueError):
            return {"error": "not a token"}
        shared = [audience for audience in claims["aud"] if audience in audiences]
        return {"authenticated": bool(shared), "audiences": shared, "user": {"username": claims["sub"]}}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kubernetes")
    init("--out", folder / "cluster")
    init("--out", folder / "pki")
    server = ApiServer(folder / "cluster/server/tls.pem")
    (folder / "own").write_text(OWN + "\n")
    (folder / "tokens.yaml").write_text(
        f"{ACCOUNTS}api_server: https://127.0.0.1:{server.server_port}\ntoken_file: {folder}/own\nca_file: {folder}/cluster/ca/ca.crt\n")
    command = [BUILD / "tacc-coordinator", "--tls-dir", folder / "pki/server", "--kubernetes-tokens", folder / "tokens.yaml",
               "--listen", "127.0.0.1:0", "--state-dir", folder / "state"]
    log = folder / "coordinator.log"
    coordinator = Process(command, log, "listening")
    yield folder, coordinator.answer, server, log
    assert coordinator.stop() == 0
    server.shutdown()


@pytest.fixture
def connect(service, tmp_path):
    """Makes a client that shows a token."""
    folder, address, server, _ = service
    server.mode = "good"
    server.asked.clear()
    time.sleep(1.1)  # So that as many tokens as there may be at once can be asked about.

    def make(token: str) -> tacc.Client:
        path = tmp_path / f"token-{len(list(tmp_path.iterdir()))}-{token[-20:]}"
        path.write_text(token)
        path.chmod(0o600)
        return tacc.Client(address, tls_dir=folder / "pki/user", token_file=path)

    return make


def test_a_service_account_is_who_the_file_says(service, connect, tmp_path):
    token = jwt("vision:trainer")
    with connect(token) as client:
        for _ in range(5):
            assert client.jobs() == []
        with pytest.raises(tacc.TaccError, match="no job none"):
            client.job("none").cancel()
    assert service[2].asked == [token]
    token_file = tmp_path / "watcher"
    token_file.touch(mode=0o600)
    token_file.write_text(jwt("ops:watcher"))
    command = [BUILD / "taccctl", "cancel", "none", "--address", service[1], "--tls-dir", service[0] / "pki/user", "--token-file", token_file]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 1 and "viewer ops_watcher may not end a job" in refused.stderr


@pytest.mark.parametrize(("token", "why"), [
    (jwt("vision:other"), "system:serviceaccount:vision:other, which is not among"),
    (jwt("vision:trainer", "elsewhere"), "nor good to Kubernetes"),
    ("opaque", "nor good to Kubernetes"),
])
def test_others_are_nobody(service, connect, token, why):
    for _ in range(3):
        with pytest.raises(tacc.TaccError, match=why):
            connect(token)
    assert service[2].asked == [token]


def test_a_token_of_the_coordinators_own_is_told_to_nobody(service, connect):
    done = subprocess.run([BUILD / "tacc-coordinator", "init", "token", "--out", service[0] / "pki", "--role", "viewer", "--name", "v"],
                          check=True, capture_output=True, text=True, timeout=100)
    with connect(done.stdout) as client:
        assert client.jobs() == []
    with pytest.raises(tacc.TaccError, match="was signed by none"):
        connect(done.stdout.strip()[:-8] + "AAAAAAAA")
    assert service[2].asked == []


@pytest.mark.parametrize(("mode", "why"), [("forbidden", "it answers 403; let"), ("late", "Timeout was reached")])
def test_what_cannot_be_asked_is_tried_again(service, connect, mode, why):
    service[2].mode = mode
    token = jwt("ops:watcher")
    with pytest.raises(tacc.CoordinatorError, match=f"the token cannot be checked now: .*{why}"):
        connect(token)
    service[2].mode = "good"
    with connect(token) as client:
        assert client.jobs() == []


def test_so_many_alone_are_asked_about_in_a_second(service, connect):
    def call(i: int) -> str:
        with pytest.raises(tacc.TaccError) as refused:
            connect(f"stranger-{i}")
        return str(refused.value)

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        messages = list(pool.map(call, range(40)))
    assert len(service[2].asked) <= 10 + 10 * (time.monotonic() - began) + 1
    refused = [message for message in messages if "the token cannot be checked now: " in message and "try again in a second" in message]
    assert len(refused) + len(service[2].asked) == 40
    log = service[3].read_text()
    assert "stranger-" not in log and OWN not in log


def test_who_has_a_certificate_waits_for_no_review(service, connect):
    folder, address, server, _ = service
    server.mode = "late"
    with tacc.Client(address, tls_dir=folder / "pki/admin") as client:
        with grpc.secure_channel(address, grpc.ssl_channel_credentials((folder / "pki/user/ca.crt").read_bytes())) as channel:
            call = channel.unary_unary("/tacc.v1.CoordinatorService/GetVersion")
            strangers = [call.future(b"", metadata=(("authorization", f"Bearer late-{i // 2}"),), timeout=60) for i in range(200)]
            time.sleep(0.5)
            for _ in range(3):
                assert client.jobs() == []  # Or it is tired of waiting after 10 s.
            assert {stranger.exception().code() for stranger in strangers} == {grpc.StatusCode.UNAVAILABLE}


@pytest.mark.parametrize(("text", "arguments", "why"), [
    (ACCOUNTS, (), "--tls-dir"),
    ("service_accounts: {}\n", ("--tls-dir", "pki/server"), "none may call"),
    (ACCOUNTS + "token_file: /nowhere\n", ("--tls-dir", "pki/server"), "/nowhere: cannot be read"),
])
def test_a_coordinator_says_what_is_wrong_with_the_file(service, tmp_path, text, arguments, why):
    (tmp_path / "tokens.yaml").write_text(text)
    done = subprocess.run([BUILD / "tacc-coordinator", "--kubernetes-tokens", tmp_path / "tokens.yaml", "--listen", "127.0.0.1:0", *arguments],
                          capture_output=True, text=True, timeout=100, cwd=service[0])
    assert done.returncode == 2 and "--kubernetes-tokens" in done.stderr and why in done.stderr


def test_an_api_server_of_another_authority_gets_no_token(service, connect, tmp_path):
    folder, _, server, _ = service
    text = (folder / "tokens.yaml").read_text().replace("/cluster/ca/ca.crt", "/pki/ca/ca.crt")
    (tmp_path / "tokens.yaml").write_text(text)
    log = tmp_path / "coordinator.log"
    other = Process([BUILD / "tacc-coordinator", "--tls-dir", folder / "pki/server", "--kubernetes-tokens", tmp_path / "tokens.yaml",
                     "--listen", "127.0.0.1:0", "--state-dir", tmp_path / "state"], log, "listening")
    (tmp_path / "token").write_text(jwt("ops:watcher"))
    (tmp_path / "token").chmod(0o600)
    with pytest.raises(tacc.CoordinatorError, match="certificate"):
        tacc.Client(other.answer, tls_dir=folder / "pki/user", token_file=tmp_path / "token")
    assert server.asked == []
    assert other.stop() == 0
