"""Hostile input: study files and results folders from a stranger, by the thousand, through the command line.

    python benchmarks/hostile.py [--cases 1000] [--seed 0] [--json FILE]

Each case is made from sound input by one or several random changes: wrong types, huge numbers, NaN, odd Unicode, HTML
or formulas in names, paths that lead elsewhere, broken bytes, pipes and devices in place of files. It must end within a
minute, in success or in one message on what is wrong (exit code 2). Reports that were written are opened in a headless
browser, where there is one: none may run a script, ask for a page elsewhere, or write to the console.
"""

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))  # wmjax where it is not installed

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wmjax import runtime

LIMIT = 60
"""Seconds that a case may take."""

CHROMIUM = "/usr/bin/chromium"
ALARM = "<img src=x onerror=alert(1)><script>alert(1)</script>"
WORDS = [
    "", " ", "\x00", "\n", "\u202e\u2066x", "é" * 40, "😀" * 9, "a" * 5000, "../../etc/passwd", "/dev/zero",
    "/proc/self/mem", "..", "~", "CON", "-x", "self", "none", "clean", "nan", "1e999", "9" * 400, ALARM,
    "javascript:alert(1)", "](javascript:alert(1))", "`|*_#", "{{7*7}}{% include '/etc/passwd' %}",
    "\\input{/etc/passwd}",
    "$x$%&#_^~", "=HYPERLINK(\"//x\")", "@SUM(1)", "vsa+" * 300, "sparse(0)", "jpeg(1e9)", "pgd(-1)", "vsa+0*pea",
    "target(nan)", "frames(9,1)", "patch(1e400)", "\ufeffvsa", "dmc_walker_walk", "pgd(99999999999999999999)",
]  # fmt: skip
NUMBERS = [0, -1, 1, 2**31, 2**63, 2**64, 10**400, -(10**400), 0.5, -0.0, 1e-320, 1e308, float("inf"), float("nan")]
AGENT = "dmc_cartpole_balance_r2dreamer_1m"
SOUND: dict[str, Any] = {
    "name": "hostile",
    "victims": [AGENT],
    "objectives": ["random", "vsa"],
    "optimizers": ["pgd"],
    "budgets": [0, "8/255"],
    "seeds": [20, 21],
    "modes": ["full", "sparse(2)"],
    "defenses": ["none", "jpeg"],
    "adaptive": [False, True],
    "episode_steps": 8,
}


def value(dice: random.Random, depth: int = 0) -> Any:
    """Return something that few fields expect."""
    match dice.randrange(7 if depth < 3 else 4):
        case 0 | 1:
            return dice.choice(WORDS)
        case 2:
            return dice.choice(NUMBERS)
        case 3:
            return dice.choice([True, False])
        case 4:
            return [value(dice, depth + 1) for _ in range(dice.choice([0, 1, 2, 50]))]
        case 5:
            return {dice.choice(WORDS): value(dice, depth + 1) for _ in range(3)}
        case _:
            return dice.choice(list(SOUND.values()))


def toml(item: Any) -> str:
    """Return a value as TOML, as far as it can be one."""
    match item:
        case bool():
            return str(item).lower()
        case float():
            return repr(item)
        case int():
            return str(item) if abs(item) < 10**300 else "1" + "0" * 400
        case str():
            return json.dumps(item)
        case list():
            return f"[{', '.join(map(toml, item))}]"
    return f"{{{', '.join(f'{json.dumps(key)} = {toml(inner)}' for key, inner in item.items())}}}"


def study_file(dice: random.Random, path: Path) -> None:
    """Write a study that is not quite one."""
    study = dict(SOUND)
    for _ in range(dice.choice([1, 1, 1, 2, 5])):
        known = [*SOUND, "regions", "frames", "sources", "tasks", "noise", "draws", "steps", "backend", "traces"]
        field = dice.choice([*known, dice.choice(WORDS)])
        match dice.randrange(4):
            case 0:
                study.pop(field, None)
            case 1 if isinstance(study.get(field), list):
                study[field] = [*study[field], value(dice)]
            case _:
                study[field] = value(dice)
    text = "\n".join(f"{key if key.isidentifier() else json.dumps(key)} = {toml(item)}" for key, item in study.items())
    broken(dice, path, text.encode("utf-8", "surrogatepass"), often=0.3)


