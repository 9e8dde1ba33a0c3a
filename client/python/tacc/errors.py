"""The errors of the package. All are `TaccError`s."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacc.messages import JobStatus

LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def this_python() -> str:
    """This Python as a word of a command that can be pasted where it was started."""
    if not sys.executable:
        return "python"
    try:
        near = os.path.relpath(sys.executable)
    except OSError:  # The folder where it was started has gone.
        near = ""
    # Without a slash it would be looked for on the PATH.
    return shlex.quote(near if "/" in near and not near.startswith("..") else sys.executable)


def printable(text: str) -> str:
    """The text for a terminal: control characters, which could be commands to it, are spaces; ends of lines and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)


class TaccError(Exception):
    """Anything that this package raises on purpose."""


class InputError(TaccError):
    """Something the user gave is wrong. The message says what, where, and what to do; the command exits with 2."""


class ConfigError(InputError, AttributeError):
    """A `tacc.Config` has no such field, or cannot hold such a value. The message has the nearest name."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a job.

    Attributes:
        field: Path of the field, "train.max_steps"; empty: of none.
        message: What is wrong and what to do.
        line: In the job file, counted from 1; 0: the job was no file.
        column: In bytes, counted from 1; 0 as above.
    """

    field: str
    message: str
    line: int = 0
    column: int = 0


class InvalidJobError(InputError):
    """The job cannot be: `problems` has all that is wrong with it, each with its field and place; the message has a line for each."""

    def __init__(self, problems: list[Problem], file: str = ""):
        self.problems = problems
        self.file = file
        lines = [f"{file}:{p.line}:{p.column}: {p.message}" if file and p.line else p.message for p in problems]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems, self.file)


class CoordinatorError(TaccError, ConnectionError):
    """No coordinator answers: there is none, it cannot be reached, or it went away. The message says where, and what to do."""


class VersionError(TaccError):
    """The coordinator is of another version, and cannot do what was asked."""


class JobNotFoundError(TaccError, LookupError):
    """There is no such job."""


class ConflictError(TaccError):
    """What was asked cannot be now: another job has the request id, a folder is in use, no workers are attached."""


class LimitError(TaccError):
    """The coordinator has reached one of its limits, as of open streams or jobs. Try again later."""


class AnswerTimeoutError(TaccError, TimeoutError):
    """No answer, or no end of the job, in the time that was given. A job goes on."""


class JobFailedError(TaccError):
    """The job failed. `status` is its last state, with `reason`, `failure_code` and `last_log_lines`."""

    def __init__(self, status: JobStatus):
        self.status = status
        lines = "".join(f"\n  | {line}" for line in status.last_log_lines)
        super().__init__(printable(f"{status.id} failed: {status.reason}{lines}"))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status,)


class JobCancelledError(TaccError):
    """The job was cancelled. `status` is its last state; `status.last_checkpoint` is what it saved."""

    def __init__(self, status: JobStatus):
        self.status = status
        saved = status.last_checkpoint
        what = f"saved at step {saved.step}; submit it again to go on" if saved is not None else "nothing was saved"
        super().__init__(f"{status.id} was cancelled ({what})")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status,)


def refuse_lfs_pointer(path: str, head: bytes) -> None:
    """InputError when a file that begins with `head` only points to what git-lfs has not fetched."""
    if head.startswith(LFS_POINTER):
        raise InputError(f"{path}: a pointer of git-lfs, not the file itself; fetch it in its repository: git lfs pull")
