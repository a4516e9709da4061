"""The command `serve`: the runs' reports and TensorBoard in a browser, read-only, for those who hold the token."""

from __future__ import annotations

import hmac
import logging
import mimetypes
import os
import secrets
import socket
from contextlib import suppress
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from werkzeug.exceptions import BadRequest, MethodNotAllowed, NotFound, Unauthorized
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server, select_address_family
from werkzeug.utils import redirect, send_file
from werkzeug.wrappers import Request, Response

from training.commands.table import ServeArguments
from utils.errors import ConfigError
from utils.runs.console import LOG
from utils.runs.find import SUMMARY
from utils.runs.run_lock import is_held
from utils.runs.run_log import REPORT

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

logger = logging.getLogger(__name__)
SHOWN = (REPORT, SUMMARY, LOG, "*.png")
DEPTH = 2
"""Of folders: that of all runs, runs, and runs of a study or of the second experiment."""
TOKEN = "SERVE_TOKEN"
BOARD = "/tensorboard"
_PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}


def run_serve(arguments: ServeArguments) -> None:
    """Serve until Ctrl-C. Raises ConfigError for an address that cannot be bound, or a folder that is not there."""
    if not arguments.runs_dir.is_dir():
        raise ConfigError(f"expected a folder of runs as --runs-dir, got {str(arguments.runs_dir)!r}; name another")
    given = os.environ.get(TOKEN, "")
    token = given or secrets.token_urlsafe(24)
    app = serving(arguments.runs_dir, token, _tensorboard(arguments.runs_dir))
    server = open_server(app, arguments.host, arguments.port)
    query = "" if given else f"?token={token}"
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    logger.info("reports of %s on http://%s:%d/%s", arguments.runs_dir, host, server.port, query)
    server.serve_forever()


class _Handler(WSGIRequestHandler):
    timeout = 30.0  # of a connection that asks for nothing

    def log(self, type: str, message: str, *args: Any) -> None:
        """Log nothing: a request's line may hold the token."""


def open_server(app: WSGIApplication, host: str, port: int) -> BaseWSGIServer:
    """Bind a server to an address; port 0 takes a free one. Raises ConfigError where that is impossible."""
    try:
        # The server would end the program where it cannot bind.
        with socket.create_server((host, port), family=select_address_family(host, port)) as bound:
            return make_server(host, port, app, threaded=True, request_handler=_Handler, fd=bound.fileno())
    except OSError as error:
        raise ConfigError(
            f"expected a free address for --host and --port, got {host}:{port} ({error.strerror})"
        ) from None


def serving(runs_dir: Path, token: str, board: WSGIApplication) -> WSGIApplication:
    """Return the WSGI application, with TensorBoard's below `BOARD`.

    The token comes once in the address, which is answered by a cookie.
    """

    @Request.application
    def app(request: Request) -> Any:
        path, asked = request.path, request.args.get("token", "")
        if not path.isprintable():
            raise BadRequest("Expected a path without control characters.")
        carried = (asked, request.cookies.get("token", ""))
        if not any(hmac.compare_digest(token.encode(), one.encode("utf-8", "replace")) for one in carried):
            raise Unauthorized("Expected the token: open the address that serve showed.")
        is_board = f"{path}/".startswith(f"{BOARD}/")
        # TensorBoard's pages also ask by POST for what they show.
        if request.method not in ("GET", "HEAD") and not (is_board and request.method == "POST"):
            raise MethodNotAllowed(["GET", "HEAD"])
        if asked:
            response = redirect(path)
            response.set_cookie("token", token, httponly=True, samesite="Lax")
            return response
        if is_board:
            return board
        files = shown_files(runs_dir)
        if path == "/":
            return Response(_index(runs_dir, files), mimetype="text/html", headers=_PRIVATE)
        if (file := files.get(path[1:])) is None:
            raise NotFound()
        kind = "text/plain" if file.name == LOG else mimetypes.guess_type(file.name)[0]
        try:
            response = send_file(file, request.environ, kind)
        except OSError:  # it was removed meanwhile, or may not be read
            raise NotFound() from None
        response.headers.update(_PRIVATE)
        return response

    return app


def shown_files(runs_dir: Path) -> dict[str, Path]:
    """Return what is served by its path below the folder of runs; nothing else can be asked for.

    A link that leads out of the folder is left out, and a name that is no text.
    """
    root, files = runs_dir.resolve(), dict[str, Path]()
    for folder, folders, names in os.walk(root, followlinks=True):  # which passes over what is removed meanwhile
        place = Path(folder).relative_to(root)
        if len(place.parts) == DEPTH:
            folders.clear()
        paths = [root / place / name for name in names if any(fnmatchcase(name, shown) for shown in SHOWN)]
        files |= {(place / path.name).as_posix(): path for path in paths if path.resolve().is_relative_to(root)}
    return {name: path for name, path in files.items() if path.is_file() and name.isprintable()}


def _index(runs_dir: Path, files: dict[str, Path]) -> str:
    """Return the page of links, with the runs written last first, and what each is doing."""
    from training.evaluation.pages import document  # imported late: it loads the libraries of pages

    rows = []
    for folder in {path.parent for path in files.values()}:
        here = {name: path for name, path in sorted(files.items()) if path.parent == folder}
        written = max(_written(path) for path in here.values())
        is_ended = (folder / REPORT).is_file()
        rows.append(
            {
                "name": next(iter(here)).rpartition("/")[0] or "all runs",
                "state": "running" if is_held(folder) else "ended" if is_ended else "stopped",
                "written": datetime.fromtimestamp(written, UTC).strftime("%Y-%m-%d %H:%M"),
                "files": [(name, path.name) for name, path in here.items()],
            }
        )
    rows.sort(key=lambda row: str(row["written"]), reverse=True)
    return document("serve.html", f"Runs in {runs_dir}", folder=Path(__file__).parent, folders=rows, board=BOARD)


def _written(path: Path) -> float:
    """Return when a file was written, in seconds since 1970; 0 where it was removed meanwhile."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _tensorboard(runs_dir: Path) -> WSGIApplication:
    from tensorboard import program  # type: ignore[import-untyped]

    apps: list[WSGIApplication] = []

    def keep(app: WSGIApplication, _: object) -> SimpleNamespace:
        """Take the application instead of serving it on a port without a token."""
        apps.append(app)
        return SimpleNamespace(serve_forever=lambda: None, get_url=lambda: BOARD)

    logging.getLogger("tensorboard").setLevel(logging.WARNING)
    board = program.TensorBoard(server_class=keep)
    board.configure(argv=["serve", "--logdir", str(runs_dir), "--path_prefix", BOARD, "--load_fast", "false"])
    board.launch()
    return apps[0]
