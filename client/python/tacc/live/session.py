"""`tacc.Session`: drives the ranks of a job, step by step, with batches of the caller's."""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tacc import calls
from tacc.client import Client, Job
from tacc.errors import AnswerTimeoutError, InputError, TaccError
from tacc.extras import what_to_install
from tacc.live.answers import number, outputs_of, states_of
from tacc.live.packing import Packer
from tacc.live.session_link import Endpoint, Link, LinkBrokenError, Memory, receive_all
from tacc.live.slots import Part, SessionInput, Slots

if TYPE_CHECKING:  # Imported when used, so that the names are there without it.
    import numpy as np

_POLL_SECONDS = 0.1
_TELL_SECONDS = 3.0  # A session that waits so long says for what.
_SLOTS = 4  # Batches that lie in memory beside those of loaders.
_MOST_SLOTS = 64  # With these. Memory that no batch has lain in yet takes none.


class SessionRestartedError(TaccError):
    """The job has begun again from a checkpoint, as after the loss of a worker: steps since then are undone.

    The session is connected again. Go on from `step` (as `Session.step_number` is now) with `Session.state`.

    Attributes:
        step: Updates that the training has done.
        why: What was seen of the loss.
    """

    def __init__(self, step: int, why: str, what_to_do: str = "go on from there, with Session.state"):
        self.step = step
        self.why = why
        super().__init__(f"the job has begun again after step {step}: {why}; {what_to_do}")


class _MemoryIsNewError(LinkBrokenError):
    """The ranks are reached, and are connected to again to get the memory; nothing is wrong."""


