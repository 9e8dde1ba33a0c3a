"""The connections of a session to ranks that are played: what is read when, what ends, and what stays."""

import json
import socket
import struct
import threading
from types import SimpleNamespace

import pytest
import tacc
from tacc.live import session_link
from tacc.live.session_link import Endpoint, Link, receive_all

SECONDS = 20


def frame(header, payload=b""):
    text = json.dumps({**header, **({"bytes": len(payload)} if payload else {})}).encode()
    return struct.pack("<I", len(text)) + text + payload


@pytest.fixture
def ranks():
    """Two connections, and the ranks' ends of them."""
    made = []
    for rank in range(2):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(b"\0tacc-test-" + str(id(made)).encode() + str(rank).encode())
            listener.listen()
            made.append((Link(Endpoint(rank, listener.getsockname()[1:].decode(), "", 0, ""), "test", is_local=True), listener.accept()[0]))
    yield made
    for link, own in made:
        link.close()
        own.close()


def test_no_rank_waits_until_the_answer_of_another_is_read(ranks):
    (link_0, rank_0), (link_1, rank_1) = ranks
    payload = bytes(8 << 20)  # More than a socket takes.
    is_sent = threading.Event()
    waited = []

    def answer_1():
        rank_1.sendall(frame({"serial": 1}, payload))
        is_sent.set()

    def answer_0():
        waited.append(is_sent.wait(SECONDS))
        rank_0.sendall(frame({"serial": 1, "rank": 0}))

    threads = [threading.Thread(target=answer) for answer in (answer_0, answer_1)]
    for thread in threads:
        thread.start()
    answers = receive_all([link_0, link_1])
    for thread in threads:
        thread.join()
    assert waited == [True]
    assert answers == [({"serial": 1, "rank": 0}, b""), ({"serial": 1, "bytes": len(payload)}, payload)]


def test_an_answer_that_came_twice_is_not_the_next_one(ranks):
    """A rank had a command by a connection that broke, and has it again by this one."""
    (link_0, rank_0), (link_1, rank_1) = ranks
    rank_0.sendall(frame({"serial": 2}, b"twice") + frame({"serial": 2}, b"twice") + frame({"serial": 3}))
    rank_1.sendall(frame({"serial": 2}) + frame({"serial": 3}))
    assert [answer["serial"] for answer, _ in receive_all([link_0, link_1], 2)] == [2, 2]
    assert [answer["serial"] for answer, _ in receive_all([link_0, link_1], 3)] == [3, 3]


def test_a_connection_that_ends_in_the_middle_of_an_answer_is_broken(ranks):
    (link_0, rank_0), (link_1, rank_1) = ranks
    rank_0.sendall(frame({"serial": 1}))
    rank_1.sendall(frame({"serial": 1}, b"half of it")[:-4])
    rank_1.close()
    with pytest.raises(session_link.LinkBrokenError, match="rank 1 has closed the connection"):
        receive_all([link_0, link_1])


def test_a_machine_that_acknowledges_nothing_is_noticed():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = Link(Endpoint(0, "", "127.0.0.1", listener.getsockname()[1], ""), "test", is_local=False)
        assert link._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        link.close()


def job_at(endpoints):
    return SimpleNamespace(id="tiny-1", _client=SimpleNamespace(_run_patiently=lambda call, deadline: ("running", 1, endpoints)))


def test_ranks_that_cannot_be_reached_are_told_in_time(capsys, monkeypatch):
    monkeypatch.setattr("tacc.live.session._TELL_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(tacc.AnswerTimeoutError, match=r"tiny-1 runs, but its ranks cannot be reached: rank 0 at 127\.0\.0\.1:\d+: .*refused"):
        tacc.Session(job_at([Endpoint(0, "", "127.0.0.1", port, "")]), timeout=0.5)
    assert "tacc: tiny-1 runs; trying to reach its ranks: rank 0 at" in capsys.readouterr().err


def test_a_connection_without_its_welcome_is_not_used(monkeypatch):
    """An interrupt while the ranks carry a command out: what is sent then would be carried out, and its answer be taken for the welcome."""
    closed = []
    monkeypatch.setattr("tacc.live.session.Link", lambda endpoint, client, is_local: SimpleNamespace(
        hello=lambda memory: None, close=lambda: closed.append(endpoint.rank)))

    def interrupted(links):
        raise KeyboardInterrupt

    monkeypatch.setattr("tacc.live.session.receive_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tacc.Session(job_at([Endpoint(rank, "", "", 0, "") for rank in range(2)]))
    assert closed == [0, 1]