def broken(dice: random.Random, path: Path, data: bytes, often: float) -> None:
    """Write `data` to `path`, and `often` not quite."""
    if dice.random() > often:
        path.write_bytes(data)
        return
    match dice.randrange(9):
        case 0:
            path.write_bytes(data[: dice.randrange(len(data) + 1)])
        case 1:
            changed = bytearray(data)
            for _ in range(dice.choice([1, 3, 40])):
                changed[dice.randrange(len(changed))] = dice.randrange(256)
            path.write_bytes(bytes(changed))
        case 2:
            path.write_bytes(dice.randbytes(dice.choice([0, 1, 200, 70_000])))
        case 3:
            path.write_bytes(b"[" * 60_000)
        case 4:
            path.write_bytes(data + b"\n" + data)
        case 5:
            os.mkfifo(path)
        case 6:
            path.symlink_to(dice.choice(["/dev/zero", "/dev/stdin", path.name, "/etc/shadow", "/nowhere"]))
        case 7:
            path.mkdir()
        case _:
            path.write_bytes(b"\xef\xbb\xbf" + data + b"\x00")


def sound_rows() -> list[dict[str, Any]]:
    """Return the rows of a small study that went well."""
    from wmjax.agents import zoo
    from wmjax.study.plan import episodes
    from wmjax.study.schema import SCHEMA
    from wmjax.study.study_file import parse_study

    numbers = {"max_return": 16.0, "length": 8, "attacked": 8, "schema": 4, "wall_s": 0.1}
    rows = []
    for episode in episodes(parse_study(dict(SOUND)), {AGENT: zoo.card(AGENT)}):
        row = dict.fromkeys(SCHEMA.names, 0.25) | numbers | {"nan": False} | asdict(episode)
        row |= {"return": 16.0 - 100 * episode.eps - episode.seed % 2}
        for field in SCHEMA:
            if field.type == pa.string() and field.name not in asdict(episode):
                row[field.name] = "" if field.name == "error" else "host" if field.name == "backend" else "0" * 64
        rows.append(row)
    return rows


def folder(dice: random.Random, path: Path) -> None:
    """Make a results folder that is not quite one."""
    from wmjax.study.schema import SCHEMA
    from wmjax.study.study_file import parse_study

    study = json.loads(json.dumps(asdict(parse_study(dict(SOUND)))))
    rows, manifest = sound_rows(), {"study": study, "versions": {"jax": "0"}, "device": "cpu", "notes": []}
    kinds = dict(zip(SCHEMA.names, SCHEMA.types, strict=True))
    texts = [name for name, kind in kinds.items() if kind == pa.string()]
    for _ in range(dice.choice([0, 1, 1, 3, 8])):
        name = dice.choice(SCHEMA.names) if dice.random() < 0.5 else dice.choice(texts)
        words, whole = kinds[name] == pa.string(), pa.types.is_integer(kinds[name])
        word, was = dice.choice(WORDS), dice.choice(rows)[name]
        for row in rows if words or dice.random() < 0.5 else dice.sample(rows, 2):
            if words:  # a name is another one wherever it stands, so that cells stay apart
                row[name] = word if row[name] == was else row[name]
            elif kinds[name] == pa.bool_():
                row[name] = dice.random() < 0.5
            else:
                row[name] = dice.choice([n for n in NUMBERS if not whole or (n == n and abs(n) < 2**31)])
                row[name] = int(row[name]) if whole else float(max(min(row[name], 1e308), -1e308))
    if dice.random() < 0.05:
        rows += dice.sample(rows, 2)
    for _ in range(dice.choice([0, 0, 0, 1, 3])):
        inner = dice.choice([manifest, manifest["study"]])
        if isinstance(inner, dict):
            inner[dice.choice([*inner, dice.choice(WORDS)])] = value(dice)
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    if dice.random() < 0.05:
        table = table.drop_columns([dice.choice(table.column_names)])
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    for name in ("rows", "traces"):
        (path / name).mkdir(parents=True)
    broken(dice, path / "rows" / "part.parquet", sink.getvalue().to_pybytes(), often=0.1)
    text = json.dumps(manifest, default=str)
    broken(dice, path / "manifest.json", text.encode("utf-8", "surrogatepass"), often=0.1)
    if dice.random() < 0.5:
        clean, hurt = (next((r for r in rows if (r["objective"] == "clean") == c), rows[0]) for c in (True, False))
        for i, row in enumerate((clean, dice.choice([hurt, dict(hurt, **{dice.choice(list(hurt)): value(dice)})]))):
            frames = np.zeros((8, 16, 16, 3), np.uint8)
            arrays = {"frames": frames, "seen": frames, "reward": np.ones(8), "attacked": np.ones(8, bool)}
            if dice.random() < 0.3:
                arrays[dice.choice(list(arrays))] = np.full(dice.choice([0, 3, 8]), dice.choice([0.0, np.nan, np.inf]))
            buffer = io.BytesIO()
            np.savez_compressed(buffer, allow_pickle=False, **arrays, meta=np.array(json.dumps(row, default=str)))
            broken(dice, path / "traces" / f"{i}.npz", buffer.getvalue(), often=0.2)


