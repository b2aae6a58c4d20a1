"""The local web server: what each address answers. Nothing from the browser is ever part of a path: only ids."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from wmjax.core.errors import InputError
from wmjax.report.markdown import plain
from wmjax.view.launch import Busy, Launcher
from wmjax.view.request_guard import Gate
from wmjax.view.results import Results
from wmjax.view.trace_api import numbers, picture

_STATIC = Path(__file__).parent / "static"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PORT = 8000
_STUDY = "study"  # id of the folder itself, beside those of the launched episodes in it


def serve(folder: Path, port: int | None = None, ready: Callable[[str], None] = print) -> None:
    """Serve `folder` on 127.0.0.1 until interrupted; `ready` is given the address.

    `port` is 8000 if not given, or where that is taken a free one. Raises InputError where the folder holds no rows, or
    the port is not to be had, and KeyboardInterrupt at its end.
    """
    library = Library(folder)
    listening = _listen(port)
    port = listening.getsockname()[1]
    app = application(library, port, lambda: server.should_exit)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, proxy_headers=False, lifespan="off", ws="none",
        limit_concurrency=64, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    ready(f"http://127.0.0.1:{port}/")
    server.run(sockets=[listening])


class Library:
    """The results folder, and those of the episodes launched from here, by id."""

    def __init__(self, folder: Path) -> None:
        """Open `folder`; raises InputError where it holds no rows. Launched episodes that do not open are left out."""
        self._folders = {_STUDY: folder}
        self._opened = {_STUDY: Results(folder)}
        for launched in sorted((folder / "view").glob("*/manifest.json"), key=lambda file: file.stat().st_mtime):
            try:
                self._add(launched.parent)
            except InputError:  # unfinished, or of another version: launching it again says so
                continue
        names = self._opened[_STUDY].manifest.study.get("victims", ())
        self.launcher = Launcher(folder / "view", {plain(Path(name).stem): name for name in names}, self._add)

    def list(self) -> list[dict[str, str]]:
        """Return id and name of what can be looked at, the study first, then the latest launched."""
        first, *launched = self._opened.items()
        names = {_STUDY: f"study {first[1].name}"} | {id: results.title() for id, results in reversed(launched)}
        return [{"id": id, "name": name} for id, name in names.items()]

    def open(self, id: str) -> Results | None:
        """Return results as they are on disk now; None for an unknown id, InputError where they are not readable."""
        if id in self._folders:
            self._opened[id] = Results(self._folders[id])
        return self.get(id)

    def get(self, id: str) -> Results | None:
        """Return results as they were when last opened; None for an unknown id."""
        return self._opened.get(id)

    def _add(self, folder: Path) -> str:
        results = Results(folder)
        self._opened.pop(folder.name, None)  # the latest is the last
        self._folders[folder.name], self._opened[folder.name] = folder, results
        return folder.name


def application(library: Library, port: int, ending: Callable[[], bool] = lambda: False) -> Gate:
    """Return the ASGI application that serves `library` at 127.0.0.1:`port`; when `ending`, open answers end."""
    files = {f"/{file.name}": file for file in _STATIC.iterdir() if file.suffix in _KINDS}
    launcher = library.launcher

    def static(request: Request) -> Response:
        file = files["/index.html" if request.url.path == "/" else request.url.path]
        return Response(file.read_bytes(), media_type=_KINDS[file.suffix])

    def listing(request: Request) -> Response:
        return JSONResponse(library.list())

    def overview(request: Request) -> Response:
        results = library.open(request.path_params["results"])
        return _missing() if results is None else JSONResponse(results.overview())

    def cell(request: Request) -> Response:
        results = library.get(request.path_params["results"])
        found = results and results.cell(request.path_params["cell"])
        return JSONResponse(found) if found else _missing()

    def trace(request: Request) -> Response:
        results = library.get(request.path_params["results"])
        file = results and results.traces.get(request.path_params["trace"])
        if not file:
            return _missing()
        match request.path_params.get("what"):
            case None:
                return JSONResponse(numbers(file))
            case "frames" | "seen" as what:
                return Response(picture(file, what), media_type="image/png")
        return _missing()

    def vocabulary(request: Request) -> Response:
        return JSONResponse(launcher.vocabulary())

    async def launch(request: Request) -> Response:
        try:
            form = json.loads(await request.body())
        except (ValueError, RecursionError):
            return _wrong("not JSON")
        if not isinstance(form, dict):
            return _wrong("not a form")
        try:
            await run_in_threadpool(launcher.start, form)
        except Busy:
            return _wrong("an episode is being played; stop it, or wait for it", 409)
        return JSONResponse(asdict(launcher.state), 202)

    def stop(request: Request) -> Response:
        launcher.stop()
        return JSONResponse(asdict(launcher.state), 202)

    def progress(request: Request) -> Response:
        return StreamingResponse(_events(launcher, ending), media_type="text/event-stream")

    api = "/api/results/{results}"
    routes = [
        Route("/", static),
        *(Route(path, static) for path in files),
        Route("/api/results", listing),
        Route(api, overview),
        Route(f"{api}/cells/{{cell}}", cell),
        Route(f"{api}/traces/{{trace}}", trace),
        Route(f"{api}/traces/{{trace}}/{{what}}.png", trace),
        Route("/api/vocabulary", vocabulary),
        Route("/api/progress", progress),
        Route("/api/launch", launch, methods=["POST"]),
        Route("/api/stop", stop, methods=["POST"]),
    ]
    handlers: Any = {InputError: lambda request, error: _wrong(str(error))}
    return Gate(Starlette(routes=routes, exception_handlers=handlers), port)


async def _events(launcher: Launcher, ending: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield the launcher's state as server-sent events, whenever it changes, until the episode has ended."""
    told = None
    while told is None or (told.phase in ("running", "stopping") and not ending()):
        if launcher.state != told:
            told = launcher.state
            yield f"data: {json.dumps(asdict(told))}\n\n"
        await asyncio.sleep(0.1)


def _missing() -> Response:
    return JSONResponse({"error": "there is no such thing here; reload the page"}, 404)


def _wrong(message: str, status: int = 422) -> Response:
    return JSONResponse({"error": plain(message)}, status)


def _listen(port: int | None) -> socket.socket:
    """Return a socket that listens on 127.0.0.1 at `port`; None: at 8000, else at a free one."""
    if port is not None and not 1 <= port <= 65535:
        raise InputError(f"port is {port}; allowed: 1 to 65535")
    for attempt in (_PORT, 0) if port is None else (port,):
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", attempt))
            listening.listen()  # whoever reads the address may ask at once
        except OSError as error:
            listening.close()
            reason = error.strerror
        else:
            return listening
    raise InputError(f"port {port} cannot be used ({reason}); give another one")
