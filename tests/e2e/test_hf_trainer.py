"""`tacc.accelerate_hf_trainer`: scripts with `transformers.Trainer` have the logs, events, predictions and files that they have without."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tacc
import torch
import transformers
from cluster import Cluster
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)

# Products are rounded in fp32 in another order than PyTorch's.
ROUNDING = 1e-4
FSDP = {"dist": {"fsdp": {"size": 2}}, "resources": {"workers": 2}}
ONE = {"resources": {"workers": 1}}
VOCABULARY = 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def folders(cluster, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TACC_ADDRESS", cluster.address)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


class Texts(Dataset[dict[str, Any]]):
    """Ids that follow one another, of the same or of several lengths; labels are the ids, or a class."""

    def __init__(self, count: int, *, length: int = 10, ragged: bool = False, classes: int = 0, masked: bool = False):
        random = np.random.default_rng(count)
        self._samples = []
        for _ in range(count):
            n = int(random.integers(3, length + 1)) if ragged else length
            ids = ((random.integers(VOCABULARY - 4) + np.arange(n)) % (VOCABULARY - 4) + 4).tolist()
            sample: dict[str, Any] = {"input_ids": ids, "attention_mask": [1] * n}
            if classes:
                sample["labels"] = ids[0] % classes
            else:
                # Some are no targets, so that batches have different numbers of them.
                sample["labels"] = [-100 if masked and i < ids[0] % (n - 2) else t for i, t in enumerate(ids)]
            self._samples.append(sample)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self._samples[i]


class Images(Dataset[dict[str, Any]]):
    def __init__(self, count: int):
        random = torch.Generator().manual_seed(count)
        self._pixels = torch.randn(count, 3, 8, 8, generator=random)
        self._labels = torch.randint(0, 3, (count,), generator=random)

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"pixel_values": self._pixels[i], "labels": self._labels[i]}


def gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=0
    ))


def llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=16, pad_token_id=0
    ))


def bert() -> Any:
    return BertForSequenceClassification(BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=16, num_labels=3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    ))


def vit() -> Any:
    return ViTForImageClassification(ViTConfig(
        image_size=8, patch_size=4, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_labels=3
    ))


def padded(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Each batch to its own longest, as DataCollatorWithPadding."""
    longest = max(len(s["input_ids"]) for s in samples)
    fills = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    rows = {k: [s[k] + [fills[k]] * (longest - len(s[k])) if isinstance(s[k], list) else s[k] for s in samples] for k in samples[0]}
    return {k: torch.tensor(v) for k, v in rows.items()}


padded.pad_to_multiple_of = None  # type: ignore[attr-defined]  # What says that it is such a one.


class Events(TrainerCallback):
    """Names of the events, each with the step."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda args, state, control, **_: self.seen.append((name, state.global_step))
        return super().__getattribute__(name)


class Run:
    """What a script shows."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.events = Events()
        self.shown: dict[str, Any] = {}

    def arguments(self, **options: Any) -> dict[str, Any]:
        return {
            "output_dir": str(self.folder), "max_steps": 4, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "logging_steps": 1,
            "learning_rate": 1e-2, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True, **options,
        }

    def trainer(self, model: Any, data: Any, *, kind: type[Trainer] = Trainer, arguments: type[TrainingArguments] = TrainingArguments, **options: Any) -> Any:
        given = {k: options.pop(k) for k in list(options) if k in KEYWORDS}
        callbacks = [self.events, *given.pop("callbacks", [])]
        trainer = kind(model, arguments(**self.arguments(**options)), train_dataset=data, callbacks=callbacks, **given)
        self.shown["trainer"] = trainer
        return trainer

    @property
    def files(self) -> dict[str, list[str]]:
        return {f.name: sorted(os.listdir(f)) for f in sorted(self.folder.glob("checkpoint-*"))}


KEYWORDS = ("eval_dataset", "compute_metrics", "callbacks", "data_collator", "compute_loss_func", "optimizers", "model_init")


def both(tmp_path: Path, script: Callable[[Run], None], config: Any = None, **options: Any) -> tuple[Run, Run]:
    """The script without and with the call, and that its logs, events and files are the same."""
    runs = []
    for name, context in (("plain", contextlib.nullcontext()), ("jobs", None)):
        set_seed(11)
        run = Run(tmp_path / name)
        with context if context is not None else tacc.accelerate_hf_trainer(config or ONE, **options):
            script(run)
        runs.append(run)
    plain, jobs = runs
    same_logs(plain.shown["trainer"].state.log_history, jobs.shown["trainer"].state.log_history)
    assert jobs.events.seen == plain.events.seen
    assert jobs.files == plain.files
    same_weights(plain.shown["trainer"].model, jobs.shown["trainer"].model)
    return plain, jobs


