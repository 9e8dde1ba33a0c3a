"""Writes seeds for the fuzz targets, from the examples, golden tests and pages of this checkout.

    python tests/fuzz/make_seeds.py OUT_DIR

OUT_DIR/TARGET gets a file for each input. `scripts/fuzz keep` takes from them what the kept corpus lacks.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import struct
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def blocks(golden: Path) -> list[str]:
    """What the commands of a golden test read: their files, or their input."""
    cases = golden.read_text().split("\n====\n")
    inputs = [case.split("\n----\n")[0] for case in cases]
    texts = [re.split(r"^(?:\$ .*|-- .*)\n", text, flags=re.M)[-1] for text in inputs]
    return [text + "\n" for text in texts if text.strip() and not text.startswith("#")]


def golden_texts(*names: str) -> list[str]:
    return [text for name in names for text in blocks(ROOT / "tests" / name)]


def fenced(page: str) -> list[str]:
    return re.findall(r"```\w*\n(.*?)```", (ROOT / page).read_text(), re.S)


def raw_strings(source: str) -> list[str]:
    """C++'s raw strings."""
    return re.findall(r'R"\((.*?)\)"', (ROOT / source).read_text(), re.S)


def job_yaml() -> list[str]:
    examples = [path.read_text() for path in sorted(ROOT.glob("examples/**/job.yaml"))]
    pages = [text for page in ("README.md", "docs/runs.md", "docs/job.md") for text in fenced(page) if "train:" in text]
    bad = golden_texts(*(f"bad_input/job_{what}.golden" for what in ("yaml", "fields", "values", "checks")))
    return [*examples, *pages, *bad, (ROOT / "tests/golden/text.golden").read_text()[:100]]


def cluster_yaml() -> list[str]:
    sheets = [text for text in fenced("docs/planning.md") if text.startswith("machine:")]
    return [*sheets, "machine: h100\nnodes: 16\n", "machine: a100\ngpus: 12\ndevices_per_node: 4\nhalf_flops_per_second: 1e15\n"]


def compile_request() -> list[str]:
    small = "".join(raw_strings("graph/planner/testing/test_request.h")[:1])
    parsed = json.loads(small)
    cluster = {"job": parsed["job"], "cluster": {"machine": "h100", "gpus": 16}}
    parsed["job"]["train"] |= {"optim": "OPTIMIZER_ADAMW", "lora": {"r": 8, "alpha": 16}, "param_groups": {"a": {"pattern": "x"}}}
    parsed["job"]["dist"] |= {"topology": ["dp", "fsdp"], "tp": {"size": 2}, "pins": {"w": "tp,-"}}
    parsed["job"]["compute"] = {"bf16": True}
    parsed["data"] = {"vocab_size": 8192, "num_tokens": 8000000}
    return [small, json.dumps(parsed), json.dumps(cluster)]


def graph_text() -> list[str]:
    texts = golden_texts("golden/text.golden", "golden/passes.golden", "golden/verify_structure.golden")
    attention = """tacc.graph 1
%there = input "there" : f32[2,4]
%q = param "q" : f32[2,4,2,8]
%b = param "b" : f32[1,2,4,4]
%bias = log %there : f32[2,4]
%out, %lse = attention %q, %q, %q, %bias, %b bias=true causal=false key_bias=true scale=0.5 : f32[2,4,2,8], f32[2,2,4]
output "out" %out
"""
    return [(ROOT / "examples/graph/mlp.graph").read_text(), attention, *(text for text in texts if text.startswith("tacc.graph"))]


def program_text() -> list[str]:
    names = ("text", "passes", "verify_structure", "verify_partition", "verify_memory")
    return [text for text in golden_texts(*(f"golden/{name}.golden" for name in names)) if text.startswith("tacc.program")]


