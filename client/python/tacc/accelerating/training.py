"""The end of a training, of which all is here that it takes: the model's handle may have gone by then."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from tacc.accelerating import remote_tensors
from tacc.accelerating.changes import Changes
from tacc.accelerating.job import Model
from tacc.accelerating.job_notes import CheckpointWatch, say
from tacc.accelerating.states import weights_of
from tacc.accelerating.steps import Steps
from tacc.client import Job
from tacc.errors import JobCancelledError, TaccError
from tacc.live.session import Session, SessionRestartedError
from tacc.messages import JobStatus

_CANCEL_SECONDS = 60.0  # For the checkpoint of a job that is cancelled; it ends without anybody's waiting, too.


class Training:
    """A job with the session that drives it, and what it has changed in this process.

    Args:
        module: Whose weights are the trained ones in the end.
        model: What was exported of it.
        job: The job.
        session: Drives it.
        steps: Of the session.
        changes: Those of the module that the loop has made.
        unhook: Leaves the optimizer as it was.
    """

    def __init__(self, module: torch.nn.Module, model: Model, job: Job, session: Session, steps: Steps, changes: Changes, unhook: Callable[[], None]):
        self._module, self._model, self._job, self._session, self._steps, self._changes = module, model, job, session, steps, changes
        self._unhook = unhook
        self._watch = CheckpointWatch(job)
        self._process = os.getpid()
        self.restarted: SessionRestartedError | None = None
        """That the next command raises."""

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was begun here, and not by the process that this one is a fork of."""
        return self._process == os.getpid()

    def finish(self, *, takes_weights: bool) -> JobStatus:
        """Ends it with its last checkpoint and the export. The job's state then.

        Args:
            takes_weights: Whether the module gets the trained weights, unless some were changed here.
        """
        self._release()
        try:
            if self.restarted is not None:
                raise self.restarted
            self._steps.abandon()
            if takes_weights:
                self._take_weights()
            self._session.finish()
            return self._job.wait(progress=False)
        except SessionRestartedError as error:
            raise SessionRestartedError(error.step, error.why, "the model was closed before the steps since then were done again") from None
        finally:
            self._let_go()

    def cancel(self, error: BaseException, *, takes_weights: bool) -> None:
        """Ends it with a checkpoint and without an export, for its loop has died. What goes wrong is said on stderr.

        Args:
            error: What the loop has died of.
            takes_weights: As of `finish`, if they can be had at once.
        """
        self._release()
        try:
            if takes_weights and self.restarted is None and self._session.is_connected:
                with contextlib.suppress(TaccError):
                    self._take_weights()
            self._session.close()
            self._job.cancel()
            self._job.wait(_CANCEL_SECONDS, progress=False)
        except JobCancelledError:
            checkpoint = self._job.status().last_checkpoint
            kept = "before its first step" if checkpoint is None else f"with the checkpoint of step {checkpoint.step}"
            say(f"{self._job.id} was cancelled {kept}, because its loop ended with {type(error).__name__}")
        except Exception as why:  # What the loop has died of is not to be hidden by it.
            say(f"{self._job.id} was to be cancelled, because its loop ended with {type(error).__name__}: {why}")
        finally:
            self._let_go()

    def detach(self) -> None:
        """Lets go of the job, which waits for another session."""
        self._release()
        self._let_go()

    def finish_alone(self, *, takes_weights: bool = True) -> None:
        """As `finish`, where nobody hears of an error: it is said on stderr, and the job does not keep its workers.

        Args:
            takes_weights: As of `finish`.
        """
        try:
            self.finish(takes_weights=takes_weights)
        except BaseException as error:  # Also an interrupt, which would be lost here.
            say(f"{self._job.id} could not be ended with its last checkpoint and its export: {error or type(error).__name__}")
            with contextlib.suppress(TaccError):
                self._job.cancel()

    def _take_weights(self) -> None:
        if not self._changes.has_tensors_changed():
            self._module.load_state_dict(weights_of(self._module, self._model.graph.description, self._session))

    def _release(self) -> None:
        """Optimizer and module are as any others."""
        self._unhook()
        remote_tensors.let_go([*self._module.parameters(), *self._module.buffers()])

    def _let_go(self) -> None:
        self._watch.stop()
        self._session.close()  # The client stays: it is the job's.
        if self._model.kept is not None:
            self._model.kept.close()


def finish_dropped(training: Training) -> None:
    """Ends a training whose handle has gone. During a garbage collection, in whose midst any lock may be held, on a thread of its own.

    Args:
        training: The training.
    """
    if not training.is_of_this_process:
        return
    if getattr(_collecting, "is_under_way", False):
        threading.Thread(target=training.finish_alone, name="tacc-end").start()  # Which the interpreter waits for.
    else:
        training.finish_alone()


_collecting = threading.local()


def _note_collection(phase: str, info: Any) -> None:
    _collecting.is_under_way = phase == "start"


gc.callbacks.append(_note_collection)


def is_failure(error: BaseException | None) -> bool:
    """Whether a loop that was left by this did not come to its end.

    Args:
        error: None: it was left by none.
    """
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return error is not None and not isinstance(error, GeneratorExit)


def script_died_of() -> BaseException | None:
    """At the end of the interpreter: the exception that a script has died of. Of one that is typed in, an exception ends no more than a line."""
    shell = sys.modules.get("IPython")
    is_typed = hasattr(sys, "ps1") or sys.flags.interactive or (shell is not None and shell.get_ipython() is not None)
    return None if is_typed else getattr(sys, "last_value", None)
