"""`tacc.fit` of a module: a job trains it with the batches of a loader in this process."""

from __future__ import annotations

import copy
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from tacc.accelerating.batches import Batches, as_batch
from tacc.accelerating.job import Model, Options, check_plain, export, graph_of, spec
from tacc.accelerating.states import weights_of
from tacc.client import Client, Job
from tacc.config import Config
from tacc.errors import InputError, TaccError
from tacc.live.async_loader import AsyncLoader
from tacc.live.session import Session, SessionRestartedError

_KEEP_SECONDS = 600.0  # The job waits so long for the next call when this one was interrupted.
_JOIN_SECONDS = 10.0  # For the step under way; not longer, since a loader may wait for what never comes.


class _Epochs:
    """The epochs of a loader whose first batch was looked at: the first of them goes on behind that. An iterator has one.

    Args:
        loader: Gives an epoch's batches each time it is iterated over.

    Raises:
        StopIteration: It has none.
    """

    def __init__(self, loader: Any):
        self._loader = loader
        self._generators = _generators(loader)
        self._orders: dict[int, list[torch.Tensor]] = {}  # By epoch: what the generators were before it.
        self._order = [generator.get_state() for generator in self._generators]
        self._begun: Iterator[Any] | None = iter(loader)
        self.can_go_back = self._begun is not loader
        """Whether batches can be had again."""
        self._first: Any = next(self._begun)

    @property
    def first(self) -> Any:
        """The batch that was looked at, before the first epoch."""
        return self._first

    def begin(self, epoch: int) -> None:
        """Before an epoch. One that comes again, after a restart, is shuffled as before.

        Args:
            epoch: Its number.
        """
        if epoch not in self._orders:
            self._orders[epoch] = self._order if self._begun is not None else [generator.get_state() for generator in self._generators]
        elif self._begun is None:
            for generator, state in zip(self._generators, self._orders[epoch]):
                generator.set_state(state)

    def rewind(self) -> None:
        """All of it comes again."""

    def __iter__(self) -> Iterator[Any]:
        begun, self._begun = self._begun, None
        if begun is not None:
            first, self._first = self._first, None
            yield first
            yield from begun
        elif self.can_go_back:
            yield from self._loader


class _StatefulEpochs(_Epochs):
    """The same of a loader that keeps its own position."""

    def __init__(self, loader: Any):
        self._start = copy.deepcopy(loader.state_dict())
        super().__init__(loader)
        self.can_go_back = True

    def state_dict(self) -> Any:
        """The loader's: behind the batch that was looked at, that is the first."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """The loader goes on there, and what was looked at comes again if it is behind that.

        Args:
            state: Of `state_dict`.
        """
        self._begun = self._first = None
        self._loader.load_state_dict(state)

    def rewind(self) -> None:
        self.load_state_dict(copy.deepcopy(self._start))


def _epochs(loader: Any) -> _Epochs:
    keeps_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    return _StatefulEpochs(loader) if keeps_state else _Epochs(loader)


def _generators(loader: Any) -> list[torch.Generator]:
    """What a DataLoader of torch is shuffled by, if that was given to it."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        return []
    places = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    found = [getattr(place, "generator", None) for place in places]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def job_of(
    module: torch.nn.Module, data: Iterable[Any], job: Config, loss: Callable[[Any, Any], torch.Tensor] | None, client: Client
) -> tuple[Config, Feed]:
    """The job that trains the module with the loader's batches, and what gives them to it.

    Args:
        module: The model.
        data: Gives an epoch's batches each time it is iterated over; an iterator has one epoch.
        job: What else the job is.
        loss: As of `tacc.accelerate`.
        client: Of the job.

    Raises:
        InputError: The loader is empty, or how many steps there are cannot be told.
    """
    check_plain(module)
    if isinstance(data, torch.utils.data.Dataset) or not isinstance(data, Iterable):
        raise InputError(f"data is a {type(data).__name__}: a module is trained with batches; give a loader, as torch.utils.data.DataLoader(data, batch_size=8)")
    try:
        loader = _epochs(data)
    except StopIteration:
        raise InputError("data has no batch") from None
    first = loader.first
    model = export(module, as_batch(module, (first,), {}, by_position=loss is not None), loss, by_samples=False)
    if model.cotangents:
        raise InputError("the model returns no loss: give loss=lambda outputs, batch: ... to tacc.fit")
    batches = Batches(model.graph.description, model.example, model.optional)
    size = job.train.global_batch_size
    if size not in (None, batches.size):
        raise InputError(f"train.global_batch_size is {size}, and the loader's batches have {batches.size} samples")
    fields = job.to_dict()
    train = {**fields.get("train", {}), "max_steps": _max_steps(job, data)}
    train.pop("num_train_epochs", None)
    options = Options({**fields, "train": train}, client, job.name, None, _KEEP_SECONDS, None, "step")
    feed = Feed(module, model, loader, lambda batch: batches.arrays(as_batch(module, (batch,), {}, by_position=loss is not None), trains=True)[0])
    return Config(spec(module, model, graph_of(model, options, client), {}, batches.size, options)), feed


