"""`tacc.AsyncLoader`: reads a session's next batches while its ranks compute."""

from __future__ import annotations

import io
import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacc.errors import InputError
from tacc.live.pad import bucket_lengths, pad_batch
from tacc.live.session import Session, StagedBatch

_STOP_SECONDS = 1.0  # A loop that ends early waits so long for the batch that is read.


@dataclass(frozen=True)
class _End:
    """Behind the last batch: what the loader raised, if it did."""

    error: BaseException | None


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
        prefetch: How many lie ready, for a model of `tacc.accelerate`. A session has memory for one.
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
        is_training = model is not None and model.training  # Where a loader of evaluations stands, nobody goes on.
        if is_training and model.num_rewinds != self._num_rewinds:
            self._num_rewinds = model.num_rewinds
            self._load(model.session.state or b'{"epoch": 0, "batches": 0}')
        if self._thread is not None:
            self._thread.join()  # It reads the same loader.
        ready: queue.Queue[Any] = queue.Queue(maxsize=self._prefetch if self._session is None else 1)
        stop = threading.Event()
        self._thread = thread = threading.Thread(target=self._read, args=(ready, stop), daemon=True, name="tacc-loader")
        thread.start()
        given: Any = None
        try:
            while not isinstance(item := ready.get(), _End):
                self._drop(given)  # Nobody has used it.
                given, state = item
                if is_training or (model is not None and model.training):  # Some loops call train() behind this.
                    model.loader_state = state
                yield given
            if item.error is not None:
                raise item.error
            self.epoch += 1
            self._num_before = 0
        finally:
            stop.set()
            self._drain(ready)
            self._drop(given)
            thread.join(_STOP_SECONDS)  # Not longer: a loader may wait for what never comes.

    def _drain(self, ready: queue.Queue[Any]) -> None:
        """Gives back what nobody will take."""
        while True:
            try:
                left = ready.get_nowait()
            except queue.Empty:
                return
            if not isinstance(left, _End):
                self._drop(left[0])

    def _drop(self, batch: Any) -> None:
        if self._session is not None and isinstance(batch, StagedBatch):
            self._session.discard(batch)

    def _read(self, ready: queue.Queue[Any], stop: threading.Event) -> None:
        last: BaseException | None = None
        try:
            for number, batch in enumerate(self._loader, 1 if not self._keeps_state else self._num_before + 1):
                if stop.is_set():
                    return
                if number <= self._num_before:
                    continue
                made, state = self._transform(batch), self._state(number)
                if self._fills:
                    made = pad_batch(made, self._fills, self._lengths)
                if self._session is not None:
                    made = self._session.stage(made)
                    made.state = state
                ready.put((made, state))
                if stop.is_set():  # Since it was looked at above.
                    self._drain(ready)
                    return
        except BaseException as error:  # It is the consumer's.
            last = error
        ready.put(_End(last))
        if stop.is_set():
            self._drain(ready)

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
