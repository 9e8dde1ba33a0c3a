"""`tacc.accelerate_hf_trainer`: scripts with `transformers.Trainer` have the logs, events, predictions and files that they have without."""

import contextlib
import inspect
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
from peft import LoraConfig, TaskType, get_peft_model
from tacc.accelerating.outputs import ModelOutputs
from torch.utils.data import Dataset, IterableDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.modeling_outputs import CausalLMOutput

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
    """Ids that follow one another, of the same or of several lengths; labels are the ids, or which of several things hold, or ids of another text."""

    def __init__(self, count: int, *, length: int = 10, ragged: bool = False, things: int = 0, masked: bool = False, pairs: bool = False):
        random = np.random.default_rng(count)
        self._samples = []
        for _ in range(count):
            n = int(random.integers(3, length + 1)) if ragged else length
            ids = ((random.integers(VOCABULARY - 4) + np.arange(n)) % (VOCABULARY - 4) + 4).tolist()
            sample: dict[str, Any] = {"input_ids": ids, "attention_mask": [1] * n}
            if things:
                sample["labels"] = [float(ids[0] >> i & 1) for i in range(things)]
            elif pairs:
                sample["labels"] = ids[::-1][:6]
            else:
                # Some are no targets, so that batches have different numbers of them.
                sample["labels"] = [-100 if masked and i < ids[0] % (n - 2) else t for i, t in enumerate(ids)]
            self._samples.append(sample)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self._samples[i]


class Stream(IterableDataset[dict[str, Any]]):
    """The same texts, of which nobody knows how many there are."""

    def __init__(self, count: int):
        self._texts = Texts(count, masked=True)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self._texts[i] for i in range(len(self._texts)))


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
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, problem_type="multi_label_classification",
    ))


def resnet() -> Any:
    return ResNetForImageClassification(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3))


def t5() -> Any:
    return T5ForConditionalGeneration(T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, dropout_rate=0.0, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0,
    ))


