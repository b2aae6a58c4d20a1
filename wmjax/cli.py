"""The command line. Exit codes: 0 done, 1 finished with failures, 2 wrong input, 130 interrupted."""

import os
import signal
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from tyro.conf import FlagCreatePairsOff, OmitSubcommandPrefixes, Positional, UseAppendAction, arg

from wmjax import runtime
from wmjax.core.errors import InputError
from wmjax.core.text import printable

if TYPE_CHECKING:
    from wmjax.study.spec import Study

_console = Console()


@dataclass(frozen=True)
class Run:
    """Run a study, or what is left of it, and write its report."""

    study: Annotated[str, Positional, arg(metavar="STUDY")] = "quickstart"
    """A file (TOML, see README.md), or a shipped study: quickstart, arb4wm-main, arb4wm-temporal, arb4wm-defense,
    arb4wm-transfer."""
    changes: Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="'FIELD = VALUE'")] = ()
    """A field of the study and another value for it, as a line of its file; may be given several times."""
    out: Path | None = None
    """Results folder; runs/<name of the study> if not given."""
    batch: int | None = None
    """Episodes that share each compiled call; 4 on CPUs and 64 elsewhere, or fewer where memory is short, if not
    given."""
    shard: Annotated[str | None, arg(metavar="I/N")] = None
    """Play the I-th of N parts of about equal work, so that N machines share a study; see `wmjax merge`."""
    dry_run: Annotated[bool, FlagCreatePairsOff] = False
    """Only say what it will take: cells, programs, operations, time, memory and disk. Some frames are played to see
    how long they take; nothing is written to the results folder."""


@dataclass(frozen=True)
class Merge:
    """Join what several machines made of one study with `--shard`, and write its report."""

    folders: Annotated[tuple[Path, ...], Positional, arg(metavar="DIR ...")]
    """Results folders of `wmjax run`."""
    out: Path
    """Results folder for the whole; `wmjax run` goes on in it with what is missing."""


@dataclass(frozen=True)
class Report:
    """Write the report of a results folder: DIR/report/report.html; beside it Markdown, and tables as CSV and LaTeX."""

    folder: Annotated[Path, Positional, arg(metavar="DIR")]
    """Results folder of `wmjax run`."""


@dataclass(frozen=True)
class View:
    """Look into a results folder in the browser, and attack single episodes there; served to this machine only."""

    folder: Annotated[Path, Positional, arg(metavar="DIR")]
    """Results folder of `wmjax run`."""
    port: int | None = None
    """Of 127.0.0.1; 8000 if not given, or a free one where that is taken."""
    open: bool = False
    """Open the browser, too."""


@dataclass(frozen=True)
class Convert:
    """Convert a PyTorch checkpoint (latest.pt) of the R2-Dreamer code; reads .hydra/config.yaml beside it, or one
    folder up, if there."""

    checkpoint: Annotated[Path, Positional, arg(metavar="FILE")]
    """The checkpoint; it is read without running code in it."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """The weight file to write, ending in .safetensors."""
    stoch: int | None = None
    """Number of latent groups; tensors only show groups x classes."""
    agent: str | None = None
    """dreamer, r2dreamer, infonce or dreamerpro; r2dreamer and infonce look alike."""
    task: str | None = None
    """What it was trained on, such as dmc_walker_walk."""
    action_repeat: int | None = None
    """Environment steps an agent step."""
    drop: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="PREFIX")] = ()
    """Leave out the tensors whose name is PREFIX or begins with PREFIX and a dot, such as a module of a fork that the
    agent acts without; may be given several times."""
    ignore: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="ENTRY")] = ()
    """Read the configuration as if it had no ENTRY, such as model.actor.dropout; may be given several times."""


@dataclass(frozen=True)
class Train:
    """Train an agent from pixels on a task, on this machine's device; the same command goes on where it stopped."""

    task: str
    """The task, such as dmc_cartpole_balance."""
    agent: str = "r2dreamer"
    """dreamer, r2dreamer, infonce or dreamerpro: they differ in how they learn what is in an image."""
    size: str = "tiny"
    """tiny, 1m, 12m or 25m."""
    steps: int | None = None
    """Environment steps, those of the action repeat counted; the size's own number if not given."""
    seeds: tuple[int, ...] = (0,)
    """An agent is trained for each, all at once."""
    changes: Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="'FIELD = VALUE'")] = ()
    """A field of the recipe and another value for it, such as 'lr = 1e-4'; may be given several times."""
    out: Path | None = None
    """Folder of the run; runs/train/<task>_<agent>_<size> if not given."""


