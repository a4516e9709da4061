"""Reports over HTTP: only for holders of the token, only to read, and nothing but what is meant to be shown."""

import contextlib
import http.client
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest
from werkzeug.http import dump_cookie
from werkzeug.serving import BaseWSGIServer

from main import main
from training.commands import serve
from training.commands.serve import open_server, serving, shown_files
from utils.errors import ConfigError

TOKEN = "a token/with+signs"
CARRIED = {"Cookie": dump_cookie("token", TOKEN)}
Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of every depth, with files that are shown and others that are not."""
    folder = tmp_path_factory.mktemp("served") / "runs"
    secret = folder.parent / "secret.png"
    secret.write_text("secret")
    for run in ("one", "walk/fold-1", "fuel-breaks/two", "ü b<c>"):
        path = folder / run
        (path / "checkpoints" / "generation-000001").mkdir(parents=True)
        (path / "checkpoints" / "generation-000001" / "manifest.json").write_text("secret")
        (path / "config.json").write_text("secret")
        (path / "report.html").write_text(f"<p>report of {run}")
        (path / "run.log").write_text("a line\n")
        (path / "summary.json").write_text("{}")
        (path / "fitness.png").write_bytes(b"\x89PNG")
    (folder / "one" / "leak.png").symlink_to(secret)
    return folder


@contextlib.contextmanager
def served(runs: Path, board: Any = None) -> Iterator[int]:
    server = open_server(serving(runs, TOKEN, board), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.port
    finally:
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "path", ["/%00", "/one/%0a", "/tensorboard/%0d%0aSet-Cookie:x", "/%1b%5b2J", "/one/report.html%00.png"]
)
def test_control_characters_in_a_path_are_a_bad_request(port: int, path: str) -> None:
    for query, headers in (("", CARRIED), (f"?token={quote(TOKEN)}", {}), ("", {})):
        assert ask(port, path + query, headers)[0] == 400


@pytest.fixture(scope="module")
def port(runs: Path) -> Iterator[int]:
    with served(runs) as port:
        yield port


def ask(port: int, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Answer:
    """Send a request exactly as given; http.client changes no path."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=250)) as connection:
        connection.request(method, path, headers=CARRIED if headers is None else headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


@pytest.mark.parametrize("headers", [{}, {"Cookie": "token=%FF%00"}, {"Cookie": f"other={TOKEN}"}])
@pytest.mark.parametrize("path", ["/", "/one/report.html", "/?token=", "/?token=wrong", "/absent", "/tensorboard/"])
def test_without_the_token_nothing_is_told(port: int, path: str, headers: dict[str, str]) -> None:
    status, _, body = ask(port, path, headers)
    assert status == 401 and b"report of" not in body and b"fold-1" not in body


def test_a_browser_opens_the_address_once_and_keeps_a_cookie(port: int) -> None:
    status, headers, _ = ask(port, "/one/report.html?token=a+token%2Fwith%2Bsigns", {})
    assert status == 302 and headers["Location"] == "/one/report.html"
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite" in cookie
    status, headers, body = ask(port, headers["Location"], {"Cookie": f"x=1; {cookie.partition(';')[0]}"})
    assert (status, body) == (200, b"<p>report of one") and headers["Content-Type"].startswith("text/html")
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
    # A redirect stays here.
    assert ask(port, "//elsewhere/?token=a+token%2Fwith%2Bsigns", {})[1]["Location"] == "/elsewhere/"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/one/summary.json", "application/json"),
        ("/one/run.log", "text/plain"),
        ("/walk/fold-1/report.html", "text/html"),
        ("/%C3%BC%20b%3Cc%3E/report.html", "text/html"),
    ],
)
def test_files_of_runs_are_shown_and_head_has_no_content(port: int, path: str, kind: str) -> None:
    status, headers, body = ask(port, path)
    assert status == 200 and body and headers["Content-Type"].startswith(kind)
    assert int(headers["Content-Length"]) == len(body)
    status, told, nothing = ask(port, path, method="HEAD")
    assert status == 200 and nothing == b"" and told["Content-Length"] == headers["Content-Length"]


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.png", "/one/%2e%2e/%2e%2e/secret.png", "/one%2f..%2f..%2fsecret.png", "/..%5csecret.png",
        "//etc/passwd", "/one//report.html", "/one/leak.png", "/one/config.json",
        "/one/checkpoints/generation-000001/manifest.json", "/one/",
    ],
)  # fmt: skip
def test_nothing_else_is_there(port: int, path: str) -> None:
    status, _, body = ask(port, path)
    assert status == 404 and b"secret" not in body


