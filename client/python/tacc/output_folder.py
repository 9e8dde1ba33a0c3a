"""A folder that appears whole or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tacc.errors import InputError


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Gives a temporary folder beside `out`, renamed to `out` at the end and removed on any error.

    InputError when `out` is there already and is not an empty folder.
    """
    out = Path(os.path.abspath(out))
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise InputError(f"{out}: is there already and is not a folder; choose another --out")
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"{out}: is there already and is not empty; choose another --out, or delete the folder first")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent))
    except OSError as error:
        raise InputError(f"{out.parent}: cannot write here: {error.strerror}; choose another --out") from error
    try:
        # mkdtemp makes a private folder; the result gets the permissions of any new one.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o777 & ~mask)
        yield temporary
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
