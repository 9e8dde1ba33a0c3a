"""Strangers who flood a coordinator keep nobody else from being served, and those who talk no TLS of today are not let in."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

import hostile
from cluster import BUILD

SECONDS = 1.5
# As many as an attacker makes in that time.
NUM_IDLE, NUM_SLOW = 1000, 200


# Not calls that are taken back, nor what holders of certificates do: bench/results.md says how far those go.
@pytest.mark.parametrize("attack", [attack for attack, who in hostile.TLS_ATTACKS if not who and attack is not hostile.rapid_reset])
def test_strangers_keep_nobody_from_being_served(attack):
    found = hostile.measure(attack, "", BUILD, SECONDS, tls=True, num_idle=NUM_IDLE, num_slow=NUM_SLOW)
    assert found["failed"] == 0 and found["p99_ms"] < 1000, found
    # Of headers without an end gRPC reads more than what a stranger may send.
    assert found["most_mib"] <= (3 if attack is hostile.header_flood else 2) * found["before_mib"], found
    assert found["tried"] > 0 and found["let_in"] in ("", 0), found