def attempt(kind: str, seed: int, place: Path) -> tuple[str, str]:
    """Make one case and play it; return how it ended (done, refused, crashed, hung), and what was said."""
    dice, path = random.Random(f"{kind} {seed}"), place / f"{kind}{seed}"
    said = io.StringIO()

    def ring(*_: Any) -> None:
        raise TimeoutError(f"still running after {LIMIT} s")

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("error")
            if kind == "study":
                study_file(dice, path.with_suffix(".toml"))
                command = ["run", str(path.with_suffix(".toml")), "--out", str(path)]
            else:
                folder(dice, path)
                command = ["report", str(path)]
            code = play(command)
    except TimeoutError as error:
        return "hung", str(error)
    except BaseException:
        return "crashed", traceback.format_exc()
    finally:
        signal.alarm(0)
    text = said.getvalue()
    if code not in (0, 1, 2) or "Traceback" in text or (code == 2 and len(text.strip().splitlines()) != 1):
        return "crashed", f"exit code {code}: {text}"
    return ("refused" if code == 2 else "done"), text


def play(command: list[str]) -> int:
    """Run the command line in this process, up to where a sound study would be played; return its exit code."""
    from wmjax import cli
    from wmjax.study import run

    stop = mock.Mock(side_effect=SystemExit(0))
    with mock.patch.object(sys, "argv", ["wmjax", *command]), mock.patch.object(run, "_Work", stop):
        try:
            cli.main()
        except SystemExit as leaving:
            return int(leaving.code or 0)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # of this process, not of the command line
    return 0


def opened(pages: list[Path]) -> list[str]:
    """Open pages in a headless browser; return what any of them did that a report must not do."""
    from playwright.sync_api import sync_playwright

    found: list[str] = []
    with sync_playwright() as play_right:
        browser = play_right.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for file in pages:
            page = browser.new_page()
            blame = partial(_blame, found, file)
            for event in ("dialog", "console", "pageerror", "request"):
                page.on(event, partial(blame, event))  # type: ignore[call-overload]
            page.goto(file.as_uri())
            page.close()
        browser.close()
    return found


def _blame(found: list[str], file: Path, event: str, what: Any) -> None:
    if event != "request":
        found.append(f"{file}: {event}: {what}")
    elif not what.url.startswith(("file:", "data:")):
        found.append(f"{file}: asked for {what.url}")


def main() -> None:
    """Make the cases, play them, count how they end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    runtime.print_anything()
    place, start = Path(tempfile.mkdtemp()), time.perf_counter()
    half = options.cases // 2
    cases = [(kind, options.seed + i, place) for kind in ("study", "rows") for i in range(half)]
    with get_context("spawn").Pool(2, maxtasksperchild=100) as pool:
        ended = pool.starmap(attempt, cases, chunksize=5)
    counts = Counter(f"{kind}: {how}" for (kind, *_), (how, _) in zip(cases, ended, strict=True))
    for (kind, seed, _), (how, text) in zip(cases, ended, strict=True):
        if how in ("crashed", "hung"):
            print(f"--- {kind} {seed} {how}\n{text}")
    pages = sorted(place.glob("*/report/report.html")) if Path(CHROMIUM).exists() else []
    misdeeds = opened(pages) if pages else []
    print(*misdeeds, sep="\n")
    figures = dict(sorted(counts.items())) | {"pages opened": len(pages), "misdeeds": len(misdeeds)}
    figures["seconds"] = round(time.perf_counter() - start)
    print(*(f"{name:>20} {count}" for name, count in figures.items()), sep="\n")
    if options.json:
        options.json.write_text(json.dumps(figures), encoding="utf-8")
    shutil.rmtree(place)
    sys.exit(any(how in ("crashed", "hung") for how, _ in ended) or bool(misdeeds))


if __name__ == "__main__":
    main()
