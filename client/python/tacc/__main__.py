"""`python -m tacc COMMAND`."""

import argparse
import signal
import sys

from tacc.errors import InputError, this_python
from tacc.extras import what_to_install


def main(argv: list[str] | None = None) -> int:
    try:
        return run(argv)
    except ModuleNotFoundError as error:
        said = what_to_install(error)
        if said is None:
            raise
        print(f"error: {said}", file=sys.stderr)
        return 2


def run(argv: list[str] | None) -> int:
    from tacc import convert, data, sample

    parser = argparse.ArgumentParser(prog=f"{this_python()} -m tacc", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    data.add_commands(commands)
    convert.add_command(commands)
    sample.add_command(commands)
    args = parser.parse_args(argv)
    # So that a terminated command removes what it has written so far.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        args.run(args)
    except InputError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
