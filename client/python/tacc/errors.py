"""The error of a bad input."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class InputError(Exception):
    """Something the user gave is wrong. The message says what, where, and what to do; the command exits with 2."""


def refuse_lfs_pointer(path: str, head: bytes) -> None:
    """InputError when a file that begins with `head` only points to what git-lfs has not fetched."""
    if head.startswith(LFS_POINTER):
        raise InputError(f"{path}: a pointer of git-lfs, not the file itself; fetch it in its repository: git lfs pull")
