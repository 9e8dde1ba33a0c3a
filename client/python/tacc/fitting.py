"""`tacc.fit`: from a model and data to a trained model, in one call."""

from __future__ import annotations

import copy
import filecmp
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from tacc import calls
from tacc.accelerating.job_notes import CheckpointWatch
from tacc.client import Client, Job
from tacc.config import Config
from tacc.config_sections import TrainOptions
from tacc.display import near
from tacc.errors import ConflictError, InputError
from tacc.messages import JobStatus

_MADE = "fit.json"  # In the output folder: of what its data was prepared.
_LONGEST = 2048  # Tokens of a sample, unless somebody says more.
_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "model_max_length")  # Of config.json, by family.
_NEWEST = 1000  # Jobs that are looked through.


@dataclass(frozen=True)
class FitResult:
    """A training that has finished. It is a path: `tacc.fit(result, other_data)` trains on; `from_pretrained(result.path)` loads the model.

    Of a training with `lora` it is an adapter: `tacc.fit(model, other_data, lora={"init_from": result.path})` trains on, of the same model;
    `PeftModel.from_pretrained(model, result.path)` loads it.

    Attributes:
        job: What trained. `job.metrics()`, `job.logs()`, `job.plan()` say more.
        status: Its last state.
        path: The trained model or adapter, a Hugging Face folder.
    """

    job: Job
    status: JobStatus
    path: Path

    def metrics(self, kind: str = "step") -> Any:
        """Metrics so far of `job`, as `Job.metrics`: the steps that this call did or followed. Those of earlier jobs of the output folder
        are in its metrics.jsonl.

        Args:
            kind: "step" or "eval".
        """
        return self.job.metrics(kind)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        loss = f", loss {self.status.last_step.loss:.4f}" if self.status.last_step else ""
        return f"FitResult({near(str(self.path))!r}, step {self.status.step}{loss})"

    def _repr_html_(self) -> str:
        return self.job._repr_html_()


