"""Checkpoints as Hugging Face folders, by taccctl."""

from __future__ import annotations

import os
import subprocess

from tacc.daemon import find_program
from tacc.errors import InputError, TaccError
from tacc.tls import Tls


def command(address: str, tls: Tls, job: str, directory: str | os.PathLike[str], step: int | None, merge: bool) -> list[str]:
    """What writes the folder. TaccError: there is no taccctl here."""
    program = find_program("taccctl")
    if program is None:
        raise TaccError(
            "export is done by taccctl, which is not on PATH; on a machine that has it and sees the checkpoints: "
            f"taccctl --address {address} export {job} --out DIR{' --merge' if merge else ''}"
        )
    arguments = [str(program), "--address", address, *tls.options(), "export", job, "--out", os.fspath(directory)]
    return arguments + (["--step", str(step)] if step is not None else []) + (["--merge"] if merge else [])


def result(code: int, out: str, err: str) -> str:
    """The folder that was written. InputError, TaccError: what taccctl said."""
    if code == 0:
        return out.strip()
    said = "\n".join(line.removeprefix("error: ") for line in err.strip().splitlines()) or f"taccctl export: exit code {code}"
    raise (InputError if code == 2 else TaccError)(said)


def export(address: str, tls: Tls, job: str, directory: str | os.PathLike[str], step: int | None, merge: bool) -> str:
    done = subprocess.run(command(address, tls, job, directory, step, merge), capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    return result(done.returncode, done.stdout, done.stderr)
