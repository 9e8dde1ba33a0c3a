"""tacc: distributed training, from Python.

    import tacc

    client = tacc.Client()                     # this machine's coordinator, started if there is none
    job = client.submit("job.yaml")            # or a dict, or a tacc.Config
    job.wait()                                 # a bar and a loss curve in a notebook
    job.metrics().plot("step", "loss")

    tacc.fit("model", "data", max_steps=1000)  # all of it in one call

Names are imported when they are used, so that `import tacc` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tacc.version import __version__

if TYPE_CHECKING:
    from tacc.accelerating import accelerate, accelerate_hf_trainer
    from tacc.accelerating import amp as amp
    from tacc.accelerating import dist as dist
    from tacc.accelerating.handle import AcceleratedModel as AcceleratedModel
    from tacc.accelerating.hf_trainer import AcceleratedTrainer as AcceleratedTrainer
    from tacc.accelerating.outputs import ModelOutputs as ModelOutputs
    from tacc.accelerating.scripts import lazy_device, mark_step, sync
    from tacc.aio import AsyncClient, AsyncJob
    from tacc.client import Client, Job
    from tacc.comparison import Comparison, compare
    from tacc.config import Config, ConfigNote
    from tacc.config_sections import (
        CheckpointConfig,
        ClientConfig,
        ComputeConfig,
        CPConfig,
        DataConfig,
        DataLoaderConfig,
        DistConfig,
        DPConfig,
        EPConfig,
        EvalConfig,
        FSDPConfig,
        GradScalerConfig,
        LoraConfig,
        MemoryConfig,
        ModelConfig,
        PPConfig,
        ResourcesConfig,
        SPConfig,
        TPConfig,
        TrainConfig,
    )
    from tacc.errors import (
        AnswerTimeoutError,
        ConfigError,
        ConflictError,
        CoordinatorError,
        InputError,
        InvalidJobError,
        JobCancelledError,
        JobFailedError,
        JobNotFoundError,
        LimitError,
        Problem,
        TaccError,
        VersionError,
    )
    from tacc.exporting import Coverage, Exported, ExportError, GraphInput, Unmapped, UnsupportedOpsError, export_model
    from tacc.fitting import FitResult, fit
    from tacc.live.async_loader import AsyncLoader
    from tacc.live.session import ForwardResult, MicroBatchResult, Session, SessionRestartedError, StagedBatch, StepResult
    from tacc.live.slots import SessionInput
    from tacc.messages import Checkpoint, EvalMetrics, JobEvent, JobStatus, LogLine, StepMetrics, Worker
    from tacc.plans import Layout, Plan
    from tacc.prepare_data import PreparedData, ProgressReport, prepare

# Name -> the module that has it.
_HOME = {
    "AcceleratedModel": "accelerating.handle",
    "AcceleratedTrainer": "accelerating.hf_trainer",
    "AnswerTimeoutError": "errors",
    "AsyncClient": "aio",
    "AsyncJob": "aio",
    "AsyncLoader": "live.async_loader",
    "CPConfig": "config_sections",
    "Checkpoint": "messages",
    "CheckpointConfig": "config_sections",
    "Client": "client",
    "ClientConfig": "config_sections",
    "Comparison": "comparison",
    "ComputeConfig": "config_sections",
    "Config": "config",
    "ConfigError": "errors",
    "ConfigNote": "config",
    "ConflictError": "errors",
    "CoordinatorError": "errors",
    "Coverage": "exporting",
    "DPConfig": "config_sections",
    "DataConfig": "config_sections",
    "DataLoaderConfig": "config_sections",
    "DistConfig": "config_sections",
    "EPConfig": "config_sections",
    "EvalConfig": "config_sections",
    "EvalMetrics": "messages",
    "ExportError": "exporting",
    "Exported": "exporting",
    "FSDPConfig": "config_sections",
    "FitResult": "fitting",
    "ForwardResult": "live.session",
    "GradScalerConfig": "config_sections",
    "GraphInput": "exporting",
    "InputError": "errors",
    "InvalidJobError": "errors",
    "Job": "client",
    "JobCancelledError": "errors",
    "JobEvent": "messages",
    "JobFailedError": "errors",
    "JobNotFoundError": "errors",
    "JobStatus": "messages",
    "Layout": "plans",
    "LimitError": "errors",
    "LogLine": "messages",
    "LoraConfig": "config_sections",
    "MemoryConfig": "config_sections",
    "MicroBatchResult": "live.session",
    "ModelConfig": "config_sections",
    "ModelOutputs": "accelerating.outputs",
    "PPConfig": "config_sections",
    "Plan": "plans",
    "PreparedData": "prepare_data",
    "Problem": "errors",
    "ProgressReport": "prepare_data",
    "ResourcesConfig": "config_sections",
    "SPConfig": "config_sections",
    "Session": "live.session",
    "SessionInput": "live.slots",
    "SessionRestartedError": "live.session",
    "StagedBatch": "live.session",
    "StepMetrics": "messages",
    "StepResult": "live.session",
    "TPConfig": "config_sections",
    "TaccError": "errors",
    "TrainConfig": "config_sections",
    "Unmapped": "exporting",
    "UnsupportedOpsError": "exporting",
    "VersionError": "errors",
    "Worker": "messages",
    "accelerate": "accelerating",
    "accelerate_hf_trainer": "accelerating",
    "compare": "comparison",
    "export_model": "exporting",
    "fit": "fitting",
    "lazy_device": "accelerating.scripts",
    "mark_step": "accelerating.scripts",
    "prepare": "prepare_data",
    "sync": "accelerating.scripts",
}
_MODULES = ("amp", "dist")  # of accelerating
_NEED_TORCH = {"AcceleratedModel", "AcceleratedTrainer", "ModelOutputs"}  # not listed: who looks at all names need not have it

__all__ = [
    "__version__",
    "AnswerTimeoutError",
    "AsyncClient",
    "AsyncJob",
    "AsyncLoader",
    "CPConfig",
    "Checkpoint",
    "CheckpointConfig",
    "Client",
    "ClientConfig",
    "Comparison",
    "ComputeConfig",
    "Config",
    "ConfigError",
    "ConfigNote",
    "ConflictError",
    "CoordinatorError",
    "Coverage",
    "DPConfig",
    "DataConfig",
    "DataLoaderConfig",
    "DistConfig",
    "EPConfig",
    "EvalConfig",
    "EvalMetrics",
    "ExportError",
    "Exported",
    "FSDPConfig",
    "FitResult",
    "ForwardResult",
    "GradScalerConfig",
    "GraphInput",
    "InputError",
    "InvalidJobError",
    "Job",
    "JobCancelledError",
    "JobEvent",
    "JobFailedError",
    "JobNotFoundError",
    "JobStatus",
    "Layout",
    "LimitError",
    "LogLine",
    "LoraConfig",
    "MemoryConfig",
    "MicroBatchResult",
    "ModelConfig",
    "PPConfig",
    "Plan",
    "PreparedData",
    "Problem",
    "ProgressReport",
    "ResourcesConfig",
    "SPConfig",
    "Session",
    "SessionInput",
    "SessionRestartedError",
    "StagedBatch",
    "StepMetrics",
    "StepResult",
    "TPConfig",
    "TaccError",
    "TrainConfig",
    "Unmapped",
    "UnsupportedOpsError",
    "VersionError",
    "Worker",
    "accelerate",
    "accelerate_hf_trainer",
    "compare",
    "export_model",
    "fit",
    "lazy_device",
    "mark_step",
    "prepare",
    "sync",
]


if not TYPE_CHECKING:  # Which would let the package have any name.

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"tacc.accelerating.{name}")
        if name not in _HOME:
            raise AttributeError(f"module 'tacc' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"tacc.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *(name for name in _HOME if name not in _NEED_TORCH), *_MODULES])