def fit(
    model: Any,
    data: Any,
    *,
    output_dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    config: Config | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    prepare: Mapping[str, Any] | None = None,
    client: Client | None = None,
    report_to: str | Sequence[str] = (),
    progress: bool = True,
    timeout: float | None = None,
    loss: Any = None,
    **train: Unpack[TrainOptions],
) -> FitResult:
    """Trains a model, shows how far it is, and gives the trained model.

        tacc.fit("models/olmo2", "data/mine", output_dir="runs/mine", num_train_epochs=2, learning_rate=1e-5)
        tacc.fit(LlamaConfig(vocab_size=8192, ...), ["corpus/"], output_dir="runs/new", max_steps=1000)
        tacc.fit(module, loader, loss=loss_of, output_dir="runs/images", num_train_epochs=90, optim="sgd", learning_rate=0.1)

    Called again with the same `output_dir`, after Ctrl-C, a dead kernel or a reboot, it goes on: it follows the job if that still runs, else
    goes on from the last checkpoint. To train further, raise `max_steps` or `num_train_epochs`.

    Args:
        model: Folder of a Hugging Face model. Or a configuration of `transformers`, or a dict as in config.json: a new model of this shape
            with random weights, written to `output_dir`/model. Or a torch.nn.Module, which has the trained weights in the end.
        data: A folder that was prepared (`tacc.prepare`), whose held-out part, if there is one, is evaluated on. Or anything that
            `tacc.prepare` takes: paths, a `datasets.Dataset`, a DataFrame, an iterable; it is prepared once, in `output_dir`/data. Other data
            in the next call is a ConflictError, as far as it can be told: of a file its size is compared, and what a generator gives is not
            read again. Of a module: a loader of batches, all with the first one's shapes, that this process reads, once an epoch, as a
            loop would; when it goes on after a restart, batches that were trained on are left out, or the loader goes on by its `state_dict`
            (`AsyncLoader`). Within a call a `DataLoader` with a `generator` is shuffled again as it was. An iterator is one epoch.
        output_dir: Folder of the checkpoints, metrics, logs and the trained model. The daemon and its workers must see it. None: `checkpoint.dir`
            of `config`, else runs/fit.
        name: Of the job. None: that of `config`, else of the output folder.
        config: What else the job says: a `Config`, a dict, or the path of a job file. What is given here is laid over it.
        prepare: Options of `tacc.prepare`. Left out, the tokenizer is the model's, or for a new model one of its `vocab_size` is trained, and
            a sample has as many tokens as `config` says, else the model takes, at most 2048.
        client: None: this machine's coordinator, started if there is none.
        report_to: "mlflow", "wandb", or both (`Job.report`). TensorBoard's files are always in `output_dir`/tensorboard.
        progress: As of `Job.wait`.
        timeout: In seconds, of the training. It goes on; that of a module waits 600 s for the next call, then it saves and ends.
        loss: Of a module that returns none: a function of (outputs, batch), as of `tacc.accelerate`.
        train: Further arguments are fields of `train`: `max_steps`, `num_train_epochs`, `learning_rate`, `global_batch_size`, ...

    Raises:
        InputError, InvalidJobError: Something that was given is wrong; all that is, at once.
        ConflictError: Another job trains in `output_dir`, or it has the training of another model or of other data.
        JobFailedError, JobCancelledError, AnswerTimeoutError: As `Job.wait`.
    """
    from tacc.reporting import check_names

    names = check_names(report_to)
    job = _base(config)
    given = output_dir if output_dir is not None else os.path.join(job.directory, job.checkpoint.dir or os.path.abspath("runs/fit"))
    out = Path(os.path.abspath(given))
    _name(job, name, out)
    job.update({"train": train, "checkpoint": {"dir": out}})
    client = client or Client()
    feed = None
    if _is_module(model):
        if prepare:
            raise InputError("prepare goes with text that is to be tokenized; a module is trained with the batches of a loader")
        from tacc.accelerating.fit_module import job_of

        job, feed = job_of(model, data, job, loss, client)
    elif loss is not None:
        raise InputError("loss goes with a torch.nn.Module; a folder or a configuration is of a language model, which has its own")
    else:
        _give_model_and_data(job, model, data, prepare or {}, out, client)
    started = _running(client, job, out) or client.submit(job)
    wait = partial(started.wait, timeout, progress=progress, report_to=names)
    watch = CheckpointWatch(started)
    try:
        status = wait() if feed is None else feed.follow(started, wait)
    finally:
        watch.stop()
    return FitResult(started, status, Path(status.exported_path))


def _give_model_and_data(job: Config, model: Any, data: Any, prepare: Mapping[str, Any], out: Path, client: Client) -> None:
    """Sets the job's sections `model` and `data`; writes a new model, and prepares data that is not."""
    made = _Made(out)
    shape = _shape(model)
    model_path = Path(os.path.abspath(os.fspath(model))) if shape is None else made.model_path
    folder = _prepared(data)
    if folder is not None and prepare:
        raise InputError(f"prepare goes with data that is to be prepared; {folder} is a prepared folder")
    job.update({"model": {"path": model_path}, "data": {"path": folder or made.data_path}})
    # What is wrong with the job, or that nobody is there to run it, is said before data is prepared, which may take long.
    asked = copy.copy(job)
    if asked.data.eval_path is None:  # Whether there will be one, the preparation says.
        asked.data.eval_path = (folder or made.data_path) / "eval"
    client._run(calls.read_job(asked))
    if shape is not None:
        made.model(shape, may_replace=_status_in(client, out) is None)
        if job.model.weights is None:
            job.model.weights = "random"
    if folder is None:
        folder = made.data(data, _options(prepare, model_path, shape, job.data.seq_len))
    if shape is not None:
        made.tokenizer(folder)
    if job.data.eval_path is None and (folder / "eval/index.json").exists():
        job.data.eval_path = folder / "eval"


