"""What TLS with certificates costs, beside the same in the clear: from a submit to the first step, and the metrics of 100 workers, which report as
fast as the coordinator stores, and a step a second. Prints a table.

    .venv/bin/python bench/tls.py --build build [--jobs 20] [--rounds 5]

Both services are there all the time and take turns. The bar of rows of seconds and reports: within 5 % of plaintext.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/e2e")]


class Service:
    """A coordinator with one CPU worker. `pki`: by TLS, with the certificates there."""

    def __init__(self, build: Path, folder: Path, pki: Path | None):
        from cluster import Process

        folder.mkdir()
        self.build = build

        def options(role: str) -> list:
            return ["--tls-dir", pki / role] if pki else ["--insecure"]

        coordinator = [build / "tacc-coordinator", "--listen", "127.0.0.1:0", "--state-dir", folder / "coordinator", *options("server")]
        self.coordinator = Process(coordinator, folder / "coordinator.log", "listening")
        self.address = self.coordinator.answer
        worker = [build / "tacc-worker", "--coordinator", self.address, "--name", "worker", "--threads", 1, "--state-dir", folder / "worker", *options("worker")]
        self.worker = Process(worker, folder / "worker.log", "attached")
        self.environment = {**os.environ, **({"TACC_TLS_DIR": str(pki / "admin")} if pki else {})}

    def first_step(self, job: Path) -> float:
        """Seconds from the start of `taccctl submit` until the first step is done."""
        start = time.time()
        command = [self.build / "taccctl", "--address", self.address, "submit", "--follow", "-o", "json", job]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=self.environment)
        return next(event["time"] for event in map(json.loads, done.stdout.splitlines()) if "grad_norm" in event) - start

    def stop(self) -> None:
        self.worker.stop()
        self.coordinator.stop()


def row(what: str, clear: float, tls: float, cost: float) -> None:
    print(f"| {what} | {clear:.4g} | {tls:.4g} | {cost:+.1%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--jobs", type=int, default=20, help="on each service")
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--steps", type=int, default=200, help="that each worker reports")
    parser.add_argument("--paced-steps", type=int, default=20, help="that each reports one a second")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    build = args.build.resolve()
    os.environ["TACC_BUILD"] = str(build)

    from cluster import write_job

    subprocess.run(["cmake", "--build", build, "--target", "reports_bench"], check=True, stdout=subprocess.DEVNULL)
    print("| what | in the clear | TLS | costs |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as started:
        folder = Path(name)
        subprocess.run([build / "tacc-coordinator", "init", "--out", folder / "pki"], check=True, capture_output=True)
        services = []
        for what, pki in (("clear", None), ("tls", folder / "pki")):
            services.append(Service(build, folder / what, pki))
            started.callback(services[-1].stop)
        took: tuple[list[float], list[float]] = ([], [])
        for number in range(args.jobs + 1):
            for service, seconds in zip(services, took):
                job = write_job(folder, name=f"job{number}", workers=1, train={"max_steps": 2}, checkpoint={"dir": str(folder / f"runs/{number}-{len(seconds)}-{service.address}")})
                seconds.append(service.first_step(job))
        clear, tls = (statistics.median(seconds[1:]) for seconds in took)  # The first has the device measured.
        row("submit to first step, s", clear, tls, tls / clear - 1)
    for rate, steps in ((0, args.steps), (1, args.paced_steps)):
        command = [build / "reports_bench", args.workers, steps, args.rounds, rate]
        lines = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        how = f"{args.workers} workers, {'a step a second' if rate else 'as fast as it goes'}, each watched"
        for of, what in (("reports_per_second", f"reports/s of {how}"), ("cpu_microseconds_per_report", "CPU of the coordinator for a report, us")):
            clear, tls = (statistics.median(r[of] for r in map(json.loads, lines) if r["tls"] == is_tls) for is_tls in (False, True))
            row(what, clear, tls, (clear / tls if of == "reports_per_second" else tls / clear) - 1)


if __name__ == "__main__":
    main()
