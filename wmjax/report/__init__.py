"""Turns the folder of a study into tables, figures and a video: a pure function of what lies in the folder."""

from pathlib import Path

from wmjax.report.curves import draw_curves
from wmjax.report.folder import read_manifest, read_rows
from wmjax.report.markdown import code
from wmjax.report.names import budget_label, mode_order
from wmjax.report.page import render
from wmjax.report.scores import blocks, summarise
from wmjax.report.tables import objective_text
from wmjax.report.traces import Trace, lowest_pair
from wmjax.report.video import amplification, write_video

__all__ = ["report"]


def report(folder: Path) -> Path:
    """Write `folder`/report from the rows, manifest and traces in `folder`; return the path of its report.md.

    Beside the page: curves.png (curves_2.png ... for further temporal modes), and episode.mp4 with its poster
    episode.png where episodes were recorded. Files of an earlier report are replaced or removed. Raises InputError,
    naming the file, where the folder or something in it is not what a study leaves.
    """
    rows, manifest, pair = read_rows(folder), read_manifest(folder), lowest_pair(folder)
    parts = [(block, summarise(block)) for block in blocks(rows, manifest.study)]
    out = folder / "report"
    out.mkdir(exist_ok=True)
    for stale in (*out.glob("curves*.png"), *out.glob("episode.*"), *out.glob("report.md")):
        stale.unlink()

    figures = {}
    for i, mode in enumerate(sorted({block.mode for block, _ in parts}, key=mode_order), 1):
        figures[mode] = "curves.png" if i == 1 else f"curves_{i}.png"
        draw_curves(out / figures[mode], [part for part in parts if part[0].mode == mode])
    episode = "No episodes were recorded as a clean and an attacked pair of one seed, so there is no video."
    if pair is not None:
        write_video(out / "episode.mp4", out / "episode.png", *pair)
        episode = _episode(*pair)
    page = out / "report.md"
    page.write_text(render(rows, manifest, parts, figures, episode), encoding="utf-8")
    return page


def _episode(clean: Trace, attacked: Trace) -> str:
    meta = attacked.meta
    attack = f"{objective_text(meta['objective'])}, optimizer {code(meta['optimizer'])}, mode {code(meta['mode'])}"
    return (
        "[![Clean beside attacked; a click plays the video](episode.png)](episode.mp4)\n\n"
        f"{code(meta['victim'])} on {code(meta['task'])}, seed {meta['seed']:g}: return {clean.meta['return']:.4g} "
        f"clean, {meta['return']:.4g} attacked ({attack}, ε = {budget_label(meta['eps'])}). Of the recorded attacks it "
        "left the lowest return. Left to right: the camera of the clean episode, the camera of the attacked one, what "
        f"the attacked agent sees, and the perturbation times {amplification(attacked)} around grey. A frame around "
        "a picture marks an attacked step."
    )