@dataclass(frozen=True)
class StepResult:
    """What a step gave, as its `StepMetrics`.

    Attributes:
        step: Updates done, this one included.
        loss: Mean over the targets of the batch, before the update.
        grad_norm: Of all gradients, before clipping.
        learning_rate: That the update was made with.
        target_tokens: Targets that the loss is a mean over.
        skipped: The gradient norm was not finite, and nothing was updated.
        loss_scale: In float16, after the step.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    target_tokens: float
    skipped: bool
    loss_scale: float | None = None


@dataclass(frozen=True)
class MicroBatchResult:
    """What a micro-batch gave.

    Attributes:
        loss_sum: Over its targets; the mean of a step is over those of all its micro-batches.
        target_tokens: How many they are.
    """

    loss_sum: float
    target_tokens: float


@dataclass(frozen=True)
class ForwardResult:
    """What a forward without gradients gave.

    Attributes:
        loss: Mean over the targets.
        target_tokens: How many they are.
        outputs: What was asked for of what the model returns, by name. bfloat16 are their bits, as uint16.
    """

    loss: float
    target_tokens: float
    outputs: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)


class StagedBatch:
    """A batch in the memory that ranks read. `Session.stage` makes it; it is used once.

    Attributes:
        num_micro_batches: That it has.
        state: What the step takes as `state` if the caller gives none.
    """

    def __init__(self, slot: int, buckets: list[int]):
        self._slot = slot
        self._packed: dict[int, bytes] = {}  # By offset in the slot: what goes over TCP in place of what lies there.
        self._is_used = False
        self._buckets = buckets  # Of each micro-batch.
        self.num_micro_batches = len(buckets)
        self.state: bytes | None = None

    @property
    def is_used(self) -> bool:
        """Whether a command has had it, or it was discarded."""
        return self._is_used


# A batch, or one for each of its micro-batches.
Batch = Mapping[str, Any] | Sequence[Mapping[str, Any]]


def _need_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ModuleNotFoundError as error:
        if (said := what_to_install(error)) is None:
            raise
        raise ImportError(f"tacc.Session: {said}", name=error.name) from error


class Session:
    """Drives a job whose `data` is `{"client": {}}`: its ranks train what this session sends, and nothing else.

        job = client.submit({..., "data": {"client": {}, "seq_len": 128}, ...})
        with tacc.Session(job) as session:
            for tokens, targets in batches:
                result = session.step({"tokens": tokens, "targets": targets})
            session.finish()

    Each rank gets the rows that it computes on: on this machine through memory that both map, elsewhere over TCP. A connection that breaks is
    made again, and what was under way is answered once: no step is trained twice. Only one session drives a job; a later one takes the place of
    the one before. Methods are for one thread, but `stage`, which another may call to prepare the next batch.

    Args:
        job: The job.
        timeout: Seconds to wait until it runs. None: as long as it takes.
        shared_memory: Whether ranks of this machine get batches through memory that both map. False: over the connection, as elsewhere.

    Raises:
        ConflictError: The job's data is a folder.
        JobFailedError, JobCancelledError: It has ended.
        AnswerTimeoutError: It does not run in time.
    """

    def __init__(self, job: Job, *, timeout: float | None = None, shared_memory: bool = True):
        _need_numpy()
        self._job = job
        self._id = secrets.token_hex(8)
        self._uses_memory = shared_memory
        self._links: list[Link] = []
        self._why_broken = "a command was given up"
        self._memory: Memory | None = None
        self._packer = Packer()
        self._serial = 0
        self._attempt = 0
        self._is_closed = False
        self.step_number = 0
        """Updates that the training has done."""
        self.state = b""
        """What was given as `state` with the step that the training stands at; after a restart that of its checkpoint."""
        self.max_steps = 0
        """Updates that the training is to have (`train.max_steps`)."""
        self.global_batch_size = 0
        """Samples of a step."""
        self.num_micro_batches = 0
        """Micro-batches of a step."""
        self.inputs: dict[str, SessionInput] = {}
        """What a batch has, by name."""
        self.outputs: list[str] = []
        """Names of what the model returns beside its loss, for `forward`."""
        self.lengths: list[int] = []
        """Of a job with `data.client.buckets`: tokens that the samples of a batch may have, ascending."""
        self._slots: Slots | None = None
        self.learning_rates: list[float] = []
        """Peaks of the job's learning rates: `train.learning_rate`, and those of `train.param_groups`."""
        self.momenta: list[float] = []
        """Of these, those of parameters whose optimizer has a momentum (the beta1 of Adam and Lion)."""
        self.last_update: StepResult | None = None
        """What the newest update gave that was waited for."""
        self._fields: dict[str, Any] = {}  # Of the command under way, beside its batch.
        self._update_under_way: tuple[bytes | None, bool] | None = None  # Its state, and whether all ranks have it.
        self._answers: list[tuple[dict[str, Any], bytearray]] = []
        self._free: list[int] = []  # The last one was used last, so that no more memory is touched than batches lie in at once.
        self._num_allowed = _SLOTS  # So many may be taken at once.
        self._freed = threading.Condition()
        _OPEN.add(self)
        try:
            self._connect(timeout)
        except BaseException:
            self.close()
            raise

    # --- What it does -------------------------------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """Of the coordinator that has the job."""
        return self._job._client

    @property
    def is_connected(self) -> bool:
        """Whether the ranks answer without a new connection, as far as is known."""
        return bool(self._links) and not self._is_closed

    @property
    def micro_batch_size(self) -> int:
        """Samples of a micro-batch, over all ranks."""
        return self.global_batch_size // self.num_micro_batches

    def stage(self, batch: Batch, *, micro_batches: int | None = None) -> StagedBatch:
        """Puts a batch where the ranks read it, and cuts it up for them, so that the step can begin at once. Waits while all of its memory is taken.

        Args:
            batch: An array for each of `inputs`: numpy, or what `numpy.asarray` takes, as tensors on the CPU. Others are ignored. With `lengths` its
                samples have one of these. A list has one such batch for each micro-batch, which may have different lengths. Numbers of another
                width are made the input's (float64 to float32), whole ones where they fit.
            micro_batches: How many it has. None: as a step.

        Raises:
            InputError: An input is missing, or has another shape or type.
        """
        count = self.num_micro_batches if micro_batches is None else micro_batches
        given = [batch] if isinstance(batch, Mapping) else list(batch)
        if not isinstance(batch, Mapping) and len(given) != count:
            raise InputError(f"a list of {len(given)} micro-batches; wanted {count}")
        slots = self._laid_out()
        rows = self.micro_batch_size * count // max(len(given), 1)
        found = [slots.arrays(one, rows) for one in given]
        buckets = [bucket for bucket, _ in found] * (1 if len(given) == count else count)
        with self._freed:
            self._freed.wait_for(lambda: self._num_taken < self._num_allowed or self._is_closed)
            if self._is_closed:
                raise TaccError("the session is closed")
            slot = self._free.pop()
        staged = StagedBatch(slot, buckets)
        try:
            self._write(staged, [arrays for _, arrays in found])
        except BaseException:
            self.discard(staged)
            raise
        return staged

    def _write(self, staged: StagedBatch, arrays: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> None:
        """`arrays`: of each micro-batch, or of all of them in one."""
        import numpy as np

        written: set[int] = set()
        size = self.micro_batch_size
        count = staged.num_micro_batches
        for rank in range(len(self._laid_out().buckets[0].parts)):
            for m, parts in enumerate(self._parts_of(staged, rank)):
                for part in parts:
                    if part.offset in written:  # Another rank reads the same.
                        continue
                    written.add(part.offset)
                    source = arrays[m if len(arrays) == count else 0][part.name]
                    if self.inputs[part.name].has_batch and len(arrays) < count:
                        source = source[m * size : (m + 1) * size]
                    place = self._place(staged._slot, part)
                    for to, index in part.index:
                        np.copyto(place[to] if to else place, source[index], casting="same_kind")
        staged._packed = self._pack(staged)

    def _pack(self, staged: StagedBatch) -> dict[int, bytes]:
        """Compresses what ranks elsewhere read; what several of them read once."""
        packed: dict[int, bytes] = {}
        seen: set[int] = set()
        for rank, link in enumerate(list(self._links)):
            if link.is_local:
                continue
            rate = link.bytes_per_second
            for part in (part for of_batch in self._parts_of(staged, rank) for part in of_batch):
                if part.offset in seen:
                    continue
                seen.add(part.offset)
                if data := self._packer.pack(part.name, self._place(staged._slot, part), rate):
                    packed[part.offset] = data
        return packed

    def discard(self, batch: StagedBatch) -> None:
        """Gives the memory of a staged batch back, which no step is to use. One that was used has done so.

        Args:
            batch: What `stage` returned.
        """
        with self._freed:
            if not batch._is_used:
                batch._is_used = True
                self._free.append(batch._slot)
                self._freed.notify()

    @property
    def _num_taken(self) -> int:
        """Batches that lie in memory."""
        return _MOST_SLOTS - len(self._free)

    def _allow(self, count: int) -> None:
        """Lets so many batches more lie in memory at once, as those that a loader reads ahead; below 0: as many less. InputError: there is no room."""
        with self._freed:
            if self._num_allowed + count > _MOST_SLOTS:
                raise InputError(
                    f"a session has room for {_MOST_SLOTS - self._num_allowed} batches more, and {count} are to lie in memory: give AsyncLoader a smaller prefetch"
                )
            self._num_allowed += count
            self._freed.notify_all()

    @property
    def bytes_per_step(self) -> tuple[int, list[int]]:
        """Bytes of a batch, of the longest samples, in the memory that ranks share, and those that each rank reads of it, or gets by TCP."""
        of_ranks = self._laid_out().buckets[0].parts
        parts = [part for of_rank in of_ranks for of_batch in of_rank for part in of_batch]
        once = sum({part.offset: part.size for part in parts}.values())
        return once, [sum(part.size for of_batch in of_rank for part in of_batch) for of_rank in of_ranks]

    def step(
        self, batch: Batch | StagedBatch, *, state: bytes | None = None, learning_rates: Mapping[float, float] | None = None,
        momenta: Mapping[float, float] | None = None, max_grad_norm: float | None = None, optimizer_step: int | None = None,
    ) -> StepResult:
        """A step: forward and backward of all micro-batches, and the update.

        Args:
            batch: As of `stage`, or what it returned.
            state: What the caller needs to go on after this step, as the position of its loader: a checkpoint keeps it.
            learning_rates: As of `update`.
            momenta: As of `update`.
            max_grad_norm: As of `update`.
            optimizer_step: As of `update`.

        Raises:
            InputError: As `stage`.
            SessionRestartedError: The job has begun again; the step is not done.
            JobFailedError, JobCancelledError: The job has ended.
        """
        if isinstance(batch, StagedBatch) and state is None:
            state = batch.state
        fields = self._update_fields(learning_rates, momenta, 1.0, max_grad_norm, optimizer_step)
        return self._updated(self._ask("step", batch, state, fields=fields), state)

    def micro_batch(self, batch: Batch | StagedBatch, *, micro_batches: int = 1) -> MicroBatchResult:
        """Forward and backward of one micro-batch or several, whose gradients are added to those since the last update.

        Args:
            batch: As of `stage`, of `micro_batch_size` samples for each micro-batch.
            micro_batches: How many it has, at most those of a step.

        Raises:
            TaccError: The job's steps are those of a pipeline.
            SessionRestartedError: As `step`; micro-batches since the last update are undone.
        """
        answer = self._ask("micro_batch", batch, micro_batches=micro_batches)
        return MicroBatchResult(number(answer, "loss_sum"), answer["target_tokens"])

    def update(
        self, *, state: bytes | None = None, learning_rates: Mapping[float, float] | None = None, momenta: Mapping[float, float] | None = None,
        gradient_factor: float = 1.0, max_grad_norm: float | None = None, optimizer_step: int | None = None,
    ) -> StepResult:
        """The update by the gradients of the micro-batches since the last one: clipping, learning rate, optimizer.

        Args:
            state: As of `step`.
            learning_rates: By a peak of `learning_rates`: what the update is made with in place of what the schedule says.
            momenta: By a peak of `momenta`: the momentum, or the beta1 of Adam and Lion, in place of the job's.
            gradient_factor: What the gradients, of the mean over the targets of all micro-batches, are multiplied by before they are clipped.
            max_grad_norm: What their norm is clipped to. None: `train.max_grad_norm`.
            optimizer_step: Updates that the optimizer counts before this one, as those that loaded states have had. None: those of the training.

        Raises:
            InputError: The job has no such learning rate.
        """
        fields = self._update_fields(learning_rates, momenta, gradient_factor, max_grad_norm, optimizer_step)
        return self._updated(self._ask("update", None, state, fields=fields), state)

    def begin_update(
        self, *, state: bytes | None = None, learning_rates: Mapping[float, float] | None = None, momenta: Mapping[float, float] | None = None,
        gradient_factor: float = 1.0, max_grad_norm: float | None = None, optimizer_step: int | None = None,
    ) -> None:
        """As `update`, without waiting for it: `end_update` does, or the next command, whose errors are then the update's too.

        Args:
            state: As of `update`.
            learning_rates: As of `update`.
            momenta: As of `update`.
            gradient_factor: As of `update`.
            max_grad_norm: As of `update`.
            optimizer_step: As of `update`.
        """
        fields = self._update_fields(learning_rates, momenta, gradient_factor, max_grad_norm, optimizer_step)
        self._begin(fields)
        try:
            self._send("update", None, state)
            self._update_under_way = state, True
        except LinkBrokenError as error:
            self._break(error)
            self._update_under_way = state, False

    def end_update(self) -> None:
        """Waits for the update that `begin_update` has begun, if it was not waited for yet: `last_update` is what it gave."""
        if self._update_under_way is None:
            return
        (state, is_sent), self._update_under_way = self._update_under_way, None
        self._updated(self._checked(self._answered("update", None, state, is_sent=is_sent)), state)

    def _update_fields(
        self, learning_rates: Mapping[float, float] | None, momenta: Mapping[float, float] | None, gradient_factor: float,
        max_grad_norm: float | None, optimizer_step: int | None,
    ) -> dict[str, Any]:
        numbers = {"learning_rates": [*(learning_rates or {}).values()], "gradient_factor": [gradient_factor], "max_grad_norm": [max_grad_norm or 0.0]}
        if wrong := [name for name, values in numbers.items() if not all(map(math.isfinite, values))]:
            raise InputError(f"{wrong[0]} has a number that is not finite: {', '.join(map(repr, numbers[wrong[0]]))}")
        if max_grad_norm is not None and max_grad_norm < 0:
            raise InputError(f"max_grad_norm is {max_grad_norm!r}; wanted 0 or more")
        if unknown := [peak for peak in learning_rates or () if peak not in self.learning_rates]:
            raise InputError(f"no parameters have the learning rate {unknown[0]!r}; there are {', '.join(map(repr, self.learning_rates))}")
        if unknown := [peak for peak in momenta or () if peak not in self.momenta]:
            raise InputError(
                f"no parameters of the learning rate {unknown[0]!r} have a momentum that an update may change; there are "
                f"{', '.join(map(repr, self.momenta)) or 'none'}"
            )
        if wrong_momenta := [value for value in (momenta or {}).values() if not 0 <= value < 1]:
            raise InputError(f"momenta has {wrong_momenta[0]!r}; wanted 0 or more, below 1")
        fields: dict[str, Any] = {}
        if momenta:
            fields["momenta"] = [[peak, momentum] for peak, momentum in momenta.items()]
        if learning_rates:
            fields["learning_rates"] = [[peak, rate] for peak, rate in learning_rates.items()]
        if gradient_factor != 1.0:
            fields["gradient_factor"] = gradient_factor
        if max_grad_norm is not None:
            fields["max_grad_norm"] = max_grad_norm
        if optimizer_step is not None:
            fields["optimizer_step"] = optimizer_step
        return fields

    def discard_gradients(self) -> None:
        """Forgets the micro-batches since the last update."""
        self._ask("discard", None)

    def forward(self, batch: Batch | StagedBatch, *, micro_batches: int | None = None, outputs: Sequence[str] = ()) -> ForwardResult:
        """The loss of a batch by the weights as they are, or by their average (`train.ema_decay`), without dropout, and what the model returns.

        Args:
            batch: As of `stage`.
            micro_batches: How many it has, at most those of a step. None: as a step.
            outputs: Names of `Session.outputs` that are wanted.

        Raises:
            InputError: There is no such output.
        """
        if unknown := [name for name in outputs if name not in self.outputs]:
            raise InputError(f"the model returns no {unknown[0]!r}; it returns {', '.join(map(repr, self.outputs)) or 'its loss alone'}")
        staged = batch if isinstance(batch, StagedBatch) else self.stage(batch, micro_batches=micro_batches)
        if outputs and len(set(staged._buckets)) > 1:
            self.discard(staged)
            raise InputError("outputs of micro-batches with different lengths do not make one array; call forward for each length")
        answer = self._ask("forward", staged, fields={"outputs": list(outputs)} if outputs else {})
        return ForwardResult(number(answer, "loss"), answer["target_tokens"], outputs_of(self._answers, self.micro_batch_size))

    def state_names(self) -> list[str]:
        """Names of what is trained and of the optimizer's states, as checkpoints have them (docs/contracts.md): "weights/lm_head.weight"."""
        self._ask("read", None)
        return list(dict.fromkeys(name for answer, _ in self._answers for name in answer["states"]))

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Values of states as they are now, whole, whatever the layout. bfloat16 are their bits, as uint16.

        Args:
            names: Of `state_names`.

        Raises:
            InputError: There is no such state.
        """
        self._ask("read", None, fields={"states": list(names)})
        found = states_of(self._answers)
        if missing := [name for name in names if name not in found]:
            raise InputError(f"the training has no state {missing[0]!r}; Session.state_names has those that there are")
        return found

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Puts tensors of a folder into the states that they are named as; the others stay as they are. A restart that goes back behind it undoes it.

        Args:
            folder: With `model.safetensors`, or several files with an index. The workers see it under this path; or it is what `Client.upload`
                returned.

        Raises:
            TaccError: A tensor is no state, or has another shape, and nothing was changed; or there is a step under way.
        """
        name = os.fspath(folder)
        is_upload = name.startswith(calls.UPLOAD_PREFIX)
        self._ask("load", None, fields={"upload": name.removeprefix(calls.UPLOAD_PREFIX)} if is_upload else {"path": os.path.abspath(name)})

    def save(self, *, state: bytes | None = None) -> str:
        """Writes a checkpoint. Those of `checkpoint.save_steps` are written by themselves.

        Args:
            state: As of `step`.

        Returns:
            Its folder.

        Raises:
            TaccError: It could not be written.
        """
        answer = self._ask("save", None, state)
        self.state = self.state if state is None else state
        return str(answer["checkpoint"])

    def finish(self, *, state: bytes | None = None) -> None:
        """Ends the training, whatever `max_steps` says: its last checkpoint and its export are written. `Job.wait` tells when that is done.

        Args:
            state: As of `step`.
        """
        self._ask("close", None, state)
        self.close()

    def close(self) -> None:
        """Lets go of the job, which waits for another session (`data.client.wait_seconds`)."""
        with self._freed:
            self._is_closed = True
            self._freed.notify_all()
        self._disconnect()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- Commands -----------------------------------------------------------------------------------------------------

    def _ask(
        self, command: str, batch: Batch | StagedBatch | None, state: bytes | None = None, *, micro_batches: int | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        if self._is_closed:
            raise TaccError("the session is closed")
        staged = batch if isinstance(batch, StagedBatch) or batch is None else self.stage(batch, micro_batches=micro_batches)
        if staged is not None and staged._is_used:
            raise InputError("the staged batch was used before; stage it again")
        try:
            self._begin(fields)
            return self._checked(self._answered(command, staged, state))
        finally:
            if staged is not None:
                self.discard(staged)

    def _begin(self, fields: Mapping[str, Any] | None) -> None:
        """A command, when the one before it is over."""
        self.end_update()
        if self._is_closed:
            raise TaccError("the session is closed")
        self._serial += 1
        self._fields = dict(fields or {})

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "error" in answer:
            raise TaccError(answer["error"])
        return answer

    def _send(self, command: str, staged: StagedBatch | None, state: bytes | None) -> None:
        if not self._links:  # One was broken, or a command was given up.
            attempt = self._attempt
            self._connect(None)
            if self._attempt != attempt:
                raise SessionRestartedError(self.step_number, self._why_broken)
        try:
            for rank, link in enumerate(self._links):
                link.send(*self._frame(rank, link, command, staged, state))
        except LinkBrokenError:
            raise
        except BaseException:  # Some ranks may have it, and others not.
            self._disconnect()
            raise

    def _answered(self, command: str, staged: StagedBatch | None, state: bytes | None, *, is_sent: bool = False) -> dict[str, Any]:
        while True:
            try:
                if not is_sent:
                    self._send(command, staged, state)
                is_sent = True
                self._answers = receive_all(self._links, self._serial)
                if wrong := [answer["serial"] for answer, _ in self._answers if answer["serial"] != self._serial]:
                    raise TaccError(f"the answer to command {wrong[0]} came in place of that to {self._serial}")
                return self._answers[0][0]
            except LinkBrokenError as error:
                self._break(error)
                is_sent = False
            except BaseException:
                # An answer may be half read, or one that nobody waits for comes later.
                if is_sent:
                    self._disconnect()
                raise

    def _break(self, error: LinkBrokenError) -> None:
        self._why_broken = str(error)
        self._disconnect()

    def _frame(self, rank: int, link: Link, command: str, staged: StagedBatch | None, state: bytes | None) -> tuple[str, list[Any]]:
        header: dict[str, Any] = {"command": command, "serial": self._serial, "step": self.step_number, **self._fields}
        payload: list[Any] = []
        if staged is not None:
            slots = self._laid_out()
            parts = self._parts_of(staged, rank)
            header["micro_batches"] = len(parts)
            if slots.lengths:
                header["lengths"] = [slots.lengths[bucket] for bucket in staged._buckets]
            if link.is_local:
                begin = staged._slot * slots.size
                header["offsets"] = [[begin + part.offset for part in of_batch] for of_batch in parts]
            else:
                payload += [staged._packed.get(part.offset) or self._place(staged._slot, part) for of_batch in parts for part in of_batch if part.size > 0]
                if any(part.offset in staged._packed for of_batch in parts for part in of_batch):
                    header["packed"] = [[len(staged._packed.get(part.offset, b"")) for part in of_batch] for of_batch in parts]
        if state is not None:
            header["state_bytes"] = len(state)
            payload += [state] if state else []
        if payload:
            header["bytes"] = sum(memoryview(part).nbytes for part in payload)
        return json.dumps(header), payload

    def _updated(self, answer: dict[str, Any], state: bytes | None) -> StepResult:
        self.step_number = answer["step"]
        self.state = self.state if state is None else state
        self.last_update = StepResult(
            self.step_number, number(answer, "loss"), number(answer, "grad_norm"), number(answer, "learning_rate"), answer["target_tokens"],
            answer["skipped"] != 0, answer.get("loss_scale"),
        )
        return self.last_update

    # --- Connections --------------------------------------------------------------------------------------------------

    def _connect(self, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        told_at: float | None = time.monotonic() + _TELL_SECONDS
        while True:
            attempt, endpoints = self._endpoints(end)
            try:
                self._links = []
                for endpoint in endpoints:
                    self._links.append(Link(endpoint, self._id, is_local=self._uses_memory))
                for link in self._links:
                    link.hello(self._memory)
                self._take(receive_all(self._links))
                self._attempt = attempt
                return
            except LinkBrokenError as error:  # The attempt ends, and the coordinator has not heard of it yet.
                self._disconnect()
                if end is not None and time.monotonic() > end:
                    raise AnswerTimeoutError(f"{self._job.id} runs, but its ranks cannot be reached: {error}") from None
                if told_at is not None and time.monotonic() > told_at and not isinstance(error, _MemoryIsNewError):
                    print(f"tacc: {self._job.id} runs; trying to reach its ranks: {error}", file=sys.stderr)
                    told_at = None
                time.sleep(_POLL_SECONDS)
            except BaseException:  # A link without its welcome is none.
                self._disconnect()
                raise

    def _endpoints(self, end: float | None) -> tuple[int, list[Endpoint]]:
        deadline = calls.Deadline(self._job.id, None)
        told_at: float | None = time.monotonic() + _TELL_SECONDS
        while True:
            phase, attempt, endpoints = self._job._client._run_patiently(calls.get_endpoints(self._job.id), deadline)
            if endpoints:
                return attempt, endpoints
            if phase in calls.ENDED:
                calls.outcome(self._job.status())
                raise TaccError(f"{self._job.id} has finished; a session is of a job that runs")
            if end is not None and time.monotonic() > end:
                raise AnswerTimeoutError(f"{self._job.id} does not run yet: {phase}")
            if told_at is not None and time.monotonic() > told_at and (reason := self._job.status().reason):
                print(f"tacc: {self._job.id} is {phase}: {reason}{self._own_jobs()}", file=sys.stderr)
                told_at = None
            time.sleep(_POLL_SECONDS)

    def _own_jobs(self) -> str:
        """Who has workers that this job may wait for, if it is this process."""
        others = [s._job for s in list(_OPEN) if s is not self and s._attempt and not s._is_closed and s.client.address == self.client.address]
        try:
            own = ", ".join(sorted(job.id for job in others if job.status().phase not in calls.ENDED))
        except TaccError:  # The waiting goes on without it.
            return ""
        return f". This process itself has workers, for {own}: model.close(), or Session.finish(), ends such a job and frees them" if own else ""

    def _disconnect(self) -> None:
        for link in self._links:
            link.close()
        self._links = []

    def _take(self, welcomes: list[tuple[dict[str, Any], bytearray]]) -> None:
        first = welcomes[0][0]
        self.step_number, self.max_steps = first["step"], first["max_steps"]
        self.global_batch_size, self.num_micro_batches = first["global_batch_size"], first["num_micro_batches"]
        self.state = bytes(welcomes[0][1])
        self.outputs = list(dict.fromkeys(name for welcome, _ in welcomes for name in welcome["outputs"]))
        self.learning_rates, self.momenta = (
            sorted({peak for welcome, _ in welcomes for peak in welcome.get(kind, ())}, reverse=True) for kind in ("learning_rates", "momenta")
        )
        if self._slots is not None:
            return  # A job keeps its layout.
        self._slots = Slots([welcome for welcome, _ in welcomes])
        self.inputs, self.lengths = self._slots.buckets[0].inputs, sorted(self._slots.lengths)
        self._memory = Memory(_MOST_SLOTS * self._slots.size)
        self._free = list(reversed(range(_MOST_SLOTS)))
        # The ranks have not got it yet.
        for link in self._links:
            if link.is_local:
                raise _MemoryIsNewError("connect again with the memory")

    # --- Batches ------------------------------------------------------------------------------------------------------

    def _laid_out(self) -> Slots:
        assert self._slots is not None
        return self._slots

    def _parts_of(self, staged: StagedBatch, rank: int) -> list[list[Part]]:
        """What the rank reads of each micro-batch."""
        buckets = self._laid_out().buckets
        return [buckets[bucket].parts[rank][m] for m, bucket in enumerate(staged._buckets)]

    def _place(self, slot: int, part: Part) -> np.ndarray[Any, Any]:
        import numpy as np

        memory = self._memory
        if memory is None or memory.map.closed:  # Meanwhile, by another thread.
            raise TaccError("the session is closed")
        begin = slot * self._laid_out().size + part.offset
        return np.frombuffer(memory.map, part.dtype, part.size // part.dtype.itemsize, begin).reshape(part.shape)


_OPEN: weakref.WeakSet[Session] = weakref.WeakSet()
os.register_at_fork(after_in_child=_OPEN.clear)  # A child has begun none of them.