def same_logs(want: list[dict[str, Any]], got: list[dict[str, Any]]) -> None:
    timed = re.compile("runtime|per_second|preparation_time")
    assert [sorted(entry) for entry in got] == [sorted(entry) for entry in want]
    for a, b in zip(want, got):
        for name, value in a.items():
            if not timed.search(name):
                assert b[name] == pytest.approx(value, rel=ROUNDING, abs=1e-6), (name, a, b)


def same_weights(want: torch.nn.Module, got: torch.nn.Module) -> None:
    states = got.state_dict()
    for name, tensor in want.state_dict().items():
        torch.testing.assert_close(states[name], tensor, rtol=1e-3, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean()), "spread": float(np.std(prediction.predictions))}


@pytest.mark.parametrize("config", [ONE, FSDP], ids=["one", "fsdp"])
def test_a_language_model(tmp_path, config):
    """Accumulation of batches with different numbers of targets, the last one of an epoch incomplete, a schedule, clipping, groups with decay."""
    def script(run: Run) -> None:
        trainer = run.trainer(
            gpt2(), Texts(22, masked=True), max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=2, lr_scheduler_type="cosine", warmup_steps=1,
            weight_decay=0.1, max_grad_norm=0.3, eval_dataset=Texts(9, masked=True), eval_strategy="epoch",
        )
        run.shown["result"] = trainer.train()
        run.shown["predictions"] = trainer.predict(Texts(7)).predictions

    plain, jobs = both(tmp_path, script, config)
    assert jobs.shown["result"].global_step == plain.shown["result"].global_step == 6
    np.testing.assert_allclose(jobs.shown["predictions"], plain.shown["predictions"], rtol=1e-3, atol=1e-3)


def test_a_classifier_whose_batches_are_padded_to_their_longest(tmp_path):
    """Metrics, the best model, early stopping and kept checkpoints; evaluation with larger batches; means of batches with different numbers of samples."""
    def script(run: Run) -> None:
        trainer = run.trainer(
            bert(), Texts(19, ragged=True, classes=3), data_collator=padded, max_steps=-1, num_train_epochs=6, gradient_accumulation_steps=2,
            learning_rate=3e-2, per_device_eval_batch_size=6, eval_dataset={"a": Texts(13, ragged=True, classes=3), "b": Texts(5, length=12, classes=3)},
            compute_metrics=accuracy, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, save_total_limit=2,
            load_best_model_at_end=True, metric_for_best_model="eval_a_spread", greater_is_better=True, callbacks=[EarlyStoppingCallback(1)],
        )
        trainer.train()
        run.shown["best"] = Path(trainer.state.best_model_checkpoint).name
        run.shown["metrics"] = [trainer.evaluate(), trainer.evaluate(Texts(8, ragged=True, classes=3), metric_key_prefix="more")]
        run.shown["predictions"] = trainer.predict(Texts(7, ragged=True, classes=3)).predictions
        trainer.save_model()
        run.shown["saved"] = sorted(f for f in os.listdir(run.folder) if (run.folder / f).is_file())

    plain, jobs = both(tmp_path, script)
    assert len(plain.files) == 2 and plain.shown["trainer"].state.global_step < 15
    assert jobs.shown["best"] == plain.shown["best"]
    assert jobs.shown["saved"] == plain.shown["saved"]
    same_logs(plain.shown["metrics"], jobs.shown["metrics"])
    np.testing.assert_allclose(jobs.shown["predictions"], plain.shown["predictions"], rtol=1e-3, atol=1e-3)


class Stumbling(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 6:
            raise OSError("the disk is full")


def test_a_training_goes_on_from_a_checkpoint(tmp_path):
    """With the last batch of an epoch, which has fewer samples; by the trainer whose training broke off, and without the call from a job's checkpoint."""
    data = Texts(18)
    options = {"max_steps": 8, "save_strategy": "steps", "save_steps": 4}

    def script(run: Run) -> None:
        trainer = run.trainer(llama(), data, callbacks=[Stumbling()], **options)
        with pytest.raises(OSError, match="the disk is full"):
            trainer.train()
        trainer.remove_callback(Stumbling)
        trainer.train(resume_from_checkpoint=True)
        assert [step for name, step in run.events.seen if name == "on_step_end"] == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8]

    plain, jobs = both(tmp_path, script)
    want, got = (torch.load(run.folder / "checkpoint-8" / "optimizer.pt") for run in (plain, jobs))
    assert got["param_groups"] == want["param_groups"] and list(got["state"]) == list(want["state"])
    for i, state in want["state"].items():
        for name, value in state.items():
            torch.testing.assert_close(got["state"][i][name], value, rtol=1e-2, atol=1e-6)
    trainer = Run(tmp_path / "other").trainer(llama(), data, **options)
    trainer.train(resume_from_checkpoint=str(jobs.folder / "checkpoint-4"))
    same_logs(jobs.shown["trainer"].state.log_history[:8], trainer.state.log_history[:8])
    same_weights(jobs.shown["trainer"].model, trainer.model)


