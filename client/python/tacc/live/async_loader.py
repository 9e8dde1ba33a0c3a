"""`tacc.AsyncLoader`: reads a session's next batches while its ranks compute."""

from __future__ import annotations

import io
import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacc.errors import InputError
from tacc.live.pad import bucket_lengths, pad_batch
from tacc.live.session import Session

if TYPE_CHECKING:  # It needs torch.
    from tacc.accelerating.ahead import Ahead

_MISSED = 2  # So many batches staged in vain, as for a loop that makes others of them, are the last of an epoch.
_STOP_SECONDS = 1.0  # A loop that ends early waits so long for the batch that is read.


@dataclass(frozen=True)
class _End:
    """Behind the last batch: what the loader raised, if it did."""

    error: BaseException | None


@dataclass(frozen=True)
class _Given:
    """A batch that lies ready.

    Attributes:
        batch: What the loop gets.
        state: Where the loader stands behind it.
        ahead: Of a model: where the ranks read it.
    """

    batch: Any
    state: bytes
    ahead: Ahead | None = None


class _Reading:
    """What an iteration and its thread share.

    Args:
        prefetch: As of AsyncLoader.
    """

    def __init__(self, prefetch: int):
        self.ready: queue.Queue[Any] = queue.Queue()
        self.room = threading.Semaphore(prefetch)  # Batches that may still be made ready.
        self.stop = threading.Event()
        self.session: Session | None = None  # In whose memory they may lie.
        self.num_missed = 0  # Batches that were staged for a model, one behind the other, of which it made no use.


