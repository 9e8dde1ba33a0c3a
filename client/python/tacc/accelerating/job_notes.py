"""What a loop would not see of the job that trains its model, on stderr."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from tacc.calls import ENDED
from tacc.errors import TaccError

if TYPE_CHECKING:
    from tacc.client import Job
    from tacc.messages import JobStatus

_LOOK_SECONDS = 5.0
_JOIN_SECONDS = 1.0  # A coordinator that is away does not hold up the end.


def say_that_it_begins(job: Job) -> None:
    """Which job trains the model.

    Args:
        job: The job.
    """
    say(f"the job {job.name} trains the model; `taccctl watch {job.id}` shows it")


def say_where_it_begins(status: JobStatus, step: int) -> None:
    """That the job goes on from a checkpoint of its folder.

    Args:
        status: Of the job.
        step: Updates that the training has done.
    """
    say(
        f"{status.id} goes on after step {step}, with the weights and the optimizer's states of the checkpoint in {status.checkpoint_dir}, not the "
        "module's; give another checkpoint.dir to begin anew"
    )


class CheckpointWatch:
    """Says that the job's checkpoints fail, as on a full disk, when they do and when they no longer do. On a thread of its own, until it is stopped.

    Args:
        job: The job.
        seconds: Between two looks.
    """

    def __init__(self, job: Job, seconds: float = _LOOK_SECONDS):
        self._job, self._seconds = job, seconds
        self._stop = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="tacc-checkpoint-watch")
        self._thread.start()

    def stop(self) -> None:
        """Ends it, when what it looks at is said."""
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                status = self._job.status()
            except TaccError:  # The loop hears of a coordinator that is away from its own calls.
                continue
            if status.phase in ENDED:
                return
            self._look(status)

    def _look(self, status: JobStatus) -> None:
        """Says what is new.

        Args:
            status: Of the job.
        """
        failure = status.checkpoint_failure
        if failure is not None and not self._is_failing:
            say(f"{status.id}: checkpoints fail: {failure.message}; it goes on and tries again")
        elif failure is None and self._is_failing:
            say(f"{status.id}: checkpoints are written again")
        self._is_failing = failure is not None


def say(text: str) -> None:
    """Writes a line to stderr.

    Args:
        text: Without the name of this package.
    """
    print(f"tacc: {text}", file=sys.stderr, flush=True)
