"""The video of one seed, clean beside attacked: both cameras, what the attacked agent saw, and the perturbation."""

import contextlib
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from wmjax.core.errors import InputError
from wmjax.report.labels import budget_label, objective_label, optimizer_label
from wmjax.report.markdown import plain
from wmjax.report.traces import Trace

# Pixels. Tiles lie on the video coder's grid of 16, where an enlarged pixel costs it least.
_TILE, _GAP, _TOP, _CHART = 256, 16, 80, 116
_WIDTH, _HEIGHT = 4 * _TILE + 5 * _GAP, _TOP + _TILE + _CHART + 2 * _GAP
_INK, _FAINT, _RULE, _CLEAN, _ATTACKED = "#222222", "#6B6B6B", "#DDDDDD", "#0072B2", "#D55E00"
_NUMBERS = 110  # pixels right of the chart, for the returns so far
_FPS, _FRAMES = 25, 250  # pictures a second, and at most in all; longer episodes skip steps evenly
_BITS_A_SECOND = 2_000_000  # at most, of any second


def amplification(attacked: Trace) -> int:
    """Return the factor that brings the largest change of any pixel close to the full range around mid-grey."""
    change = np.abs(attacked.seen.astype(np.int16) - attacked.frames)
    return max(1, 127 // max(1, int(change.max())))


def write_video(video: Path, poster: Path, clean: Trace, attacked: Trace, *, limit: int) -> None:
    """Write an MP4 that browsers play (H.264, yuv420p) of about `limit` bytes at most, and a PNG of its last attacked
    frame.

    Raises InputError where ffmpeg cannot write the video, OSError where the poster cannot be written.
    """
    steps = max(len(clean.reward), len(attacked.reward))
    stride = -(-steps // _FRAMES)
    shown = [*range(stride - 1, steps - 1, stride), steps - 1]
    still = max((step for step in shown if attacked.attacked[step : step + 1].any()), default=steps - 1)
    factor = amplification(attacked)
    sheet = _sheet(attacked.meta, factor)
    returns = [np.cumsum(trace.reward, dtype=np.float64) for trace in (clean, attacked)]
    bold, pale = _chart(returns, steps, faded=False), _chart(returns, steps, faded=True)
    rate = str(min(_BITS_A_SECOND, 8 * limit * _FPS // len(shown)))
    # Its own process call: imageio's runs code between fork and exec, which a process with JAX's threads must not.
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error",
        "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{_WIDTH}x{_HEIGHT}", "-r", str(_FPS), "-i", "-",
        # Noise would eat the bits of all the rest: let the coder be coarser with the perturbation.
        "-vf", f"addroi={_left(3)}:{_TOP}:{_TILE}:{_TILE}:0.45",
        "-c:v", "libx264", "-pix_fmt", "yuv420p", "-preset", "veryfast",
        "-crf", "20", "-maxrate", rate, "-bufsize", rate, "-movflags", "+faststart",
        "-threads", "1",  # with more, what it writes depends on their timing
        f"file:{video}",  # a name that begins like an option or an address is a name all the same
    ]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as encoder:
        assert encoder.stdin is not None
        assert encoder.stderr is not None
        with contextlib.suppress(BrokenPipeError), encoder.stdin as pictures:  # its exit code tells that it gave up
            for step in shown:
                picture = _picture(sheet, bold, pale, (clean, attacked), returns, step, steps, factor)
                pictures.write(picture.tobytes())
                if step == still:
                    picture.save(poster, optimize=True)
        complaint = encoder.stderr.read().decode(errors="replace").strip().splitlines()
    if encoder.returncode:
        reason = complaint[-1] if complaint else f"ffmpeg ended with code {encoder.returncode}"
        raise InputError(f"{video}: cannot be written ({reason:.160})")


def _sheet(meta: Mapping[str, Any], factor: int) -> Image.Image:
    """Return what all frames share: the title and the captions of the tiles."""
    sheet = Image.new("RGB", (_WIDTH, _HEIGHT), "white")
    draw = ImageDraw.Draw(sheet)
    how = "" if meta["optimizer"] == "none" else f" by {optimizer_label(meta['optimizer'], int(meta['steps']))}"
    title = f"{objective_label(meta['objective'])}{how}, eps {budget_label(meta['eps'])}, mode {meta['mode']}"
    about = f"{meta['victim']} on {meta['task']}, seed {meta['seed']}"
    draw.text((_GAP, 9), _short(title, 70), _INK, _font(20))
    draw.text((_GAP, 34), _short(about, 110), _FAINT, _font(14))
    captions = ("clean episode", "attacked episode", "what the attacked agent sees", f"perturbation x {factor}")
    for tile, caption in enumerate(captions):
        colour = _CLEAN if tile == 0 else _ATTACKED
        draw.text((_left(tile), _TOP - 23), caption, colour, _font(15))
    return sheet


def _picture(
    sheet: Image.Image, bold: Image.Image, pale: Image.Image, traces: tuple[Trace, Trace],
    returns: list[NDArray[np.float64]], step: int, steps: int, factor: int,
) -> Image.Image:  # fmt: skip
    """Return the finished picture of one agent step; the shorter episode stays at its end."""
    clean, attacked = traces
    now = [min(step, len(trace.reward) - 1) for trace in traces]
    camera, seen = attacked.frames[now[1]], attacked.seen[now[1]]
    change = np.clip(128 + factor * (seen.astype(np.int16) - camera), 0, 255).astype(np.uint8)
    picture = sheet.copy()
    draw = ImageDraw.Draw(picture)
    for tile, image in enumerate((clean.frames[now[0]], camera, seen, change)):
        large = Image.fromarray(image).resize((_TILE, _TILE), Image.Resampling.NEAREST)
        picture.paste(large, (_left(tile), _TOP))
    if attacked.attacked[now[1]]:
        for tile in (2, 3):
            draw.rectangle((_left(tile) - 3, _TOP - 3, _left(tile) + _TILE + 2, _TOP + _TILE + 2), None, _ATTACKED, 3)
    draw.text((_WIDTH - _GAP, 12), f"step {step + 1} / {steps}", _INK, _font(18), anchor="ra")

    top, reached = _TOP + _TILE + _GAP, round(bold.width * (step + 1) / steps)
    picture.paste(pale, (_GAP, top))
    picture.paste(bold.crop((0, 0, reached, bold.height)), (_GAP, top))
    left = _GAP + bold.width + 14
    draw.text((left, top), "return so far", _FAINT, _font(14))
    for line, (name, colour) in enumerate((("clean", _CLEAN), ("attacked", _ATTACKED))):
        draw.text((left, top + 24 + 46 * line), name, colour, _font(14))
        draw.text((left, top + 40 + 46 * line), f"{returns[line][now[line]]:.1f}", colour, _font(24))
    return picture


def _chart(returns: list[NDArray[np.float64]], steps: int, *, faded: bool) -> Image.Image:
    """Return both running returns over the whole episode, smooth because drawn three times as large."""
    width, height, fine = _WIDTH - 3 * _GAP - _NUMBERS, _CHART, 3
    chart = Image.new("RGB", (fine * width, fine * height), "white")
    draw = ImageDraw.Draw(chart)
    low, high = min(0.0, *(r.min() for r in returns)), max(1e-9, *(r.max() for r in returns))
    draw.line((0, fine * (height - 1), fine * width, fine * (height - 1)), _RULE, fine)
    for curve, colour in zip(returns, (_CLEAN, _ATTACKED), strict=True):
        x = fine * width * np.arange(len(curve) + 1) / steps
        y = fine * (4 + (height - 8) * (high - np.append(0.0, curve)) / (high - low))
        shade = Image.blend(Image.new("RGB", (1, 1), colour), Image.new("RGB", (1, 1), "white"), 0.7 if faded else 0.0)
        draw.line(np.stack([x, y], axis=1).ravel().tolist(), shade.getpixel((0, 0)), 2 * fine, "curve")
    return chart.resize((width, height), Image.Resampling.LANCZOS)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _left(tile: int) -> int:
    return _GAP + tile * (_TILE + _GAP)


def _short(text: str, letters: int) -> str:
    line = plain(text)
    return line if len(line) <= letters else line[: letters - 1] + "…"