def _max_steps(job: Config, data: Any) -> int:
    if job.train.max_steps is not None:
        return job.train.max_steps
    epochs = job.train.num_train_epochs
    if epochs is None:
        raise InputError("how long is it to train? Give max_steps or num_train_epochs")
    try:
        return max(math.ceil(epochs * len(data)), 1)
    except TypeError:
        raise InputError(f"num_train_epochs: how many batches an epoch has, a {type(data).__name__} does not say (len); give max_steps") from None


class Feed:
    """Gives a job the batches of a loader, on a thread of its own, until it has trained on as many as it is to.

    Args:
        module: Whose weights are the trained ones in the end.
        model: What was exported of it.
        loader: Gives batches, epoch by epoch.
        transform: Makes a session's arrays of one.
    """

    def __init__(self, module: torch.nn.Module, model: Model, loader: _Epochs, transform: Callable[[Any], Any]):
        self._module = module
        self._model = model
        self._loader = loader
        self._transform = transform
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._weights: dict[str, torch.Tensor] | None = None

    def follow(self, job: Job, wait: Callable[[], Any]) -> Any:
        """What `wait` gives, which waits for the job. When that is interrupted the job keeps what it has: it waits for the next session.

        Raises:
            Exception: What the loader has raised. The job has a checkpoint then, and is cancelled.
        """
        thread = threading.Thread(target=self._run, args=(job,), daemon=True, name="tacc-fit")
        thread.start()
        try:
            status = wait()
        except TaccError:
            self._end(thread)
            self._give_weights()  # Of a training whose last checkpoint or export has failed.
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            self._end(thread)
        self._give_weights()
        return status

    def _give_weights(self) -> None:
        """To the module, if the training came to its end."""
        if self._weights is not None:
            self._module.load_state_dict(self._weights)

    def _end(self, thread: threading.Thread) -> None:
        self._stop.set()
        thread.join(_JOIN_SECONDS)

    def _run(self, job: Job) -> None:
        try:
            with Session(job) as session:
                self._feed(session)
        except BaseException as error:
            if isinstance(error, InputError) or not isinstance(error, TaccError):  # Others are the job's, and `wait` says them.
                self._error = error
                job.cancel()

    def _feed(self, session: Session) -> None:
        loader, empty_epochs = AsyncLoader(self._loader, session, transform=self._transform), 0
        while session.step_number < session.max_steps:
            before = session.step_number
            self._loader.begin(loader.epoch)
            try:
                for batch in loader:
                    if self._stop.is_set():
                        return
                    session.step(batch)
                    if session.step_number >= session.max_steps:
                        break
            except SessionRestartedError as error:
                if not self._loader.can_go_back:
                    raise InputError(
                        f"{error}; data is an iterator, which does not give batches again: call tacc.fit again with a new one, which goes on from there, or "
                        "give a loader"
                    ) from error
                if not session.state:
                    self._loader.rewind()
                loader = AsyncLoader(self._loader, session, transform=self._transform)
                continue
            empty_epochs = empty_epochs + 1 if session.step_number == before else 0
            if empty_epochs == 2:  # One may be the rest of an epoch that was over.
                warnings.warn(f"data has no more batches after step {before} of {session.max_steps}: the training ends here", stacklevel=2)
                break
        self._weights = weights_of(self._module, self._model.graph.description, session)
        session.finish()