def padded(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Each batch to its own longest, as DataCollatorWithPadding and DataCollatorForSeq2Seq."""
    fills = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    longest = {k: max(len(s[k]) for s in samples) for k in fills}
    return {k: torch.tensor([s[k] + [fills[k]] * (longest[k] - len(s[k])) for s in samples]) for k in samples[0]}


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
    predictions, labels = prediction.predictions, prediction.label_ids
    found = {"accuracy": float(((predictions > 0) == (labels > 0.5)).mean()), "spread": float(np.std(predictions))}
    return found if prediction.inputs is None else {**found, "tokens": float((prediction.inputs > 0).sum())}


def test_a_language_model_with_smoothed_labels(tmp_path):
    """Accumulation of batches with different numbers of targets, the last one of an epoch incomplete, a schedule, clipping, groups with decay."""
    def script(run: Run) -> None:
        trainer = run.trainer(
            gpt2(), Texts(22, masked=True), max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=2, lr_scheduler_type="cosine", warmup_steps=1,
            weight_decay=0.1, max_grad_norm=0.3, eval_dataset=Texts(9, masked=True), eval_strategy="epoch", label_smoothing_factor=0.1,
        )
        run.shown["result"] = trainer.train()
        run.shown["predictions"] = trainer.predict(Texts(7)).predictions

    plain, jobs = both(tmp_path, script, FSDP)
    assert jobs.shown["result"].global_step == plain.shown["result"].global_step == 6
    np.testing.assert_allclose(jobs.shown["predictions"], plain.shown["predictions"], rtol=1e-3, atol=1e-3)


def test_a_classifier_whose_batches_are_padded_to_their_longest(tmp_path):
    """Several things may hold of a text. Metrics, the best model, early stopping and kept checkpoints; evaluation with larger batches, and those with
    fewer samples; means of batches with different numbers of samples; batches of texts of like length."""
    def script(run: Run) -> None:
        trainer = run.trainer(
            bert(), Texts(19, ragged=True, things=3), data_collator=padded, max_steps=-1, num_train_epochs=6, gradient_accumulation_steps=2,
            optim="sgd", learning_rate=0.3, per_device_eval_batch_size=6, eval_dataset={"a": Texts(13, ragged=True, things=3), "b": Texts(5, length=12, things=3)},
            compute_metrics=accuracy, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, save_total_limit=2,
            load_best_model_at_end=True, metric_for_best_model="eval_a_spread", greater_is_better=False, callbacks=[EarlyStoppingCallback(1)],
            train_sampling_strategy="group_by_length", include_for_metrics=["inputs", "loss"], eval_accumulation_steps=1,
        )
        trainer.train()
        run.shown["best"] = Path(trainer.state.best_model_checkpoint).name
        run.shown["metrics"] = [trainer.evaluate(), trainer.evaluate(Texts(8, ragged=True, things=3), metric_key_prefix="more")]
        run.shown["predictions"] = trainer.predict(Texts(7, ragged=True, things=3)).predictions
        trainer.save_model()
        run.shown["saved"] = sorted(f for f in os.listdir(run.folder) if (run.folder / f).is_file())

    plain, jobs = both(tmp_path, script)
    assert len(plain.files) == 2 and plain.shown["trainer"].state.global_step < 15
    assert jobs.shown["best"] == plain.shown["best"]
    assert jobs.shown["saved"] == plain.shown["saved"]
    same_logs(plain.shown["metrics"], jobs.shown["metrics"])
    np.testing.assert_allclose(jobs.shown["predictions"], plain.shown["predictions"], rtol=1e-3, atol=1e-3)


def test_batches_are_filled_up_to_the_next_of_several_lengths(tmp_path):
    """With a loss that the trainer computes; also in evaluation, and with fewer samples."""
    def script(run: Run) -> None:
        trainer = run.trainer(
            gpt2(), Texts(14, ragged=True, masked=True), data_collator=padded, max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=2,
            label_smoothing_factor=0.1, train_sampling_strategy="group_by_length", eval_dataset=Texts(9, ragged=True, masked=True), eval_strategy="epoch",
        )
        trainer.train()
        run.shown["predictions"] = trainer.predict(Texts(7, ragged=True)).predictions

    plain, jobs = both(tmp_path, script, FSDP, buckets=[5, 8, 10], name="lengths")
    np.testing.assert_allclose(jobs.shown["predictions"], plain.shown["predictions"], rtol=1e-3, atol=1e-3)
    with tacc.Client() as client:
        tokens = {point.tokens for point in client.job("lengths").watch(events=False)}
    assert len(tokens) > 1 and min(tokens) < 2 * 4 * 10


class Stumbling(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 6:
            raise OSError("the disk is full")


def test_a_training_goes_on_from_a_checkpoint(tmp_path):
    """Of a stream, whose last batch has fewer samples, and steps of batches with different numbers of targets; by the trainer whose training broke off,
    and without the call from a job's checkpoint."""
    data = Stream(22)
    options = {"max_steps": 8, "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 4}

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


class Weighted(Trainer):
    """With classes that weigh differently."""

    weights = torch.tensor([1.0, 2.0, 3.0])

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.get("logits"), labels, weight=self.weights)
        return (loss, outputs) if return_outputs else loss


def test_an_image_model_trained_twice(tmp_path):
    """With batch norms and a loss of the trainer's own. The second training goes on with the optimizer of the first one, on another job."""
    def script(run: Run) -> None:
        model = resnet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trainer = run.trainer(
            model, Images(10), kind=Weighted, optimizers=(optimizer, None), max_steps=-1, num_train_epochs=1, eval_dataset=Images(6), eval_on_start=True,
            max_grad_norm=0.0, eval_strategy="epoch", dataloader_drop_last=True,
        )
        trainer.train()
        first = trainer.state.log_history
        trainer.train()
        trainer.state.log_history = [*first, *trainer.state.log_history]

    both(tmp_path, script)


class Annealed(Trainer):
    """With a loss that is another one at each step."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.get("logits")[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss = loss / (1 + self.state.global_step)
        return (loss, outputs) if return_outputs else loss


def test_a_loss_that_is_computed_from_the_outputs(tmp_path, caplog):
    def script(run: Run) -> None:
        trainer = run.trainer(
            gpt2(), Texts(14, ragged=True), kind=Annealed, data_collator=padded, eval_dataset=Texts(6), eval_strategy="steps", eval_steps=2,
            torch_empty_cache_steps=9,
        )
        trainer.train()
        if run.folder.name == "jobs":
            with pytest.raises(tacc.InputError, match=r"a batch has 16 tokens a sample in 'input_ids'; the job computes with 10, .* max_length=16"):
                trainer.predict(Texts(4, length=16))

    both(tmp_path, script)
    assert "tacc: compute_loss uses self.state, so it is computed here at each step" in caplog.text
    assert caplog.text.count("torch_empty_cache_steps of TrainingArguments has no meaning") == 1
    assert "tacc: the job gpt2lmheadmodel trains the model; `taccctl watch " in caplog.text


def test_dropout_with_a_loss_of_the_trainer(tmp_path):
    """The same batch, of a model that does not change, has other losses in training, about that of evaluation."""
    with tacc.accelerate_hf_trainer(ONE):
        set_seed(11)
        model = gpt2()
        model.transformer.h[0].mlp.dropout.p = 0.2
        data = Texts(4)
        trainer = Run(tmp_path).trainer(model, data, eval_dataset=data, learning_rate=0.0, label_smoothing_factor=0.1)
        trainer.train()
        want = trainer.evaluate()["eval_loss"]
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(set(losses)) == 4 and losses == pytest.approx([want] * 4, rel=0.05)
    assert Run(tmp_path).trainer(model, data, eval_dataset=data, label_smoothing_factor=0.1).evaluate()["eval_loss"] == pytest.approx(want, rel=ROUNDING)


def test_a_model_that_generates(tmp_path):
    """Here, with the weights of the job, which has another optimizer."""
    def metrics(prediction: Any) -> dict[str, float]:
        return {"ids": float(prediction.predictions.sum())}

    def script(run: Run) -> None:
        trainer = run.trainer(
            t5(), Texts(18, ragged=True, pairs=True), kind=transformers.Seq2SeqTrainer, arguments=transformers.Seq2SeqTrainingArguments,
            data_collator=padded, eval_dataset=Texts(7, pairs=True), eval_strategy="steps", eval_steps=3, predict_with_generate=True,
            generation_max_length=8, compute_metrics=metrics, optim="adafactor", learning_rate=5e-2, save_strategy="steps", save_steps=3, max_steps=6,
        )
        trainer.train()
        run.shown["predictions"] = trainer.predict(Texts(5, pairs=True)).predictions

    plain, jobs = both(tmp_path, script)
    np.testing.assert_array_equal(jobs.shown["predictions"], plain.shown["predictions"])


@pytest.fixture
def muon_in_full_precision(monkeypatch) -> None:
    """torch.optim.Muon multiplies in bfloat16 whatever the parameters are; a job does so where it computes in it."""
    import torch.optim._muon as module

    source = inspect.getsource(module._zeropower_via_newtonschulz)
    assert ".bfloat16()" in source
    monkeypatch.setattr(module, "_zeropower_via_newtonschulz", module._zeropower_via_newtonschulz)
    exec(source.replace(".bfloat16()", ".clone()"), module.__dict__)


def test_adapters_of_peft(tmp_path, muon_in_full_precision):
    """Which Muon trains, and which alone are in the checkpoints."""
    def script(run: Run) -> None:
        config = LoraConfig(task_type=TaskType.CAUSAL_LM, r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        model = get_peft_model(llama(), config)
        optimizer = torch.optim.Muon([p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.9, adjust_lr_fn="match_rms_adamw")
        trainer = run.trainer(
            model, Texts(16), optimizers=(optimizer, None), eval_dataset=Texts(6), eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2,
            gradient_checkpointing=True, load_best_model_at_end=True,
        )
        trainer.train()

    plain, _ = both(tmp_path, script)
    assert "adapter_model.safetensors" in plain.files["checkpoint-4"] and "model.safetensors" not in plain.files["checkpoint-4"]


def test_outputs_are_as_those_of_transformers():
    loss, logits = torch.tensor(2.0), torch.arange(3.0)
    fetched = []

    def fetch() -> dict[str, torch.Tensor]:
        fetched.append(1)
        return {"logits": logits}

    for make in (lambda: CausalLMOutput(loss=loss, logits=logits), lambda: ModelOutputs(loss, ["loss", "logits"], fetch)):
        outputs = make()
        assert isinstance(outputs, dict) and "loss" in outputs and "hidden_states" not in outputs and len(outputs) == 2
        assert outputs["loss"] is outputs.loss is outputs[0] is outputs.get("loss") is outputs[:1][0] is loss
        assert not fetched and list(outputs) == list(outputs.keys()) == ["loss", "logits"] and outputs.get("nothing", 3) == 3
        assert outputs["logits"] is outputs.logits is outputs[1] is outputs.to_tuple()[1] is outputs[-1] is dict(make())["logits"] is logits
        assert [*outputs.items()] == [("loss", loss), ("logits", logits)] and {**make()}["logits"] is list(make().values())[-1] is logits
        outputs["logits"] = outputs.loss = other = torch.ones(2)
        assert outputs.logits is outputs["loss"] is outputs.to_tuple()[0] is other
        with pytest.raises(KeyError):
            outputs["nothing"]
        with pytest.raises(AttributeError):
            _ = outputs.nothing


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


def test_a_training_that_an_error_ends_trains_no_model(tmp_path):
    with pytest.raises(KeyError), tacc.accelerate_hf_trainer(ONE) as accelerated:
        set_seed(11)
        model = llama()
        before = model.lm_head.weight.detach().clone()
        Run(tmp_path).trainer(model, Texts(18)).train()
        raise KeyError("metric")
    status = accelerated.job.status()
    assert (status.phase, status.exported_path, status.last_checkpoint.step) == ("cancelled", "", 4)
    assert not torch.equal(model.lm_head.weight, before) and type(model.lm_head.weight) is torch.nn.Parameter


class Branching(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        outputs = model(**inputs)
        loss = outputs.logits.square().mean() if outputs.loss > 1 else outputs.loss
        return (loss, outputs) if return_outputs else loss


def cycling(model: Any) -> Any:
    optimizer = torch.optim.AdamW(model.parameters())
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=4)


class Averaging(TrainerCallback):
    """Averages the weights by hand, bounds one of them, and keeps its norms."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.mean: torch.Tensor | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        weight = model.transformer.wte.weight
        with torch.no_grad():
            self.mean = weight.detach().clone() if self.mean is None else self.mean.lerp(weight, 0.1)
            if state.global_step == 2:
                model.transformer.h[0].mlp.c_fc.weight.clamp_(-0.02, 0.02)
        self.norms.append(float(self.mean.norm()))


def test_a_schedule_moves_the_momentum_and_a_callback_reads_and_writes_weights(tmp_path):
    averages = []

    def script(run: Run) -> None:
        model = gpt2()
        averages.append(Averaging())
        run.trainer(model, Texts(16), optimizers=cycling(model), callbacks=[averages[-1]]).train()

    both(tmp_path, script)
    plain, jobs = averages
    assert len(plain.norms) == 4 and len(set(plain.norms)) == 4
    assert jobs.norms == pytest.approx(plain.norms, rel=ROUNDING)


def test_what_a_job_cannot_follow(tmp_path, monkeypatch):
    model, noisy, dropping = gpt2(), gpt2(), gpt2()
    dropping.transformer.drop.p = 0.1
    some = torch.optim.Adam(model.transformer.h.parameters())
    with tacc.accelerate_hf_trainer(ONE):
        for of, data, options, words in (
            (model, Texts(8), {"optim": "adagrad"}, "the optimizer is Adagrad; a job trains with AdamW, Adam, SGD, Lion, Muon, Adafactor"),
            (noisy, Texts(8), {"neftune_noise_alpha": 5.0}, "TrainingArguments have neftune_noise_alpha=5.0, which a job cannot follow; leave it out"),
            (model, Texts(8), {"optimizers": (some, None)}, r"the optimizer does not have transformer.ln_f.bias, .* requires_grad_\(False\)"),
            (dropping, Texts(8), {"kind": Annealed}, r"compute_loss uses self.state, .* computes otherwise in training .*\(transformer.drop\)"),
            (dropping, Texts(8), {"kind": Branching}, r"in compute_loss: loss = outputs.logits.square\(\).* torch.export cannot trace this"),
            (resnet(), Images(6), {}, "the last batch of an epoch has 2 samples, the others 4; give TrainingArguments dataloader_drop_last=True"),
        ):
            with pytest.raises(tacc.InputError, match=words):
                Run(tmp_path / "refused").trainer(of, data, **options).train()
    assert "tacc" not in Trainer._wrap_model.__module__
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(tacc.InputError, match="started as one of several processes"):
        tacc.accelerate_hf_trainer()
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setattr(Trainer, "save_model", lambda self, folder: None)
    with pytest.raises(tacc.TaccError, match=r"Trainer.save_model has the parameters self, folder, not self, output_dir, _internal_call"):
        tacc.accelerate_hf_trainer()
    assert "tacc" not in Trainer._wrap_model.__module__