def safetensors() -> list[bytes]:
    def file(header: dict, data: bytes) -> bytes:
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    two = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "b": {"dtype": "BF16", "shape": [], "data_offsets": [16, 18]}}
    return [file(two, bytes(18)), file(two | {"__metadata__": {"format": "pt"}}, bytes(18)), file({}, b"")]


def manifest() -> list[str]:
    example = json.loads(next(text for text in fenced("docs/contracts.md") if text.startswith('{"format": 2')))
    digest = hashlib.sha256(b"").hexdigest()
    tensors = {
        "weights/w": {"dtype": "F32", "shape": [3, 2], "stored_shape": [6], "slices": [
            {"file": "r0", "offset": [0, 0], "shape": [2, 2]}, {"file": "r1", "offset": [2, 0], "shape": [1, 2]}]},
        "weights/s": {"dtype": "BF16", "shape": [2, 2, 4], "stored_shape": [16], "merged_dims": 2, "slices": [
            {"file": "r0", "offset": [0, 0], "shape": [4, 4]}]},
    }
    del example["sha256"]
    example |= {"files": [{"name": name, "bytes": 1, "sha256": digest} for name in ("r0", "r1")], "tensors": tensors}
    return [json.dumps(example, separators=(",", ":")), json.dumps(example | {"format": 1})]


def rank_event() -> list[str]:
    page = re.sub(r"\n *", "", (ROOT / "docs/contracts.md").read_text())
    events = re.findall(r'\{"event":"[^`]*?\}(?=`|```)', page)
    scripts = "".join(path.read_text() for path in sorted(ROOT.glob("coordinator/core/testdata/*.script")))
    events += re.findall(r"^event \S+ (\{.*\})$", scripts, re.M)
    parts = {"attention": [{"shape": "a", "backend": "tiles", "timings": [{"backend": "flash", "forward_seconds": 1e-3, "refused": "no"}]}],
             "products": [{"shape": "b", "algorithm": "lt:1", "seconds": 1e-3}]}  # fmt: skip
    ready = {"event": "ready", "time": 1, "step": 1, "resumed_from": "", "arena_bytes": 1, "load_seconds": 1.5}
    return [re.sub(r'^\{"event"', '{"time":1,"event"', event) for event in events] + [json.dumps(ready | parts)]


def start_file() -> list[str]:
    """Each field of the page's table, by its type."""
    by_type = {"string": "cpu", "true or false": False, "whole": 1, "whole, at least 1": 2, "number": 0.5, "number, positive": 1.5,
               "`pretrained` or `random`": "random", "object of strings": {"a": "b"}, "object": {"c": [1, "d"]}}  # fmt: skip
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| (no|yes|with its section) \|", (ROOT / "docs/contracts.md").read_text(), re.M)
    whole: dict = {}
    for name, kind, _ in rows:
        *section, key = name.split(".")
        target = whole.setdefault(section[0], {}) if section else whole
        target[key] = by_type[kind]
    whole["rank"] = 0
    needed = {name.split(".")[0] for name, _, absent in rows if absent == "no"}
    return [json.dumps(whole), json.dumps({key: value for key, value in whole.items() if key in needed})]


def data_index() -> list[bytes]:
    tokens = struct.pack("<4H", 1, 2, 3, 0)
    columns = [(b"tokens", 2, 8), (b"loss_mask", 1, 4), (b"segment", 1, 4)]
    offset = 64 + 32 * len(columns)
    head = struct.pack("<8sIIQ40x", b"taccdata", 1, len(columns), 4)
    for name, size, num_bytes in columns:
        head += struct.pack("<16sQQ", name, size, offset)
        offset += num_bytes
    shard = head + tokens + b"\1\1\0\1" + b"\0\0\1\1"
    index = {
        "format": "tacc-data", "version": 1, "seq_len": 2, "num_tokens": 4, "num_documents": 2, "max_token_id": 3, "fingerprint": "f",
        "tokenizer": {"fingerprint": "t", "vocab_size": 4, "eos_token": "</s>", "eos_token_id": 0},
        "shards": [{"name": "shard", "num_tokens": 4, "num_documents": 2, "num_bytes": len(shard), "sha256": "s"}],
    }  # fmt: skip
    return [json.dumps(index).encode() + b"\0" + shard]