def test_a_part_of_a_long_log_is_sent_alone(port: int) -> None:
    status, headers, body = ask(port, "/one/run.log", CARRIED | {"Range": "bytes=2-5"})
    assert (status, body, headers["Content-Range"]) == (206, b"line", "bytes 2-5/7")


def test_runs_that_are_removed_meanwhile_are_passed_over(tmp_path: Path) -> None:
    """While the index is made, and between that and their file."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "run.log").write_text("a line\n")
    files, known = shown_files(tmp_path), threading.Event()

    def churn() -> None:
        while not known.is_set():
            (tmp_path / "two" / "three").mkdir(parents=True)
            (tmp_path / "two" / "three" / "run.log").write_text("x")
            shutil.rmtree(tmp_path / "two")

    thread = threading.Thread(target=churn)
    with served(tmp_path) as port:
        thread.start()
        assert {ask(port, "/")[0] for _ in range(30)} == {200}
        known.set()
        thread.join()
    shutil.rmtree(tmp_path / "one")
    with mock.patch.object(serve, "shown_files", lambda _: files), served(tmp_path) as port:
        assert ask(port, "/one/run.log")[0] == 404 and ask(port, "/")[0] == 200


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6")
def test_addresses_of_ipv6_are_served(runs: Path) -> None:
    try:
        server = open_server(serving(runs, TOKEN, None), "::1", 0)  # type: ignore[arg-type]
    except ConfigError:
        pytest.skip("this machine has no address ::1")
    assert server.port > 0
    server.server_close()


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_it_only_reads(runs: Path, port: int, method: str) -> None:
    before = sorted(runs.rglob("*"))
    status, headers, _ = ask(port, "/one/report.html", method=method)
    assert status == 405 and headers["Allow"] == "GET, HEAD" and sorted(runs.rglob("*")) == before


def test_the_index_names_what_is_shown(runs: Path, port: int) -> None:
    page = ask(port, "/")[2].decode()
    assert page.count("<a href=") == len(shown_files(runs)) + 1 == 4 * 4 + 1
    assert 'href="/%C3%BC%20b%3Cc%3E/report.html"' in page and "<c>" not in page


@pytest.mark.parametrize(
    ("report", "heartbeat", "state"), [(True, 10, "running"), (True, 1000, "ended"), (False, 1000, "stopped")]
)
def test_the_index_says_whether_a_run_is_under_way(tmp_path: Path, report: bool, heartbeat: float, state: str) -> None:
    """By its report, and by its lock, which was renewed some seconds ago."""
    for name in ("run.log", "lock", *(["report.html"] if report else [])):
        (tmp_path / name).write_text("{}")
    os.utime(tmp_path / "lock", times=(time.time() - heartbeat,) * 2)
    with served(tmp_path) as port:
        page = ask(port, "/")[2].decode()
    assert f'<td class="num">{state}</td>' in page and "<style>" in page


def test_a_connection_that_asks_for_nothing_ends_without_a_word(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve._Handler, "timeout", 0.05)
    with served(runs) as port, socket.create_connection(("127.0.0.1", port), 250) as silent:
        assert silent.recv(1) == b""
    assert capsys.readouterr() == ("", "")


def test_tensorboard_reads_the_runs_behind_the_same_token(runs: Path) -> None:
    board = serve._tensorboard(runs)
    with served(runs, board) as port:
        assert ask(port, "/tensorboard/data/environment", {})[0] == 401
        assert ask(port, "/tensorboard/")[0] == 200 and b'href="/tensorboard/"' in ask(port, "/")[2]
        status, _, body = ask(port, "/tensorboard/data/environment")
        assert status == 200 and json.loads(body)["data_location"] == str(runs)
        assert ask(port, "/tensorboard/../../secret.png")[0] != 200


def test_a_port_that_is_taken_is_told_in_one_line(
    port: int, runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_tensorboard", lambda _: None)
    assert main(["serve", "--runs-dir", str(runs), "--port", str(port)]) == 2
    shown = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in shown and "Traceback" not in shown


@pytest.mark.parametrize("given", ["", "chosen"])
def test_it_listens_here_only_and_shows_a_token_of_its_own(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    bound: list[object] = []

    def once(server: BaseWSGIServer) -> None:
        bound.append(server.server_address[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "_tensorboard", lambda _: None)
    monkeypatch.setattr("werkzeug.serving.ThreadedWSGIServer.serve_forever", once)
    monkeypatch.setenv(serve.TOKEN, given)
    assert main(["serve", "--runs-dir", str(runs), "--port", "0"]) == 130
    shown = capsys.readouterr().out
    assert bound == ["127.0.0.1"] and ("?token=" in shown) == (not given) and "chosen" not in shown