def test_an_image_model_trained_twice(tmp_path):
    """The second training goes on with the optimizer of the first one, on another job, with SGD that is given."""
    def script(run: Run) -> None:
        model = vit()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trainer = run.trainer(
            model, Images(10), optimizers=(optimizer, None), max_steps=-1, num_train_epochs=1, eval_dataset=Images(6), eval_on_start=True, max_grad_norm=0.0,
            eval_strategy="no",
        )
        trainer.train()
        first = trainer.state.log_history
        trainer.train()
        trainer.state.log_history = [*first, *trainer.state.log_history]

    both(tmp_path, script)


class Summing(Trainer):
    """With a loss of its own."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.get("logits")[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.2)
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("kind", ["smoothing", "compute_loss"])
def test_a_loss_that_is_computed_from_the_outputs(tmp_path, kind):
    def script(run: Run) -> None:
        options: dict[str, Any] = {"label_smoothing_factor": 0.1} if kind == "smoothing" else {"kind": Summing}
        run.trainer(gpt2(), Texts(14, ragged=True), data_collator=padded, eval_dataset=Texts(6), eval_strategy="steps", eval_steps=2, **options).train()

    both(tmp_path, script)


def test_a_model_that_generates(tmp_path):
    """Here, with the weights of the job, which has another optimizer."""
    def metrics(prediction: Any) -> dict[str, float]:
        return {"ids": float(prediction.predictions.sum())}

    def script(run: Run) -> None:
        trainer = run.trainer(
            llama(), Texts(16, ragged=True), kind=transformers.Seq2SeqTrainer, arguments=transformers.Seq2SeqTrainingArguments, data_collator=padded,
            eval_dataset=Texts(6), eval_strategy="steps", eval_steps=2, predict_with_generate=True, generation_max_length=12, compute_metrics=metrics,
            optim="adafactor", learning_rate=5e-2, save_strategy="steps", save_steps=3,
        )
        trainer.train()
        run.shown["predictions"] = trainer.predict(Texts(5)).predictions

    plain, jobs = both(tmp_path, script)
    np.testing.assert_array_equal(jobs.shown["predictions"], plain.shown["predictions"])


def test_half_precision_is_the_jobs(tmp_path):
    losses = {}

    def train(name: str, **options: Any) -> None:
        set_seed(11)
        trainer = Run(tmp_path / name).trainer(llama(), Texts(18), **options)
        trainer.train()
        losses[name] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    train("float32")
    for name in ("bf16", "fp16"):
        with tacc.accelerate_hf_trainer(ONE) as accelerated:
            train(name, activation_checkpointing=True, **{name: True})
            config = accelerated.job.status().spec
        assert config["memory"]["gc"] is True and config["compute"][name] is True
        assert losses[name] != losses["float32"]
        assert losses[name] == pytest.approx(losses["float32"], rel=2e-2)


def test_what_a_job_cannot_follow(tmp_path, monkeypatch, caplog):
    with tacc.accelerate_hf_trainer(ONE):
        for options, words in (
            ({"optim": "adagrad"}, "the optimizer is Adagrad; a job trains with AdamW, Adam, SGD, Lion, Adafactor"),
            ({"neftune_noise_alpha": 5.0}, "TrainingArguments have neftune_noise_alpha=5.0, which a job cannot follow; leave it out"),
        ):
            with pytest.raises(tacc.InputError, match=words):
                Run(tmp_path / "refused").trainer(gpt2(), Texts(8), **options).train()
        trainer = Run(tmp_path / "long").trainer(gpt2(), Texts(12, ragged=True), data_collator=padded, bf16_full_eval=True)
        trainer.train()
        with pytest.raises(tacc.InputError, match=r"a batch has 16 tokens a sample in 'input_ids'; the job computes with 10, .* max_length=16"):
            trainer.predict(Texts(4, length=16))
        assert caplog.text.count("bf16_full_eval of TrainingArguments has no meaning") == 1
        assert "tacc: the job gpt2lmheadmodel trains the model; `taccctl watch " in caplog.text
        with pytest.raises(tacc.InputError, match="returns no loss, and computes otherwise in training than in evaluation"):
            model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=1, n_head=2))
            Run(tmp_path / "dropout").trainer(model, Texts(8), label_smoothing_factor=0.1).train()
    assert "tacc" not in Trainer._wrap_model.__module__
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(tacc.InputError, match="started as one of several processes"):
        tacc.accelerate_hf_trainer()
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setattr(Trainer, "save_model", lambda self, folder: None)
    with pytest.raises(tacc.TaccError, match=r"Trainer.save_model has the parameters self, folder, not self, output_dir, _internal_call"):
        tacc.accelerate_hf_trainer()
    assert "tacc" not in Trainer._wrap_model.__module__