@functools.cache
def protos() -> tuple:
    """The modules coordinator_pb2 and worker_pb2."""
    import runpy

    with tempfile.TemporaryDirectory() as folder:
        generate = runpy.run_path(str(ROOT / "client/python/generate.py"))
        generate["protoc"](ROOT / "proto", [f"--python_out={folder}"])
        (Path(folder) / "tacc/__init__.py").touch()  # Not the client's package.
        sys.path.insert(0, folder)
        from tacc.v1 import coordinator_pb2, worker_pb2
    return coordinator_pb2, worker_pb2


def message(kind: int, content: bytes = b"") -> bytes:
    """Behind its kind and length."""
    return struct.pack("<BH", kind, len(content)) + content


def requests() -> list[bytes]:
    """Messages one behind the other; requests.cc says which kinds there are."""
    coordinator_pb2, worker_pb2 = protos()
    submit, plan, read_job, cancel, compiled, attach, worker, detach, tick, get, list_, endpoints = range(12)

    job = coordinator_pb2.SubmitRequest(request_id="r")
    job.spec.name = "toy"
    job.spec.model.path, job.spec.data.path, job.spec.checkpoint.dir = "/m", "/d", "/runs/toy"
    job.spec.train.max_steps = 100
    job.spec.resources.workers = 1
    register = worker_pb2.Register(name="a", instance="i", version="0.1.0", advertise="host", protocol=2)
    register.device.kind, register.device.threads, register.device.memory_bytes = "cpu", 1, 4000
    register.device.matmul_flops_per_second["f32"] = 1e10

    def from_worker(**fields: object) -> bytes:
        return message(worker, worker_pb2.AttachRequest(**fields).SerializeToString())

    def event(sequence: int, line: str) -> bytes:
        rank = worker_pb2.RankId(job="toy-1", attempt=1, rank=0)
        return from_worker(rank_report=worker_pb2.RankReport(id=rank, sequence=sequence, event=line))

    looked = from_worker(check_paths_result=worker_pb2.CheckPathsResult(request=1))
    begun = [message(submit, job.SerializeToString()), message(attach, register.SerializeToString()), message(compiled), looked]
    rank = worker_pb2.RankId(job="toy-1", attempt=1, rank=0)
    run = [
        event(1, '{"event":"started","time":1,"pid":1,"version":"0.1.0"}'), event(2, '{"event":"listening","time":1,"port":29500}'),
        event(3, '{"event":"ready","time":1,"step":0,"resumed_from":"","arena_bytes":1,"load_seconds":1}'),
        event(4, '{"event":"step","time":1,"step":1,"loss":2.5,"grad_norm":1,"learning_rate":0.1,"tokens":512,"target_tokens":500,'
                 '"seconds":0.5,"data_wait_seconds":0.01,"communication_seconds":0.02,"tokens_per_second":1024}'),
        event(5, '{"event":"checkpoint","time":1,"step":1,"path":"step-00000001.a1","bytes":1,"seconds":0.4,"stall_seconds":0.1}'),
        from_worker(heartbeat=worker_pb2.Heartbeat(sample=worker_pb2.RankSample(id=rank, step=2, call=1, still_seconds=900))),
        message(tick), message(tick),
        event(6, '{"event":"finished","time":1,"step":100}'),
        from_worker(rank_report=worker_pb2.RankReport(id=rank, sequence=7, exited=worker_pb2.RankExited(exit_code=0))),
    ]  # fmt: skip
    stop = coordinator_pb2.CancelRequest(job="toy-1", mode=coordinator_pb2.CANCEL_MODE_CHECKPOINT)
    text = coordinator_pb2.ReadJobRequest(text=(ROOT / "examples/quickstart/job.yaml").read_text(), directory="/d")
    shown = [
        message(get, coordinator_pb2.GetRequest(job="toy").SerializeToString()), message(endpoints, coordinator_pb2.GetEndpointsRequest(job="toy-1").SerializeToString()),
        message(list_, coordinator_pb2.ListRequest(phases=[coordinator_pb2.PHASE_RUNNING], limit=1).SerializeToString()),
    ]  # fmt: skip
    return [
        b"".join(begun + run), b"".join([*begun, *shown, *run[:3], *shown]), b"".join([*begun, *run[:3], message(cancel, stop.SerializeToString()), message(tick)]),
        b"".join([*begun, *run[:4], message(detach), *([message(tick)] * 12)]),
        message(plan, coordinator_pb2.PlanRequest(spec=job.spec).SerializeToString()), message(read_job, text.SerializeToString()),
    ]  # fmt: skip


