"""The command `serve`: the runs' reports and TensorBoard in a browser, read-only, for those who hold the token."""

from __future__ import annotations

import hmac
import logging
import mimetypes
import os
import secrets
import socketserver
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, quote, unquote
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from markupsafe import Markup

from training.commands.arguments import ServeArguments
from utils.errors import ConfigError
from utils.runs.console import LOG
from utils.runs.run_log import REPORT, SUMMARY

logger = logging.getLogger(__name__)
SHOWN = (REPORT, SUMMARY, LOG, "*.png")
DEPTHS = ("", "*/", "*/*/")
"""The folder of all runs, runs, and runs of a study or of the second experiment."""
TOKEN = "SERVE_TOKEN"
BOARD = "/tensorboard"
_COOKIE = "token"
_PRIVATE = [("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"), ("X-Content-Type-Options", "nosniff")]
Respond = Callable[[str, list[tuple[str, str]]], Any]
App = Callable[[dict[str, Any], Respond], Iterable[bytes]]


def run_serve(arguments: ServeArguments) -> None:
    """Serve until Ctrl-C. Raises ConfigError for an address that cannot be bound."""
    given = os.environ.get(TOKEN, "")
    token = given or secrets.token_urlsafe(24)
    app = serving(arguments.runs_dir, token, _tensorboard(arguments.runs_dir))
    with open_server(app, arguments.host, arguments.port) as server:
        query = "" if given else f"?token={token}"
        logger.info("reports of %s on http://%s:%d/%s", arguments.runs_dir, arguments.host, server.server_port, query)
        server.serve_forever()


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = 30.0  # of a connection that asks for nothing

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a request's line may hold the token."""


def open_server(app: App, host: str, port: int) -> WSGIServer:
    """Bind a server to an address; port 0 takes a free one. Raises ConfigError where that is impossible."""
    try:
        return make_server(host, port, app, _Server, _Handler)
    except OSError as error:
        raise ConfigError(
            f"expected a free address for --host and --port, got {host}:{port} ({error.strerror})"
        ) from None


def serving(runs_dir: Path, token: str, board: App | None = None) -> App:
    """Return the WSGI application, with TensorBoard's below `BOARD`.

    The token comes once in the address, which is answered by a cookie, or with each request as a bearer.
    """

    def app(environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        # WSGI hands over bytes as Latin-1.
        path = environ.get("PATH_INFO", "/").encode("latin-1").decode("utf-8", "replace")
        method = environ["REQUEST_METHOD"]
        asked = parse_qs(environ.get("QUERY_STRING", "")).get("token", [""])[0]
        if not any(_equal(token, one) for one in (asked, _carried(environ))):
            return _plain(respond, "401 Unauthorized", "expected the token: open the address that serve showed")
        is_board = board is not None and (path == BOARD or path.startswith(f"{BOARD}/"))
        # TensorBoard's pages also ask by POST for what they show.
        if method not in ("GET", "HEAD") and not (is_board and method == "POST"):
            return _plain(respond, "405 Method Not Allowed", "read-only", [("Allow", "GET, HEAD")])
        if asked:
            cookie = f"{_COOKIE}={quote(token)}; Path=/; HttpOnly; SameSite=Lax"
            return _plain(respond, "302 Found", "", [("Location", quote(path)), ("Set-Cookie", cookie)])
        if board is not None and is_board:
            return board(environ, respond)
        found = shown_files(runs_dir)
        if path == "/":
            return _sent(environ, respond, "text/html", _index(found, board is not None).encode())
        if (file := found.get(path[1:])) is None:
            return _plain(respond, "404 Not Found", "no such file")
        kind = "text/plain" if file.name == LOG else mimetypes.guess_type(file.name)[0] or "text/plain"
        return _sent(environ, respond, kind, file.read_bytes())

    return app


def shown_files(runs_dir: Path) -> dict[str, Path]:
    """Return what is served by its path below the folder of runs; nothing else can be asked for.

    A link that leads out of the folder is left out.
    """
    root = runs_dir.resolve()
    paths = [path for depth in DEPTHS for name in SHOWN for path in root.glob(depth + name)]
    return {
        path.relative_to(root).as_posix(): path
        for path in paths
        if path.is_file() and path.resolve().is_relative_to(root)
    }


def _equal(token: str, given: str) -> bool:
    return hmac.compare_digest(token.encode(), given.encode("utf-8", "replace"))


def _carried(environ: Mapping[str, Any]) -> str:
    """Return the token that a request brings as a bearer or a cookie."""
    kind, _, bearer = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    if kind.lower() == "bearer":
        return str(bearer)
    pairs = (pair.strip().partition("=") for pair in environ.get("HTTP_COOKIE", "").split(";"))
    return next((unquote(value) for name, _, value in pairs if name == _COOKIE), "")


def _plain(respond: Respond, status: str, text: str, headers: Iterable[tuple[str, str]] = ()) -> list[bytes]:
    respond(status, [("Content-Type", "text/plain; charset=utf-8"), *_PRIVATE, *headers])
    return [f"{text}\n".encode()]


def _sent(environ: Mapping[str, Any], respond: Respond, kind: str, content: bytes) -> list[bytes]:
    """Send a page or a file; without its content in answer to HEAD."""
    text = "; charset=utf-8" if kind.startswith("text/") else ""
    respond("200 OK", [("Content-Type", kind + text), ("Content-Length", str(len(content))), *_PRIVATE])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [content]


def _index(found: Mapping[str, Path], has_board: bool) -> str:
    """Return the page of links, with the runs written last first."""
    folders: dict[str, list[str]] = {}
    for name in sorted(found, key=lambda name: found[name].stat().st_mtime, reverse=True):
        folders.setdefault(name.rpartition("/")[0], []).append(name)
    link = Markup('<a href="/{}">{}</a>')
    lines = [link.format(f"{BOARD[1:]}/", "TensorBoard")] if has_board else []
    for folder, names in folders.items():
        links = (link.format(quote(name), name.rpartition("/")[2]) for name in sorted(names))
        lines.append(Markup("{}: {}").format(folder or "all runs", Markup(" ").join(links)))
    return Markup('<!doctype html><meta charset="utf-8"><title>Runs</title><p>{}').format(Markup("\n<p>").join(lines))


def _tensorboard(runs_dir: Path) -> App | None:
    """Return TensorBoard's application on the runs' events; None where it is not installed."""
    try:
        from tensorboard import program  # type: ignore[import-untyped]
    except ImportError:
        logger.info("TensorBoard is not installed: reports only")
        return None
    found: list[App] = []

    def keep(app: App, _: object) -> SimpleNamespace:
        """Take the application instead of serving it on a port without a token."""
        found.append(app)
        return SimpleNamespace(serve_forever=lambda: None, get_url=lambda: BOARD)

    logging.getLogger("tensorboard").setLevel(logging.WARNING)
    board = program.TensorBoard(server_class=keep)
    board.configure(argv=["serve", "--logdir", str(runs_dir), "--path_prefix", BOARD, "--load_fast", "false"])
    board.launch()
    return found[0]
