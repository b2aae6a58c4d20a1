"""Files that appear whole or not at all, and files of strangers, which may be none."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from wmjax.core.errors import Damaged, InputError


def write_atomically(path: Path, data: Any) -> None:
    """Write `path` so that, whatever happens, it holds either nothing new or all of `data`, bytes or a buffer.

    Raises InputError where the disk is full or the folder cannot be written. A path has one writer at a time.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def make_folder(path: Path) -> None:
    """Make a folder where there is none; raises InputError where it is a link, through which nothing is written."""
    try:
        if path.is_symlink():
            raise InputError(f"{path}: is a link to another folder, and nothing is written there")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def lock(folder: Path) -> IO[bytes]:
    """Return a file of `folder` that no other process has until it is closed.

    Raises InputError where another process has it, or the folder cannot be written.
    """
    try:
        # A link of that name might lead to any file, a pipe would wait for ever.
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
    file = os.fdopen(handle, "rb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        held = isinstance(error, BlockingIOError)
        reason = "another process is writing to it" if held else f"cannot be locked ({error.strerror})"
        raise InputError(f"{folder}: {reason}") from None
    return file


def check_file(path: Path, most: int | None = None) -> None:
    """Raise InputError unless `path` is an ordinary file, of at most `most` bytes; a device or pipe might never end.

    Too large a file is Damaged. Raises FileNotFoundError where there is nothing, and OSError where that cannot be told.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: not a regular file")
    if most is not None and status.st_size > most:
        raise Damaged(f"{path}: is larger ({status.st_size} bytes) than such a file can be ({most} bytes)")


def read_file(path: Path, most: int) -> bytes:
    """Return the content of an ordinary file of at most `most` bytes.

    Raises FileNotFoundError where there is none, Damaged where it is larger, and InputError where it cannot be opened.
    """
    try:
        check_file(path, most)
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def visible(folder: Path, suffix: str = "") -> list[Path]:
    """Return what lies in a folder and ends in `suffix`, sorted, but nothing hidden; nothing where there is no folder.

    Raises InputError where the folder cannot be read: it may well hold something.
    """
    try:
        return sorted(x for x in folder.iterdir() if x.name.endswith(suffix) and not x.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from None


@contextmanager
def plain_name(path: Path) -> Iterator[Path]:
    """Yield a name of a file or folder for libraries that open by name, in UTF-8, and may take a name for a pattern.

    It is the path itself, else that of an open handle. Raises OSError where it cannot be opened.
    """
    text = str(path)
    if os.fsencode(path).decode(errors="replace") == text and not {*"*?["}.intersection(text):
        yield path
        return
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield Path(f"/dev/fd/{handle}")
    finally:
        os.close(handle)


def remove_parts(folder: Path) -> None:
    """Remove what writers that were killed left half-written in `folder`; nobody may be writing there."""
    for left in folder.glob(".*.part"):
        left.unlink(missing_ok=True)
