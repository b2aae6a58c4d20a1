"""Turns the folder of a study into tables, figures and a video: a pure function of what lies in the folder."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wmjax.core.errors import InputError
from wmjax.report.curves import draw_curves
from wmjax.report.folder import read_manifest, read_rows
from wmjax.report.markdown import code
from wmjax.report.names import budget_label
from wmjax.report.page import render
from wmjax.report.scores import blocks, summarise
from wmjax.report.settings import Setting, setting_name, setting_order, told_axes
from wmjax.report.tables import objective_text
from wmjax.report.traces import Trace, lowest_pair
from wmjax.report.video import amplification, write_video

__all__ = ["report"]

_OURS = re.compile(r"curves(_\d+)?\.png|episode\.(mp4|png)|report\.md")


def report(folder: Path) -> Path:
    """Write `folder`/report from the rows, manifest and traces in `folder`; return the path of its report.md.

    Beside the page: curves.png (curves_2.png ... for further settings), and episode.mp4 with its poster
    episode.png where episodes were recorded. Files of an earlier report are replaced or removed. Raises InputError,
    naming the file, where the folder or something in it is not what a study leaves, or the report cannot be written.
    """
    rows, manifest, pair = read_rows(folder), read_manifest(folder), lowest_pair(folder)
    parts = [(block, summarise(block)) for block in blocks(rows, manifest.study)]
    out = folder / "report"
    with _writing(out):
        out.mkdir(exist_ok=True)
    figures = {}
    for i, setting in enumerate(sorted({block.setting for block, _ in parts}, key=setting_order), 1):
        figures[setting] = "curves.png" if i == 1 else f"curves_{i}.png"
        with _writing(out / figures[setting]):
            draw_curves(out / figures[setting], [part for part in parts if part[0].setting == setting])
    written = {*figures.values(), "report.md"}
    episode = "No episodes were recorded as a clean and an attacked pair of one seed, so there is no video."
    if pair is not None:
        with _writing(out / "episode.png"):
            write_video(out / "episode.mp4", out / "episode.png", *pair)
        written |= {"episode.mp4", "episode.png"}
        episode = _episode(*pair)
    page, text = out / "report.md", render(rows, manifest, parts, figures, episode)
    with _writing(page):
        page.write_text(text, encoding="utf-8")
    with _writing(out):
        for file in out.iterdir():
            if _OURS.fullmatch(file.name) and file.name not in written and file.is_file():
                file.unlink()
    return page


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or path}: cannot be written ({error.strerror or error})") from None


def _episode(clean: Trace, attacked: Trace) -> str:
    meta = attacked.meta
    setting = Setting(*(meta[axis] for axis in Setting._fields))
    name = setting_name(setting, told_axes([setting]))
    attack = f"{objective_text(meta['objective'])}, optimizer {code(meta['optimizer'])}, mode {code(name)}"
    return (
        "[![Clean beside attacked; a click plays the video](episode.png)](episode.mp4)\n\n"
        f"{code(meta['victim'])} on {code(meta['task'])}, seed {meta['seed']:g}: return {clean.meta['return']:.4g} "
        f"clean, {meta['return']:.4g} attacked ({attack}, ε = {budget_label(meta['eps'])}). Of the recorded attacks it "
        "left the lowest return. Left to right: the camera of the clean episode, the camera of the attacked one, what "
        f"the attacked agent sees, and the perturbation times {amplification(attacked)} around grey. A frame around "
        "a picture marks an attacked step."
    )
