"""Turns the folder of a study into tables, figures and videos: a pure function of what lies in the folder."""

import hashlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from wmjax.core import machine
from wmjax.core.errors import InputError
from wmjax.core.files import make_folder
from wmjax.report import csv, html, latex, markdown
from wmjax.report.condition import Setting, setting_name, told_axes
from wmjax.report.document import Document, Figure, Table, Video
from wmjax.report.labels import budget_label
from wmjax.report.load_results import read_manifest, read_rows
from wmjax.report.markdown import code
from wmjax.report.page import assemble
from wmjax.report.scores import blocks, summarise
from wmjax.report.tables import objective_text
from wmjax.report.traces import Trace, lowest_pairs
from wmjax.report.video import amplification, write_video

__all__ = ["report"]

_MOST_VIDEOS = 6
_VIDEO_BYTES = 9_000_000  # of all videos: a page that holds them can still be mailed
_DPI = 200
_SUMS = "SHA256SUMS"


def report(folder: Path) -> Path:
    """Write `folder`/report from the rows, manifest and traces in `folder`; return the path of its report.html.

    The page holds all it shows. Beside it: report.md with the figures as PNG and the videos as MP4, every table as CSV
    and LaTeX in tables/, and SHA256SUMS, which lists the report's files. Files of an earlier report are replaced or
    removed. Raises InputError, naming the file, where the folder or something in it is not what a study leaves, or the
    report cannot be written.
    """
    rows, manifest, pairs = read_rows(folder), read_manifest(folder), lowest_pairs(folder, _MOST_VIDEOS)
    parts = [(block, summarise(block)) for block in blocks(rows, manifest.study)]
    names = ["episode" if i == 1 else f"episode_{i}" for i in range(1, len(pairs) + 1)]
    videos = [_video(name, *pair) for name, pair in zip(names, pairs, strict=True)]
    document = assemble(rows, manifest, parts, videos)
    out = folder / "report"
    for place in (out, out / "tables"):
        make_folder(place)
    with ThreadPoolExecutor(machine.cores()) as pool:  # each encoder is a process of one thread
        list(pool.map(partial(_write_video, out, _VIDEO_BYTES // max(4, len(pairs))), videos, pairs))
    written = [name for video in videos for name in (video.file, video.poster)]
    written += _write_parts(document, out)
    for name, text in (("report.md", markdown.render(document)), ("report.html", html.render(document, out))):
        _write(out / name, text)
        written.append(name)
    _sum_up(out, written)
    return out / "report.html"


def _write_video(out: Path, limit: int, video: Video, pair: tuple[Trace, Trace]) -> None:
    with _writing(out / video.file), _writing(out / video.poster):
        write_video(out / video.file, out / video.poster, *pair, limit=limit)


def _write_parts(document: Document, out: Path) -> list[str]:
    """Write the document's figures and tables as files; return their names."""
    written = []
    for part in document.parts():
        match part:
            case Figure():
                written.append(f"{part.name}.png")
                with _writing(out / written[-1]):
                    height = part.drawing.get_size_inches()[1]
                    part.drawing.savefig(out / written[-1], dpi=min(_DPI, 30000 / height), facecolor="white")
            case Table():
                for ending, text in (("csv", csv.render(part)), ("tex", latex.render(part))):
                    written.append(f"tables/{part.name}.{ending}")
                    _write(out / written[-1], text)
    return written


def _sum_up(out: Path, written: list[str]) -> None:
    """Write SHA256SUMS, and remove what an earlier one lists and this one does not."""
    sums = out / _SUMS
    with _writing(sums):
        before = sums.read_text(encoding="utf-8", errors="replace") if sums.is_file() else ""
        digests = {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in sorted(written)}
    _write(sums, "".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    stale = re.findall(r"^[0-9a-f]{64}  ((?:tables/)?[\w-]+\.\w+)$", before, re.MULTILINE)
    with _writing(out):
        for name in {*stale} - {*written}:
            (out / name).unlink(missing_ok=True)


def _write(file: Path, text: str) -> None:
    with _writing(file):
        file.write_text(text, encoding="utf-8")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say what is wrong where `path` cannot be written; what it links to is not touched."""
    try:
        if path.is_symlink():
            path.unlink()
        yield
    except OSError as error:
        raise InputError(f"{error.filename or path}: cannot be written ({error.strerror or error})") from None


def _video(name: str, clean: Trace, attacked: Trace) -> Video:
    meta = attacked.meta
    setting = Setting(*(meta[axis] for axis in Setting._fields))
    where = setting_name(setting, told_axes([setting]))
    attack = f"{objective_text(meta['objective'])}, optimizer {code(meta['optimizer'])}, mode {code(where)}"
    caption = (
        f"{code(meta['victim'])} on {code(meta['task'])}, seed {meta['seed']:g}: return {clean.meta['return']:.4g} "
        f"clean, {meta['return']:.4g} attacked ({attack}, ε = {budget_label(meta['eps'])}), "
        f"perturbation times {amplification(attacked)} around grey."
    )
    alt = "Clean beside attacked; a click plays the video"
    return Video(f"{name}.mp4", f"{name}.png", alt, caption)