def _is_module(model: Any) -> bool:
    torch = sys.modules.get("torch")  # Without it there is no module.
    return torch is not None and isinstance(model, torch.nn.Module)


def _name(job: Config, name: str | None, out: Path) -> None:
    """If it has none, it is named as the output folder."""
    job.name = name or job.name or re.sub(r"[^A-Za-z0-9._-]+", "-", out.name).strip("-._")[:63] or "fit"


def _base(config: Config | Mapping[str, Any] | str | os.PathLike[str] | None) -> Config:
    """A copy of the job that is laid under."""
    if config is None:
        return Config()
    if isinstance(config, str | os.PathLike):
        return Config.from_yaml(config)
    return copy.copy(config) if isinstance(config, Config) else Config(config)


def _shape(model: Any) -> dict[str, Any] | None:
    """The config.json of a new model; None: `model` is a folder."""
    if isinstance(model, str | os.PathLike):
        return None
    if isinstance(model, Mapping):
        return {str(key): value for key, value in model.items()}
    if not hasattr(model, "to_json_string"):
        raise InputError(f"model is the folder of a model, a configuration of transformers, or a dict, not a {type(model).__name__}")
    shape = dict(json.loads(model.to_json_string(use_diff=False)))
    if not shape.get("architectures"):
        from transformers import AutoModelForCausalLM

        of = AutoModelForCausalLM._model_mapping.get(type(model), None)
        if of is not None:
            shape["architectures"] = [of.__name__]
    return shape


def _prepared(data: Any) -> Path | None:
    """The folder that `data` is, if it is a prepared one."""
    if not isinstance(data, str | os.PathLike):
        return None
    folder = Path(os.path.abspath(data))
    return folder if (folder / "index.json").exists() else None


def _options(given: Mapping[str, Any], model: Path, shape: dict[str, Any] | None, seq_len: int | None) -> dict[str, Any]:
    """Options of `tacc.prepare`, with what follows from the model."""
    options = dict(given)
    if "tokenizer" not in options and "train_tokenizer" not in options:
        if shape is None:
            options["tokenizer"] = str(model)
        elif "vocab_size" in shape:
            options["train_tokenizer"] = shape["vocab_size"]
        else:
            raise InputError('the model has no vocab_size to train a tokenizer of; give it, or prepare={"tokenizer": FOLDER}')
    if "seq_len" not in options:
        config = _config_json(model)
        options["seq_len"] = seq_len or min([_LONGEST, *(config[name] for name in _LENGTHS if isinstance(config.get(name), int))])
    return options


def _config_json(model: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((model / "config.json").read_text()))
    except (OSError, ValueError, TypeError):  # What is wrong with it, the job's check says.
        return {}


