"""The error of a bad input."""

import os
import shlex
import sys

LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def this_python() -> str:
    """This Python as a word of a command that can be pasted where it was started."""
    if not sys.executable:
        return "python"
    try:
        near = os.path.relpath(sys.executable)
    except OSError:  # The folder where it was started has gone.
        near = ""
    # Without a slash it would be looked for on the PATH.
    return shlex.quote(near if "/" in near and not near.startswith("..") else sys.executable)


class InputError(Exception):
    """Something the user gave is wrong. The message says what, where, and what to do; the command exits with 2."""


def refuse_lfs_pointer(path: str, head: bytes) -> None:
    """InputError when a file that begins with `head` only points to what git-lfs has not fetched."""
    if head.startswith(LFS_POINTER):
        raise InputError(f"{path}: a pointer of git-lfs, not the file itself; fetch it in its repository: git lfs pull")