class AsyncLoader:
    """The batches of a loader, read ahead on a thread.

        for batch in tacc.AsyncLoader(loader, session):     # put where the ranks of a session read them
            session.step(batch)

        for batch in tacc.AsyncLoader(loader, model.device):  # as the loader gives them, for a model of tacc.accelerate
            model(**batch).loss.backward()

    Checkpoints keep where the loader stands, as `state` of each step. With a session that has one (`Session.state`) the first epoch goes on
    there: a loader with `state_dict` and `load_state_dict`, as torchdata's StatefulDataLoader, takes its own state again; of another one, which must
    give the same batches again, those that were trained on are read and left out. The same holds for a new AsyncLoader after a
    SessionRestartedError. With a model of `tacc.accelerate` the same loader goes on there when it is iterated over again.

    Args:
        loader: Gives the batches of an epoch each time it is iterated over.
        session: Where they go: a session, or a model of `tacc.accelerate`, which gives them as they are. With anything else, as the device of scripts
            that move batches by themselves, checkpoints do not know where the loader stands.
        transform: Makes the arrays of `Session.inputs` from what the loader gives. None: it gives them, by name.
        prefetch: How many lie ready, beside the one that is trained on: each takes the memory of a batch (`Session.bytes_per_step`) where the ranks read
            it, from the first that lies there on, and of a model of `tacc.accelerate` that of its tensors too. A session has room for 60 batches of all
            loaders that are read at once, the ones that are trained on included; those of a model that find none go to the ranks in the step.
        buckets: Lengths that samples are filled up to, the next one each, along dim 1: [128, 256, 512], or the longest, for the powers of two below it.
            None: `Session.lengths`. A model of `tacc.accelerate(..., buckets=)` fills batches up by itself.
        pad_value_dict: What fills them up, by name: `{"tokens": 0, "targets": -1}`. What it does not name stays as it is.
    """

    def __init__(
        self, loader: Iterable[Any], session: Any = None, *, transform: Callable[[Any], Any] | None = None, prefetch: int = 2,
        buckets: Sequence[int] | int | None = None, pad_value_dict: Mapping[str, float] | None = None,
    ):
        if prefetch < 1:
            raise InputError(f"prefetch={prefetch!r}; wanted 1 or more")
        self._loader: Any = loader
        self._session: Session | None = session if isinstance(session, Session) else None
        self._model: Any = session if hasattr(session, "loader_state") else None
        self._num_rewinds = 0  # Of the model, that this loader has followed.
        self._prefetch = prefetch
        self._transform = transform or (lambda batch: batch)
        self._fills = dict(pad_value_dict or {})
        self._lengths = bucket_lengths(buckets) if buckets is not None else [] if self._session is None else self._session.lengths
        if bool(self._fills) != bool(self._lengths) and (self._fills or buckets is not None):
            raise InputError("pad_value_dict, and lengths to fill up to, go together: give both it and buckets, or a session whose job has data.client.buckets")
        self._keeps_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self.epoch = 0
        """Epochs that are over."""
        self._thread: threading.Thread | None = None
        self._num_before = 0  # Batches of this epoch that are not to come again.
        if self._session is not None and self._session.state:
            self._load(self._session.state)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch; the next time it is the next one."""
        model = self._model
        if self._thread is not None:
            self._thread.join()  # It reads the same loader.
        is_training = model is not None and model.training  # Where a loader of evaluations stands, nobody goes on.
        if is_training and model.num_rewinds != self._num_rewinds:
            self._num_rewinds = model.num_rewinds
            self._load(model.session.state or b'{"epoch": 0, "batches": 0}')
        reading = _Reading(self._prefetch)
        self._let_stage(reading)
        self._thread = thread = threading.Thread(target=self._read, args=(reading,), daemon=True, name="tacc-loader")
        thread.start()
        given: _Given | None = None
        try:
            while not isinstance(item := reading.ready.get(), _End):
                given = item
                reading.room.release()
                if is_training or (model is not None and model.training):  # Some loops call train() behind this.
                    model.loader_state = given.state
                if model is not None:
                    model.batch_ahead = given.ahead
                yield given.batch
                if given.ahead is not None:
                    reading.num_missed = 0 if given.ahead.is_used else reading.num_missed + 1
                self._drop(given)  # If nobody has used it.
                given = None
                self._let_stage(reading)
            if item.error is not None:
                raise item.error
            self.epoch += 1
            self._num_before = 0
        finally:
            reading.stop.set()
            reading.room.release()
            self._drain(reading)
            if given is not None:
                self._drop(given)
            if given is not None and model is not None and model.batch_ahead is given.ahead:
                model.batch_ahead = None  # It has the batch's tensors.
            if reading.session is not None:
                reading.session._allow(-1 - self._prefetch)
            thread.join(_STOP_SECONDS)  # Not longer: a loader may wait for what never comes.

    def _let_stage(self, reading: _Reading) -> None:
        """Batches of the reader may lie in a session's memory, once there is one."""
        session = self._session if self._model is None else self._model.session_ahead
        if reading.session is not None or session is None:
            return
        try:
            session._allow(1 + self._prefetch)  # One of them is trained on.
        except InputError:
            if self._model is None:
                raise
            return  # They go to the ranks in the step.
        reading.session = session

    def _drain(self, reading: _Reading) -> None:
        """Gives back what nobody will take."""
        while True:
            try:
                left = reading.ready.get_nowait()
            except queue.Empty:
                return
            if not isinstance(left, _End):
                self._drop(left)

    def _drop(self, given: _Given) -> None:
        if self._session is not None:
            self._session.discard(given.batch)
        if given.ahead is not None:
            given.ahead.discard()

    def _read(self, reading: _Reading) -> None:
        last: BaseException | None = None
        reading.room.acquire()
        try:
            for number, batch in enumerate(self._loader, 1 if not self._keeps_state else self._num_before + 1):
                if reading.stop.is_set():
                    return
                if number <= self._num_before:
                    continue
                reading.ready.put(self._made(batch, self._state(number), reading))
                reading.room.acquire()
                if reading.stop.is_set():
                    self._drain(reading)  # It may have ended before the last one was there.
                    return
        except BaseException as error:  # It is the consumer's.
            last = error
        reading.ready.put(_End(last))
        if reading.stop.is_set():
            self._drain(reading)

    def _made(self, batch: Any, state: bytes, reading: _Reading) -> _Given:
        """What a batch of the loader becomes, staged if there is a session."""
        made = self._transform(batch)
        if self._fills:
            made = pad_batch(made, self._fills, self._lengths)
        if self._session is not None:
            staged = self._session.stage(made)
            staged.state = state
            return _Given(staged, state)
        is_wanted = reading.session is not None and reading.num_missed < _MISSED
        return _Given(made, state, self._model.stage_ahead(made) if is_wanted else None)

    def _state(self, num_batches: int) -> bytes:
        state: dict[str, Any] = {"epoch": self.epoch, "batches": num_batches}
        if self._keeps_state:
            import torch

            data = io.BytesIO()
            torch.save(self._loader.state_dict(), data)
            state["loader"] = data.getvalue().hex()
        return json.dumps(state).encode()

    def _load(self, text: bytes) -> None:
        try:
            state = json.loads(text)
            self.epoch, self._num_before = int(state["epoch"]), int(state["batches"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"the session's state is not of an AsyncLoader ({error}); go on as it was made") from error
        if self._keeps_state and "loader" in state:
            import torch

            self._loader.load_state_dict(torch.load(io.BytesIO(bytes.fromhex(state["loader"])), weights_only=True))
