"""Training beside other work on the same processors: how the threads of a rank should wait for each other.

One rank of two threads trains the quickstart's model, batch 4 x 256, on two processors; in the busy half of the runs three processes that do
nothing but compute are held to the same two. Each way in which the threads can wait is tried in turn (A B C A B C ...): how often one looks before it sleeps; 300,000 is libgomp's own,
1000 what a daemon sets. Prints the median tokens/s of each, and the median of its ratios to the first, round by round.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "client/python")]
from bare_ranks import Training  # noqa: E402
from inputs import write_tokens  # noqa: E402

WARM_UP, COUNTED, BATCH, SEQ, VOCAB = 2, 8, 4, 256, 8192
WAITS = {
    **{f"spin {count}": {"GOMP_SPINCOUNT": str(count)} for count in (300_000, 30_000, 10_000, 3000, 1000, 100)},
    "sleep": {"GOMP_SPINCOUNT": "0"},
}


def tokens_per_second(training: Training, wait: dict[str, str]) -> float:
    with training.start(wait) as ranks:
        seconds = [event["seconds"] for event in ranks.events() if event["event"] == "step"]
    return BATCH * SEQ / statistics.median(seconds[WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--neighbours", default="0,3", help="busy processes beside the rank")
    parser.add_argument("--waits", default=",".join(WAITS))
    parser.add_argument("--cpus", default=",".join(map(str, sorted(os.sched_getaffinity(0))[:2])))
    args = parser.parse_args()
    os.sched_setaffinity(0, {int(cpu) for cpu in args.cpus.split(",")})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").symlink_to(ROOT / "examples/quickstart/model")
        write_tokens(folder, VOCAB, WARM_UP + COUNTED, BATCH, SEQ)
        training = Training(args.build, folder, VOCAB, SEQ, BATCH, WARM_UP + COUNTED, threads=2, saves=False)
        training.compile()
        for neighbours in map(int, args.neighbours.split(",")):
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(neighbours)]
            try:
                figures: dict[str, list[float]] = {wait: [] for wait in args.waits.split(",")}
                for _ in range(args.rounds):
                    for wait, series in figures.items():
                        series.append(tokens_per_second(training, WAITS[wait]))
            finally:
                for process in busy:
                    process.kill()
                    process.wait()
            baseline, first = next(iter(figures.items()))
            print(f"\n{neighbours} busy processes, {args.rounds} rounds\n\n| wait | tokens/s | lowest | highest | ratio to {baseline} |")
            print("| --- | --- | --- | --- | --- |")
            for wait, series in figures.items():
                ratio = statistics.median(a / b for a, b in zip(series, first))
                print(f"| {wait} | {statistics.median(series):.0f} | {min(series):.0f} | {max(series):.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