def stored_requests() -> list[bytes]:
    """Messages one behind the other; stored_requests.cc says which kinds there are."""
    coordinator_pb2, worker_pb2 = protos()
    watch, logs, put_folder, put_file, get_upload, get_file = range(6)
    sha256 = hashlib.sha256(b"ABC").hexdigest()
    upload = hashlib.sha256(f"{sha256} 3 config.json\n".encode()).hexdigest()
    folder = message(put_folder, coordinator_pb2.PutFolderRequest(files=[{"name": "config.json", "sha256": sha256, "size_bytes": 3}]).SerializeToString())
    file = [message(put_file, coordinator_pb2.PutFileRequest(**fields).SerializeToString()) for fields in ({"sha256": sha256, "size_bytes": 3, "data": b"AB"}, {"data": b"C"})]
    fetched = [message(get_upload, worker_pb2.GetUploadRequest(id=upload).SerializeToString()), message(get_file, worker_pb2.GetFileRequest(sha256=sha256, offset=1).SerializeToString())]
    watched = [coordinator_pb2.WatchRequest(job="toy-1"), coordinator_pb2.WatchRequest(job="toy-1", cursor=7, no_events=True)]
    read = [coordinator_pb2.LogsRequest(), coordinator_pb2.LogsRequest(job="toy-1", cursor=9, tail=3)]
    return [
        b"".join([folder, *file, folder, *fetched]), b"".join([file[0], folder, *fetched]),
        *(message(watch, request.SerializeToString()) for request in watched), *(message(logs, request.SerializeToString()) for request in read),
    ]  # fmt: skip


def tokens() -> list[bytes]:
    """A byte for the kind, as tokens.cc numbers them, and the text."""
    token, claims, file, answer = b"\0", b"\1", b"\2", b"\3"
    said = {"iss": "spiffe://tacc", "aud": "tacc-coordinator", "sub": "spiffe://tacc/user/alice", "project": "vision", "iat": 3999999000, "nbf": 1, "exp": 4000000000, "jti": "x"}
    status = {"authenticated": True, "audiences": ["tacc-coordinator"], "user": {"username": "system:serviceaccount:ml:trainer"}}
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status}
    files = [text for text in fenced("docs/roles.md") if "service_accounts:" in text]
    return [
        token + b"eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.e30." + b"A" * 86, claims + json.dumps(said).encode(), answer + json.dumps(review).encode(),
        *(file + text.encode() for text in files),
    ]  # fmt: skip


TARGETS = (job_yaml, cluster_yaml, compile_request, graph_text, program_text, safetensors, manifest, rank_event, start_file, data_index, requests, stored_requests, tokens)


def main() -> None:
    out = Path(sys.argv[1])
    for target in TARGETS:
        folder = out / target.__name__
        folder.mkdir(parents=True, exist_ok=True)
        for seed in target():
            content = seed if isinstance(seed, bytes) else seed.encode()
            (folder / hashlib.sha1(content).hexdigest()).write_bytes(content)
        assert any(folder.iterdir()), target.__name__


if __name__ == "__main__":
    main()
