"""The interactive view: who may ask, what it answers, and its page in a browser, with an episode launched there."""

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvicorn

from wmjax.core.errors import InputError
from wmjax.report import traces
from wmjax.study.schema import SCHEMA, SCHEMA_VERSION
from wmjax.view.launch import State
from wmjax.view.request_guard import BODY
from wmjax.view.results import Results
from wmjax.view.server import Library, _events, application, serve
from wmjax.view.trace_api import numbers

AGENT = "dmc_cartpole_balance_r2dreamer_1m"
TASK = "dmc_cartpole_balance"
EVIL = "<img src=x onerror=alert(1)>"
CHROMIUM = Path("/usr/bin/chromium")
T, SIZE = 12, 16
DEFAULTS = {"string": "none", "int32": 1, "int64": 1, "double": 0.0, "float": 0.5, "bool": False}
FORM = {
    "victim": AGENT, "task": TASK, "objective": "vsa", "optimizer": "pgd", "steps": 2, "budget": "8/255",
    "mode": "full", "defense": "none", "adaptive": False, "noise": "fresh", "seed": 20, "length": 8,
    "region": "all", "frames": "float", "draws": 1, "source": "self",
}  # fmt: skip


def make_row(objective="clean", eps=0.0, seed=20, **values):
    row = {field.name: DEFAULTS[str(field.type)] for field in SCHEMA}
    row |= {"victim": AGENT, "agent": "r2dreamer", "task": TASK, "objective": objective, "eps": eps, "seed": seed}
    row |= {"return": 20.0 - 100 * eps - seed / 10, "max_return": 24.0, "length": T, "schema": SCHEMA_VERSION}
    row |= {"steps": 0, "draws": 0, "error": "", "loss_error": 0.0, "saturated": 0.0, "zero_grad": 0.0, "flip": 0.25}
    row |= {"loss_first": 0.1, "loss_last": 0.5, "restart_gap": float("nan"), "max_delta": eps}
    if objective != "clean":
        row |= {"mode": "full", "region": "all", "frames": "float"}
    if objective not in ("clean", "random"):
        row |= {"optimizer": "pgd", "steps": 10, "draws": 1, "noise": "fresh", "source": "self"}
    return row | values


def arrays(row, **changes):
    """A recorded episode: a square that moves, and a change of 8 grey levels where attacked."""
    attacked = np.arange(T) % 2 == 0 if row["objective"] != "clean" else np.zeros(T, bool)
    frames = np.full((T, SIZE, SIZE, 3), 90, np.uint8)
    for t in range(T):
        frames[t, 4:8, t : t + 4] = 200
    seen = np.where(attacked[:, None, None, None], frames + np.uint8(8), frames)
    reward = np.linspace(2, 1 if row["eps"] else 2, T)
    value = np.where(attacked, np.linspace(5, 3, T), 0).astype(np.float32)
    found = {"frames": frames, "seen": seen, "reward": reward, "attacked": attacked, "action": np.zeros((T, 1))}
    found |= {"value_clean": value, "value_adv": 0.5 * value, "policy_kl": value, "action_change": value}
    return found | {"meta": np.array(json.dumps(row))} | changes


def write_study(folder, rows, traced=()):
    for name in ("rows", "traces"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "rows" / "chunk.parquet")
    study = {
        "name": "small",
        "victims": [AGENT],
        "budgets": [4 / 255, 8 / 255],
        "seeds": [20, 21],
        "optimizers": ["pgd"],
    }
    (folder / "manifest.json").write_text(json.dumps({"study": study, "notes": ["Half-trained: no reference."]}))
    for i, row in enumerate(traced):
        np.savez_compressed(folder / "traces" / f"{i}.npz", **arrays(row))
    return folder


@pytest.fixture
def folder(tmp_path):
    """A study of two agents, noise and one attack, of which zero gradients say that it is weaker than it looks."""
    rows = []
    for victim, seed in ((AGENT, 20), (AGENT, 21), (EVIL, 20), (EVIL, 21)):
        rows.append(make_row(seed=seed, victim=victim))
        for objective, eps in (("random", 4 / 255), ("random", 8 / 255), ("vsa", 4 / 255), ("vsa", 8 / 255)):
            rows.append(make_row(objective, eps, seed, victim=victim, zero_grad=0.5 if objective == "vsa" else 0.0))
    traced = [row for row in rows if row["seed"] == 20 and row["victim"] == AGENT and row["eps"] in (0, 8 / 255)]
    return write_study(tmp_path / "study", rows, traced)