class _Made:
    """What `fit` writes into the output folder before the training, once: the shape of a new model, and prepared data."""

    def __init__(self, out: Path):
        self._out = out
        self.model_path = out / "model"
        self.data_path = out / "data"

    def model(self, shape: dict[str, Any], may_replace: bool) -> None:
        """Makes `model_path` the folder of a new model of this shape, in place of one of which nothing has been trained."""
        path = self.model_path / "config.json"
        try:
            text = json.dumps(shape, indent=2, sort_keys=True) + "\n"
        except (TypeError, ValueError) as error:
            raise InputError(f"model is no config.json: {error}") from error
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, text)
        elif _model_of(_read(path)) == _model_of(json.loads(text)):
            return
        elif may_replace and not any(self._out.glob("step-*")) and not (self._out / "hf").exists():
            _write(path, text)
        else:
            raise ConflictError(f"{self._out} has the training of another model, {path}; choose another output_dir, or remove the folder")

    def tokenizer(self, data: Path) -> None:
        """Gives a new model the tokenizer of its data, which comes along to the trained one."""
        for file in sorted((data / "tokenizer").glob("*")):
            copy = self.model_path / file.name
            if file.is_file() and not (copy.exists() and filecmp.cmp(file, copy, shallow=False)):
                shutil.copyfile(file, copy)

    def data(self, data: Any, options: dict[str, Any]) -> Path:
        """The prepared folder of this data."""
        folder, note = self.data_path, self._out / _MADE
        of = {"data": _source(data), "prepare": {key: _word(value) for key, value in sorted(options.items())}}
        if (folder / "index.json").exists():
            if not note.exists() or _read(note) != of:
                how = f"{note} says how" if note.exists() else "not by tacc.fit"
                raise ConflictError(
                    f"{folder} was prepared from other data, or otherwise ({how}); choose another output_dir, remove the folder, or give the folder "
                    "itself as data, to train on what is in it"
                )
            if of["data"] is None:
                warnings.warn(f"data is not read: {folder} was prepared in an earlier call, and a {type(data).__name__} cannot be compared", stacklevel=4)
            return folder
        from tacc.prepare_data import prepare

        self._out.mkdir(parents=True, exist_ok=True)
        _write(note, json.dumps(of, indent=2) + "\n")
        return prepare(data, folder, **options).path


def _model_of(config: dict[str, Any]) -> dict[str, Any]:
    """What a config.json says of the model, without who wrote it: a newer transformers writes the same one."""
    return {name: value for name, value in config.items() if name not in ("transformers_version", "_name_or_path")}


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path) -> Any:
    """What `fit` wrote before."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConflictError(
            f"{path} cannot be read ({error}), so what {path.parent} was made of cannot be told; choose another output_dir, or remove the folder"
        ) from error


def _source(data: Any) -> Any:
    """What tells data apart from other data: paths with the bytes there, or a fingerprint of what is in memory. None: that cannot be told, as it can be
    read only once."""
    if isinstance(data, str | os.PathLike):
        return [os.path.abspath(data), _num_bytes(data)]
    if isinstance(data, list | tuple) and data and all(isinstance(item, str | os.PathLike) for item in data):
        return [[os.path.abspath(item), _num_bytes(item)] for item in data]
    if fingerprint := getattr(data, "_fingerprint", None):  # Of a datasets.Dataset.
        return f"{type(data).__name__} {fingerprint}"
    if not isinstance(data, Sized):
        return None
    from tacc.preparing.in_memory import fingerprint as fingerprint_of
    from tacc.preparing.in_memory import paths_or_records

    records = paths_or_records(data)
    assert not isinstance(records, list)
    return f"{type(data).__name__} {fingerprint_of(records)}"


def _num_bytes(path: str | os.PathLike[str]) -> int:
    """Of a file, or of the files in a folder."""
    inside = (os.path.join(here, name) for here, _, names in os.walk(path) for name in names)
    return sum(os.path.getsize(file) for file in ([path] if os.path.isfile(path) else inside) if os.path.isfile(file))


def _word(value: Any) -> Any:
    """An option as the note has it."""
    if isinstance(value, list | tuple):
        return [_word(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.path.abspath(value)
    return value if isinstance(value, bool | int | float | str | None) else type(value).__name__


def _status_in(client: Client, out: Path) -> JobStatus | None:
    """The job that trains in the folder, or waits to."""
    jobs = client._run(calls.list_jobs(_NEWEST))
    return next((status for status in jobs if status.checkpoint_dir == str(out) and not calls.has_ended(status)), None)


def _running(client: Client, job: Config, out: Path) -> Job | None:
    """The job that trains in the folder, if it is this one. ConflictError: it is another."""
    status = _status_in(client, out)
    if status is None:
        return None
    if client.job(status.id).status().spec == client.check(job):
        return Job(client, status)
    raise ConflictError(
        f"{status.id} trains in {out}, and is another job; wait for it (client.job({status.id!r}).wait()), stop it (.cancel()), or "
        "choose another output_dir"
    )
