"""What the Python client costs: of a call over gRPC's own stub, of an item of a watch, of a submit, and of importing it. Prints a table.

A coordinator and two CPU workers of the build are started for it. Calls of the client and of the stub take turns, so that both see the same machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/e2e")]


def seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def in_turns(first: Callable[[], object], second: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median seconds of each, after a warm-up."""
    both: tuple[list[float], list[float]] = ([], [])
    for i in range(repeats + 20):
        for act, times in zip((first, second), both):
            took = seconds(act)
            if i >= 20:
                times.append(took)
    return statistics.median(both[0]), statistics.median(both[1])


def import_seconds(code: str) -> float:
    """Of a fresh Python, over one that does nothing: the median of 7."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client/python")}

    def run(what: str) -> float:
        return seconds(lambda: subprocess.run([sys.executable, "-c", what], check=True, env=environment))

    run(code)
    return statistics.median(run(code) - run("pass") for _ in range(7))


def row(what: str, ours: str, beside: str, bar: str) -> None:
    print(f"| {what} | {ours} | {beside} | {bar} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--repeats", type=int, default=1000, help="calls of each kind")
    parser.add_argument("--steps", type=int, default=20_000, help="of the job that is watched")
    args = parser.parse_args()
    os.environ["TACC_BUILD"] = str(args.build.resolve())

    import grpc
    import tacc
    from cluster import Cluster, write_job
    from tacc.v1 import coordinator_pb2, coordinator_pb2_grpc

    print("| what | tacc | beside | bar |\n| --- | --- | --- | --- |")
    row("import tacc, ms", f"{1e3 * import_seconds('import tacc'):.0f}", "", "300")
    row("import tacc; tacc.Client, ms", f"{1e3 * import_seconds('import tacc; tacc.Client'):.0f}", f"{1e3 * import_seconds('import grpc'):.0f} (import grpc)", "")
    with tempfile.TemporaryDirectory() as name, Cluster(Path(name) / "cluster", workers=2) as cluster, tacc.Client(cluster.address) as client:
        job = client.submit(write_job(Path(name), train={"max_steps": args.steps}, checkpoint={"save_steps": args.steps}))
        job.wait(progress=False)
        with grpc.insecure_channel(cluster.address) as channel:
            stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
            for what, ours, theirs in (
                ("a call (version)", client.version, lambda: stub.GetVersion(coordinator_pb2.GetVersionRequest())),
                ("a call (status of a job)", job.status, lambda: stub.Get(coordinator_pb2.GetRequest(job=job.id))),
            ):
                with_client, with_stub = in_turns(ours, theirs, args.repeats)
                row(f"{what}, ms", f"{1e3 * with_client:.3f}", f"{1e3 * with_stub:.3f} (stub)", f"0.2 over it; is {1e3 * (with_client - with_stub):.3f}")

            items = 0

            def watch() -> None:
                nonlocal items
                items = sum(1 for _ in job.watch())

            request = coordinator_pb2.WatchRequest(job=job.id)
            took, raw = in_turns(watch, lambda: sum(1 for _ in stub.Watch(request)), 3)
            row("watch of a job that has ended, thousand items/s", f"{items / took / 1e3:.1f}", f"{items / raw / 1e3:.1f} (stub)", "")
        table = seconds(job.metrics)
        row(f"job.metrics() of {args.steps} steps, s", f"{table:.2f}", "", "")

        spec = json.loads(write_job(Path(name), name="submitted").read_text())
        spec["model"]["path"], spec["data"]["path"] = f"{name}/model", f"{name}/data"
        spec["checkpoint"]["dir"] = f"{name}/runs/submitted"
        request_id = "bench"
        client.submit(spec, request_id=request_id).cancel(now=True)
        message = coordinator_pb2.SubmitRequest(spec=client._read(spec), request_id=request_id)
        with grpc.insecure_channel(cluster.address) as channel:
            stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
            # The same id each time: the coordinator finds the job that it has, and writes nothing.
            with_client, with_stub = in_turns(lambda: client.submit(spec, request_id=request_id), lambda: stub.Submit(message), args.repeats // 4)
        row("submit of a dict (read, look for its paths, submit), ms", f"{1e3 * with_client:.2f}", f"{1e3 * with_stub:.2f} (the stub's Submit alone)", "")


if __name__ == "__main__":
    main()