class Client:
    """Asks a server exactly what it is told to, as no browser would."""

    def __init__(self, port):
        self.port = port

    def ask(self, method, path, body=None, headers=()):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest(method, path, skip_host=True)
        for name, value in ({"host": f"127.0.0.1:{self.port}"} | dict(headers)).items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        answer.content = answer.read()
        connection.close()
        return answer

    def get(self, path, **headers):
        return self.ask("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def json(self, path):
        answer = self.get(path)
        assert answer.status == 200, answer.content
        return json.loads(answer.content)

    def post(self, path, body, **changes):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"origin": f"http://127.0.0.1:{self.port}", "content-type": "application/json"}
        headers |= {"content-length": str(len(content))} | {name.replace("_", "-"): v for name, v in changes.items()}
        return self.ask("POST", path, content, {name: value for name, value in headers.items() if value is not None})


@contextmanager
def serving(folder):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        app = application(Library(folder), port)
        config = uvicorn.Config(app, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield Client(port)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def client(folder):
    with serving(folder) as client:
        yield client


def overview_of(client):
    return client.json("/api/results/study")


def cell_of(client, *words):
    """The first cell all of whose words are in values of its axes."""
    overview = overview_of(client)
    for cell in overview["cells"]:
        values = [axis["values"][at] for axis, at in zip(overview["axes"], cell["at"], strict=True)]
        if all(any(word in value for value in values) for word in words):
            return client.json(f"/api/results/study/cells/{cell['id']}")
    raise AssertionError(f"no cell of {words}")


# ---- who may ask

HOSTS = ("evil.example", "evil.example:8000", "127.0.0.1", "127.0.0.1:80", "127.0.0.1.evil.example:8000", "")


def test_another_name_for_this_machine_is_refused(client):
    assert client.get("/api/results").status == 200
    assert client.get("/api/results", host=f"localhost:{client.port}").status == 200
    for host in HOSTS:
        answer = client.get("/api/results", host=host)
        assert answer.status == 421, host
        assert b"small" not in answer.content


def test_another_page_starts_and_stops_nothing(client, playing):
    port = client.port
    origins = None, "null", "http://evil.example", f"https://127.0.0.1:{port}", f"http://127.0.0.1:{port}0"
    wrong = (
        *(({"origin": origin}, 403) for origin in (*origins, f"http://localhost:{port}")),
        ({"sec_fetch_site": "cross-site"}, 403),
        *(({"content_type": kind}, 415) for kind in (None, "text/plain", "application/x-www-form-urlencoded")),
        ({"content_length": None}, 411),
    )
    for path in ("/api/launch", "/api/stop"):
        for headers, status in wrong:
            assert client.post(path, FORM, **headers).status == status, headers
    assert client.get("/api/results", sec_fetch_site="cross-site").status == 403
    assert playing.studies == []


def test_requests_are_small_and_ask_for_what_there_is(client):
    assert client.post("/api/launch", b'"' + b"x" * BODY + b'"').status == 413
    assert client.ask("PUT", "/api/launch").status == 405
    assert client.get("/api/launch").status == 405
    traversals = ("/../cli.py", "/..%2fserver.py", "/%2e%2e/cli.py", "/server.py", "//etc/passwd", "/static/main.js")
    unknown = ("..%2fstudy", "nothing", "study/cells/0", "study/traces/0", "study/traces/0/frames.png")
    for path in (*traversals, *(f"/api/results/{id}" for id in unknown)):
        assert client.get(path).status == 404, path


def test_the_page_may_load_nothing_from_elsewhere(client):
    for path in ("/", "/main.js", "/style.css", "/api/results", "/nothing"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


# ---- what it answers


def test_a_cell_is_told_with_numbers_curve_and_findings(client, folder):
    overview = overview_of(client)
    shown = {axis["name"] for axis in overview["axes"] if axis["shown"]}
    assert shown == {"victim", "task", "objective", "optimizer", "eps", "mode"}
    assert len(overview["cells"]) == 8
    assert overview["notes"] == ["Half-trained: no reference."]
    cell = cell_of(client, AGENT, "VSA", "8/255")
    assert cell["title"] == "VSA by PGD-10, ε = 8/255, full"
    assert cell["clean"]["value"] == pytest.approx(17.95)
    assert cell["return"]["value"] == pytest.approx(17.95 - 800 / 255, abs=1e-4)
    assert cell["return"]["low"] < cell["return"]["value"] < cell["return"]["high"]
    assert cell["drop"] == pytest.approx(800 / 255 / 18.95, abs=1e-4)
    assert cell["nauc"]["value"] == pytest.approx((17.95 - 400 / 255) / 24, abs=1e-4)
    assert cell["facts"]["flip"] == 0.25
    assert [finding["name"] for finding in cell["findings"]] == ["zero-gradient"]
    assert next(check for check in overview["checks"] if check["name"] == "zero-gradient")["fired"] == 4
    assert [attack["name"] for attack in cell["curve"]["attacks"]] == ["random", "VSA PGD-10"]
    assert cell["curve"]["labels"] == ["0", "4/255", "8/255"]
    chosen = next(attack for attack in cell["curve"]["attacks"] if attack["chosen"])
    assert chosen["cells"][2] == cell["id"]
    assert chosen["value"][2] == pytest.approx(cell["return"]["value"], abs=1e-3)
    assert chosen["low"][2] == pytest.approx(cell["return"]["low"], abs=1e-3)


def test_recorded_episodes_are_found_and_others_are_said_to_be_missing(client):
    cell = cell_of(client, AGENT, "VSA", "8/255")
    recorded, other = cell["episodes"]
    assert recorded["seed"] == 20
    assert other["attacked"]["trace"] is None
    answer = client.json(f"/api/results/study/traces/{recorded['attacked']['trace']}")
    assert (answer["steps"], answer["width"], answer["height"], answer["across"]) == (T, SIZE, SIZE, 4)
    assert answer["attacked"] == [1, 0] * (T // 2)
    assert answer["return"][-1] == pytest.approx(sum(answer["reward"]), rel=1e-4)
    assert answer["diagnostics"]["value_adv"][:3] == [2.5, None, pytest.approx(2.3182, rel=1e-4)]
    clean = client.json(f"/api/results/study/traces/{recorded['clean']['trace']}")
    assert not clean["seen_differs"]
    for cell in (cell_of(client, AGENT, "VSA", "4/255"), cell_of(client, EVIL, "VSA", "8/255")):
        assert {episode["attacked"]["trace"] for episode in cell["episodes"]} == {None}


def test_pictures_hold_every_frame(client):
    from io import BytesIO

    from PIL import Image

    trace = cell_of(client, AGENT, "VSA", "8/255")["episodes"][0]["attacked"]["trace"]
    answer = client.get(f"/api/results/study/traces/{trace}/seen.png")
    assert answer.headers["content-type"] == "image/png"
    sheet = np.asarray(Image.open(BytesIO(answer.content)))
    want = arrays(make_row("vsa", 8 / 255))["seen"]
    for t in range(T):
        y, x = SIZE * (t // 4), SIZE * (t % 4)
        np.testing.assert_array_equal(sheet[y : y + SIZE, x : x + SIZE], want[t])


def test_an_episode_that_could_not_be_played_says_why(tmp_path):
    rows = [
        make_row(),
        make_row("vsa", 8 / 255),
        make_row("vsa", 8 / 255, 21, error="ValueError: no", **{"return": float("nan")}),
    ]
    with serving(write_study(tmp_path, rows)) as client:
        cell = cell_of(client, "VSA")
        assert [episode["error"] for episode in cell["episodes"]] == ["", "ValueError: no"]
        assert cell["return"]["value"] == pytest.approx(18 - 800 / 255, abs=1e-4)
        assert cell["return"]["low"] is None


def test_a_study_without_attacks_opens(tmp_path):
    with serving(write_study(tmp_path, [make_row()])) as client:
        assert cell_of(client, "clean")["curve"] is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"meta": np.array("[" * 100_000)}, "left out"),
        ({"meta": np.array(json.dumps(make_row("vsa", 8 / 255, victim=["a"])))}, "left out"),
        ({"frames": np.zeros((T, 8, 8, 3), np.uint8)}, "'frames' and 'seen'"),
        ({"seen": np.zeros((T, 8, 8, 3), np.float32)}, "'seen'"),
        ({"reward": np.full(T, np.nan)}, "'reward'"),
        ({"policy_kl": np.zeros(T + 1, np.float32)}, "'policy_kl'"),
        ({"policy_kl": np.array(["a"] * T)}, "'policy_kl'"),
        ({"frames": np.zeros((T, 600, 1, 3), np.uint8), "seen": np.zeros((T, 600, 1, 3), np.uint8)}, "too large"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_episode_is_named(tmp_path, changes, words):
    row = make_row("vsa", 8 / 255)
    write_study(tmp_path, [make_row(), row])
    np.savez_compressed(tmp_path / "traces" / "wrong.npz", **arrays(row, **changes))
    with serving(tmp_path) as client:
        told = " ".join(overview_of(client)["notes"])
        trace = cell_of(client, "VSA")["episodes"][0]["attacked"]["trace"]
        if trace is not None:
            answer = client.get(f"/api/results/study/traces/{trace}")
            assert answer.status == 422
            told = json.loads(answer.content)["error"]
    assert "wrong.npz" in told
    assert words in told


def test_a_file_that_would_fill_the_memory_is_not_unpacked(tmp_path, monkeypatch):
    folder = write_study(tmp_path, [make_row()], [make_row()])
    monkeypatch.setattr(traces, "_BYTES", 10_000)
    (note,) = [note for note in Results(folder).overview()["notes"] if "0.npz" in note]
    assert "at most 10000" in note


def test_a_truncated_file_is_named(tmp_path):
    write_study(tmp_path, [make_row()], [make_row()])
    file = tmp_path / "traces" / "0.npz"
    file.write_bytes(file.read_bytes()[:200])
    assert "0.npz" in " ".join(Library(tmp_path).open("study").overview()["notes"])
    with pytest.raises(InputError, match=r"0\.npz"):
        numbers(file)


def test_text_that_no_page_can_show_is_replaced(tmp_path):
    folder = write_study(tmp_path, [make_row()])
    (folder / "manifest.json").write_text(json.dumps({"study": {"name": "a\ud800\u202eb"}, "notes": ["\udfff\n"]}))
    with serving(folder) as client:
        assert overview_of(client)["notes"] == ["?"]
        assert client.json("/api/results")[0]["name"] == "study a??b"


def test_new_rows_are_seen_and_ids_stay(client, folder):
    before = [cell["id"] for cell in overview_of(client)["cells"]]
    write_study(folder / "more", [make_row("pda", 8 / 255)])
    (folder / "more" / "rows" / "chunk.parquet").rename(folder / "rows" / "more.parquet")
    after = [cell["id"] for cell in overview_of(client)["cells"]]
    assert len(after) == len(before) + 1
    assert set(before) < set(after)


def test_looking_needs_neither_jax_nor_mujoco(folder):
    script = """
import sys
from pathlib import Path
from wmjax.view.server import Library, application
library = Library(Path(sys.argv[1]))
application(library, 8000)
study = library.open("study")
study.cell(study.overview()["first"])
sys.exit(int("jax" in sys.modules or "mujoco" in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", script, folder], check=False).returncode == 0


# ---- launching, without playing


@pytest.fixture
def playing(monkeypatch):
    """Replaces the playing of a study: `playing.steps` steps, and then `playing.fault` where there is one."""
    from wmjax.study import run as grid

    class Playing:
        steps, fault, studies = 3, None, []

    def run(study, out, *, batch, on_progress):
        Playing.studies.append(study)
        for step in range(Playing.steps):
            on_progress(grid.Progress(step, Playing.steps))
            time.sleep(0.01)
        if Playing.fault is not None:
            raise Playing.fault
        row = make_row("vsa", 8 / 255, optimizer="pgd", steps=2)
        write_study(Path(out), [make_row(), row], [make_row(), row])
        return grid.Outcome(Path(out), 2)

    monkeypatch.setattr(grid, "run", run)
    return Playing


def states(client):
    lines = client.get("/api/progress").content.decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"victim": "nobody"}, ["victim", "nobody", AGENT]),
        ({"victim": ["a"]}, ["victim"]),
        ({"victim": "../../x.safetensors"}, ["unknown victim"]),
        ({"source": "/x.safetensors"}, ["unknown source"]),
        ({"draws": 100}, ["draws is 100"]),
        ({"objective": EVIL}, ["objectives", "img"]),
        ({"objective": None}, ["objectives"]),
        ({"optimizer": "pgdd"}, ["optimizers", "pgdd"]),
        ({"steps": 0}, ["steps is 0"]),
        ({"steps": "ten"}, ["steps", "whole number"]),
        ({"budget": "0"}, ["budgets is 0"]),
        ({"budget": "nan"}, ["budgets"]),
        ({"budget": "8/0"}, ["budgets", "8/0"]),
        ({"budget": True}, ["budgets"]),
        ({"budget": {"a": 1}}, ["budgets"]),
        ({"mode": "sparse(0)"}, ["modes"]),
        ({"defense": "shield"}, ["defenses", "shield"]),
        ({"adaptive": True}, ["adaptive"]),
        ({"seed": -1}, ["seeds"]),
        ({"length": 10**30}, ["episode_steps"]),
        ({"path": "/etc"}, ["unknown field", "path"]),
    ],
)
def test_a_wrong_form_is_answered_in_words(client, playing, changes, words):
    answer = client.post("/api/launch", FORM | changes)
    assert answer.status == 422
    for word in words:
        assert word in json.loads(answer.content)["error"]
    assert playing.studies == []
    assert states(client)[-1]["phase"] == "idle"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"[" * 10_000, b'{"victim": NaN}'])
def test_what_is_no_form_starts_nothing(client, playing, body):
    assert client.post("/api/launch", body).status == 422
    assert playing.studies == []


def test_an_episode_is_played_as_a_tiny_study_and_then_listed(client, playing, folder):
    assert client.post("/api/launch", FORM | {"defense": "jpeg", "adaptive": True}).status == 202
    told = states(client)
    assert told[-1]["phase"] == "done"
    assert told[-1]["what"] == f"VSA by PGD-2, ε = 8/255, on {TASK}, seed 20"
    (study,) = playing.studies
    assert (study.objectives, study.budgets, study.seeds, study.episode_steps) == (("vsa",), (8 / 255,), (20,), 8)
    assert (study.defenses, study.adaptive, study.traces) == (("jpeg(75)",), (True,), "first")
    id = told[-1]["results"]
    assert (folder / "view" / id / "rows").is_dir()
    assert [one["id"] for one in client.json("/api/results")] == ["study", id]
    assert client.json(f"/api/results/{id}")["cells"][0]["recorded"]
    with serving(folder) as again:
        assert [one["id"] for one in again.json("/api/results")] == ["study", id]


def test_one_episode_at_a_time_which_can_be_stopped(client, playing):
    playing.steps = 10_000
    assert client.post("/api/launch", FORM).status == 202
    second = client.post("/api/launch", FORM)
    assert second.status == 409
    assert "stop it" in json.loads(second.content)["error"]
    assert b'"phase":"stopping"' in client.post("/api/stop", {}).content
    assert states(client)[-1]["phase"] == "stopped"
    playing.steps = 1
    assert client.post("/api/launch", FORM).status == 202
    assert states(client)[-1]["phase"] == "done"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (InputError("MUJOCO_GL is 'x'"), "MUJOCO_GL is 'x'"),
        (RuntimeError("boom"), "RuntimeError: boom; the terminal says more"),
    ],
)
def test_what_goes_wrong_is_told(client, playing, capfd, fault, words):
    playing.fault = fault
    client.post("/api/launch", FORM)
    state = states(client)[-1]
    assert (state["phase"], state["message"]) == ("failed", words)
    assert ("Traceback" in capfd.readouterr().err) == (not isinstance(fault, InputError))


def test_open_answers_end_with_the_server(folder):
    launcher = Library(folder).launcher
    launcher.state = State("running")

    async def told():
        return [event async for event in _events(launcher, lambda: True)]

    assert len(asyncio.run(told())) == 1


# ---- the command


def test_wrong_input_is_an_input_error(folder, tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        serve(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no rows"):
        serve(tmp_path / "empty")
    with pytest.raises(InputError, match="port is 70000"):
        serve(folder, 70000)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} cannot be used"):
            serve(folder, port)


def test_the_command_serves_this_machine_until_interrupted(folder):
    # As in a terminal: a background job would ignore the signal.
    script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import wmjax.cli as c; c.main()"
    command = [sys.executable, "-c", script, "view", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline()
            assert str(folder) in line
            client = Client(int(line.split("http://127.0.0.1:")[1].split("/")[0]))
            assert client.json("/api/results") == [{"id": "study", "name": "study small"}]
            assert client.get("/", host="evil.example").status == 421
            server.send_signal(signal.SIGINT)
            _, err = server.communicate(timeout=20)
        finally:
            server.kill()
    assert server.returncode == 130
    assert "Traceback" not in err


# ---- in a browser


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright")
    if not CHROMIUM.exists():
        pytest.skip(f"the page's tests need {CHROMIUM}")
    with playwright.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, folder):
    """The open page; at its end it must neither have complained nor asked anyone else."""
    with serving(folder) as client:
        address = f"http://127.0.0.1:{client.port}/"
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(10_000)
        wrong = []
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(address) else wrong.append(request.url))
        page.on("dialog", lambda dialog: wrong.append("a script of someone else ran"))
        page.goto(address)
        page.wait_for_selector(".chart")
        yield page
        page.close()
    assert wrong == []


def pixel(page, tile):
    return page.evaluate(f"[...document.getElementById('tile-{tile}').getContext('2d').getImageData(1, 5, 1, 1).data]")


def test_the_page_plays_both_episodes_in_step(page):
    assert page.inner_text("#title") == "VSA by PGD-10, ε = 8/255, full"
    assert page.inner_text("#step") == f"1 / {T}"
    assert pixel(page, "camera") == [200, 200, 200, 255]
    assert pixel(page, "seen") == [208, 208, 208, 255]
    assert pixel(page, "change") == [128 + 8 * 8] * 3 + [255]
    assert "is-struck" in page.get_attribute("#episode", "class")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#step") == f"4 / {T}"
    assert [pixel(page, tile)[0] for tile in ("clean", "camera", "seen", "change")] == [90, 90, 90, 128]
    assert "is-struck" not in (page.get_attribute("#episode", "class") or "")
    assert page.inner_text(".chart >> nth=0").split() == [
        "return",
        "so",
        "far",
        "clean",
        "8.00",
        "attacked",
        "7.45",
        "24.0",
        "0",
    ]
    page.keyboard.press("End")
    assert page.inner_text("#step") == f"{T} / {T}"
    page.keyboard.press("Space")
    page.wait_for_selector("#play[aria-label=Pause]")
    page.wait_for_selector("#play[aria-label=Play]")
    assert page.inner_text("#step") == f"{T} / {T}"


def test_the_picker_leads_to_every_cell(page):
    page.select_option("#axis-objective", label="random · noise in the ball")
    page.wait_for_selector("#title:text('random, ε = 8/255, full')")
    assert page.eval_on_selector("#axis-optimizer", "select => select.selectedOptions[0].text") == "none"
    page.select_option("#axis-optimizer", label="PGD-10")
    page.wait_for_selector("#title:text('VSA by PGD-10')")
    page.select_option("#axis-eps", label="4/255")
    page.wait_for_selector("#unrecorded:visible")
    page.click("text=Show the nearest recorded cell")
    page.wait_for_selector(".chart")
    assert page.inner_text("#title") == "VSA by PGD-10, ε = 8/255, full"
    page.select_option("#axis-victim", label=EVIL)  # a name that would run script, were it not shown as text only
    page.wait_for_selector("#about:has-text('<img src=x')")
    assert page.locator("img").count() == 0
    page.locator("circle.target:not(.idle)").last.click()
    page.wait_for_selector("#title:text('VSA')")
    page.click("#findings summary >> nth=0")
    page.locator("#findings button.link").last.click()
    page.wait_for_selector("#about:has-text('dmc_cartpole_balance_r2dreamer_1m')")


def test_the_address_keeps_what_is_shown(page):
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(500)
    page.reload()
    page.wait_for_selector(".chart")
    page.wait_for_selector(f"#step:text('2 / {T}')")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_the_page_is_accessible_and_fits(page, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="the page's tests need axe")
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width

    def violations():
        found = axe.Axe().run(page).response["violations"]
        return [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in found]

    assert violations() == []
    page.click("#open-launch")
    page.wait_for_selector(".field")
    assert violations() == []


def test_an_episode_launched_on_the_page_opens_there(page, folder):
    page.click("#open-launch")
    page.wait_for_selector(".field")
    assert page.input_value("[name=objective]") == "vsa"
    assert page.input_value("[name=budget]") == "8/255"
    page.fill("[name=steps]", "2")
    page.fill("[name=length]", "8")
    page.fill("[name=seed]", "7")
    page.click("#launch-form button[type=submit]")
    page.wait_for_selector("#job[data-phase=done]", timeout=300_000)
    page.wait_for_selector("#step:text('1 / 8')")
    assert page.inner_text("#title") == "VSA by PGD-2, ε = 8/255, full"
    assert page.input_value("#axis-seed") == "7"
    assert page.locator(".chart").count() == 8
    (played,) = (folder / "view").iterdir()
    assert page.input_value("#results") == played.name