@dataclass(frozen=True)
class Export:
    """Write an agent as a PyTorch checkpoint (latest.pt) of the R2-Dreamer code, and .hydra/config.yaml beside it."""

    agent: Annotated[str, Positional, arg(metavar="AGENT")]
    """A weight file, or the name of a shipped agent."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """The checkpoint to write, ending in .pt; its folder is made where there is none."""


@dataclass(frozen=True)
class Zoo:
    """List the shipped agents, or show the card of one."""

    name: Annotated[str | None, Positional] = None
    """The agent whose card to show."""


@dataclass(frozen=True)
class Doctor:
    """Check this installation, and say how to mend what is wrong."""


Command = Run | Merge | Report | View | Train | Convert | Export | Zoo | Doctor


def main() -> None:
    """Run the command line and exit."""
    # A polite kill is an interruption too: workers are ended and finished rows kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runtime.print_anything()
    command = tyro.cli(
        Command, prog="wmjax", description="Measure how world-model agents break.", config=[OmitSubcommandPrefixes]
    )
    try:
        code = _execute(command)
    except InputError as error:
        print(f"wmjax: {printable(str(error))}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        goes_on = "; the same command goes on where this one stopped" if isinstance(command, Run | Train) else ""
        print(f"wmjax: interrupted{goes_on}", file=sys.stderr)
        for stream in (sys.__stdout__, sys.__stderr__):  # another thread may have put others in their place
            if stream is not None:
                stream.flush()
        os._exit(130)  # a device worker that is still inside of XLA, after a second Ctrl-C, would abort an orderly exit
    sys.exit(code)


def _execute(command: Command) -> int:
    runtime.use_all_cores()
    # What a command needs is imported here: `--help` and `doctor` must not depend on it.
    match command:
        case Run():
            runtime.use_compilation_cache()
            return _run(command)
        case Merge():
            return _merge(command)
        case Report():
            _report(command.folder)
        case View():
            _view(command)
        case Train():
            return _train(command)
        case Convert():
            _convert(command)
        case Export():
            from wmjax.agents.dreamer.export import export

            print(export(command.agent, command.out))
        case Zoo():
            _zoo(command.name)
        case Doctor():
            from wmjax import doctor

            return doctor.main()
    return 0


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold interrupts back until the end: one that comes while JAX is imported may be lost in a callback."""
    caught: list[int] = []
    before = {
        kind: signal.signal(kind, lambda number, _: caught.append(number)) for kind in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
    if caught:
        raise KeyboardInterrupt


def _run(command: Run) -> int:
    runtime.check_gl()
    with _undisturbed():
        from wmjax.study.run import Progress, run
        from wmjax.study.study_file import read_study

    study = read_study(command.study, command.changes)
    if command.dry_run:
        return _estimate(command, study)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    bar = Bar(*columns, console=_console)
    task = bar.add_task("agent steps", total=None)
    tenths = -1

    def show(progress: Progress) -> None:
        nonlocal tenths
        if _console.is_terminal:
            bar.start()  # now that nothing is wrong with the study
            bar.update(task, completed=progress.done, total=progress.total)
        elif 10 * progress.done // max(progress.total, 1) > tenths:  # a shard may be empty
            tenths = 10 * progress.done // max(progress.total, 1)
            percent = 100 * progress.done // max(progress.total, 1)
            print(f"{percent} % ({progress.done}/{progress.total} agent steps)", flush=True)
        if progress.message is not None:
            bar.console.print(printable(progress.message), style="red", markup=False)

    try:
        given = ["wmjax", *sys.argv[1:]]
        outcome = run(study, command.out, batch=command.batch, shard=command.shard, command=given, on_progress=show)
    finally:
        if bar.live.is_started:
            bar.stop()
    for note in outcome.notes:
        _console.print(f"Note: {note}", style="yellow", markup=False)
    for chunk, line in outcome.failed.items():
        print(f"wmjax: failed twice: {printable(line)} (see {outcome.folder}/errors/{chunk}.txt)", file=sys.stderr)
    if outcome.episodes:
        _report(outcome.folder)
    return 1 if outcome.failed else 0


def _estimate(command: Run, study: "Study") -> int:
    from wmjax.study.estimate import estimate
    from wmjax.study.run_plan import prepare

    job = prepare(study, command.out, batch=command.batch, shard=command.shard)
    with _console.status("trying out the programs"):
        found = estimate(job)
    table = Table(title=f"{study.name}: what it will take", box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in found.lines():
        table.add_row(name, text)
    _console.print(table, highlight=False)
    return 0


def _merge(command: Merge) -> int:
    from wmjax.study.merge import merge

    merged = merge(command.folders, command.out, command=["wmjax", *sys.argv[1:]])
    for line in merged.left_out:
        print(f"wmjax: left out: {printable(line)}", file=sys.stderr)
    counts = f"{merged.played} chunks played, {merged.failed} failed, {merged.missing} missing"
    print(f"{merged.folder}: {counts}", flush=True)
    if merged.played:
        _report(merged.folder)
    return 1 if merged.failed or merged.missing or merged.left_out else 0


def _report(folder: Path) -> None:
    from wmjax.report import report

    print(f"report: {report(folder)}")


def _view(command: View) -> None:
    runtime.check_gl()
    from wmjax.view import serve

    def ready(address: str) -> None:
        print(f"{command.folder}: {address} (Ctrl-C ends it)", flush=True)
        if command.open:
            webbrowser.open(address)

    serve(command.folder, command.port, ready)


def _train(command: Train) -> int:
    runtime.use_compilation_cache()
    with _undisturbed():
        from wmjax.train.export_run import finish
        from wmjax.train.job import prepare
        from wmjax.train.run import Progress, train

    options = {name: getattr(command, name) for name in ("seeds", "steps", "changes", "out")}
    job = prepare(command.task, command.agent, command.size, **options)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bar = Bar(*columns, console=_console)
    task = bar.add_task("first episodes", total=job.steps)
    tenths = -1

    def show(progress: Progress) -> None:
        nonlocal tenths
        if _console.is_terminal:
            bar.start()
            bar.update(task, completed=progress.steps, description=progress.line())
        elif 10 * progress.steps // progress.total > tenths:
            tenths = 10 * progress.steps // progress.total
            print(f"{progress.steps} of {progress.total} environment steps: {progress.line()}", flush=True)

    try:
        trained = train(job, on_progress=show)
    except FloatingPointError as error:
        print(f"wmjax: {error}; its last checkpoint is kept, try a lower lr", file=sys.stderr)
        return 1
    finally:
        if bar.live.is_started:
            bar.stop()
    with _console.status("playing clean episodes"):
        files = finish(trained)
    for file in files:
        print(f"agent: {file}")
    return 0


def _convert(command: Convert) -> None:
    from wmjax.agents.compatibility import unplayable
    from wmjax.agents.dreamer.convert import convert
    from wmjax.agents.weights import read_card

    options = asdict(command)
    path = convert(options.pop("checkpoint"), options.pop("out"), **options)
    print(path)
    for reason in unplayable(read_card(path)):
        print(f"note: {printable(reason)}", file=sys.stderr)


def _zoo(name: str | None) -> None:
    from wmjax.agents import zoo

    if name is not None:
        _console.print(Markdown(zoo.description(name)))
        return
    table = Table("agent", "family", "task", box=None)
    for shipped in zoo.names():
        card = zoo.card(shipped)
        table.add_row(shipped, card.victim.agent, card.task)
    _console.print(table)
