"""Who may speak to the server: this machine's own pages only, by its own name, in small JSON.

Binding to 127.0.0.1 keeps other machines out, but not the pages of others in this machine's browser: those of a name
that points here (DNS rebinding) are told by Host, their POSTs by Origin.
"""

from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY = 1 << 14
"""Bytes of a request's body, at most."""

_POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Gate:
    """An ASGI application before another one, which it lets nothing through to that is not a page of its own."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = tuple(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or say why not."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_POLICY)
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is not None:
            status, text = refusal
            await PlainTextResponse(text, status)(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)

    def _refusal(self, method: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if host not in self._hosts:
            return 421, "This server answers to 127.0.0.1 only."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "Only this server's own page may ask."
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return 405, "GET and POST only."
        if headers.get("origin") != f"http://{host}":
            return 403, "Only this server's own page may ask."
        if headers.get("content-type", "").split(";")[0].strip() != "application/json":
            return 415, "JSON only."
        length = headers.get("content-length", "")
        if not length.isdecimal():
            return 411, "The length of the body must be told."
        if int(length) > BODY:
            return 413, f"At most {BODY} bytes."
        return None
