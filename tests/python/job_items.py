"""For tests: what a job says of itself, with as little as a test needs."""

from dataclasses import fields

from tacc.messages import EvalMetrics, JobEvent, JobStatus, StepMetrics


def _made(of, values):
    types = {"str": "", "int": 0, "float": 0.0}

    def empty(type_: str):
        if type_.endswith("| None"):
            return None
        return [] if type_.startswith("list") else types.get(type_, "")

    return of(**{field.name: values.get(field.name, empty(field.type)) for field in fields(of)})


def job_status(**values) -> JobStatus:
    return _made(JobStatus, {"id": "tiny-1", "name": "tiny", "phase": "running", "max_steps": 100, "submitted_time": 1e9, **values})


def step(number: int, loss: float, **values) -> StepMetrics:
    return _made(StepMetrics, {"step": number, "loss": loss, "attempt": 1, "seconds": 0.5, "tokens": 100, "time": 1e9 + number / 2, **values})


def evaluation(number: int, loss: float, **values) -> EvalMetrics:
    return _made(EvalMetrics, {"step": number, "eval_loss": loss, "attempt": 1, "time": 1e9 + number / 2, **values})


def event(type: str, message: str, **values) -> JobEvent:
    return _made(JobEvent, {"type": type, "message": message, "phase": "running", **values})
