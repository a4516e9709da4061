"""The command `serve`: the runs' reports and TensorBoard in a browser, read-only, for those who hold the token."""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import mimetypes
import os
import secrets
import socketserver
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, quote, unquote
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from training.commands.table import ServeArguments
from utils.errors import ConfigError, ProgramError
from utils.runs.console import LOG
from utils.runs.run_lock import is_held
from utils.runs.run_log import CONFIG, REPORT, SUMMARY, RunLog

logger = logging.getLogger(__name__)
_HERE = Path(__file__).parent
SWEEP = "sweep.html"
SHOWN = (REPORT, SWEEP, SUMMARY, LOG, "*.png")
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

    def handle(self) -> None:
        """Answer a request; one that does not come, or whose sender is gone, ends the connection without a word."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            super().handle()

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
        # WSGI hands over bytes as Latin-1; names of files are bytes, too.
        path = os.fsdecode(environ.get("PATH_INFO", "/").encode("latin-1"))
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
            return _plain(respond, "302 Found", "", [("Location", quote(os.fsencode(path))), ("Set-Cookie", cookie)])
        if board is not None and is_board:
            return board(environ, respond)
        found = shown_files(runs_dir)
        if path == "/":
            return _sent(environ, respond, "text/html", _index(runs_dir, found, board is not None).encode())
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


def _index(runs_dir: Path, found: Mapping[str, Path], has_board: bool) -> str:
    """Return the page of links, with the runs written last first."""
    from training.evaluation.page.document import document  # imported late: it loads the libraries of pages

    folders: dict[Path, list[str]] = {}
    for name in found:
        folders.setdefault(found[name].parent, []).append(name)
    rows = []
    for folder, names in folders.items():
        state, generation = _state(folder)
        written = max(found[name].stat().st_mtime for name in names)
        # Names are bytes, which need not be UTF-8.
        label = os.fsencode(names[0]).decode("utf-8", "replace").rpartition("/")[0] or "all runs"
        files = [(quote(os.fsencode(name)), found[name].name) for name in sorted(names)]
        when = datetime.fromtimestamp(written, UTC).strftime("%Y-%m-%d %H:%M")
        rows.append({"name": label, "state": state, "generation": generation, "written": when, "files": files})
    rows.sort(key=lambda row: str(row["written"]), reverse=True)
    title = f"Runs in {os.fsencode(runs_dir).decode('utf-8', 'replace')}"
    return document("serve.html", title, folder=_HERE, folders=rows, board=BOARD, has_board=has_board)


def _state(folder: Path) -> tuple[str, int]:
    """Return whether a run or study is running, has ended or was stopped, and the last generation of a run.

    Nothing for another folder.
    """
    if not (folder / LOG).is_file():
        return "", 0
    generation, ended = 0, (folder / REPORT).is_file() or (folder / SWEEP).is_file()
    if (folder / CONFIG).is_file():
        with contextlib.suppress(ProgramError, OSError, ValueError, LookupError, TypeError):
            generation = int(RunLog(folder).records()[-1]["generation"])
            ended = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["generations"] >= generation
    return "running" if is_held(folder) else "ended" if ended else "stopped", generation


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
