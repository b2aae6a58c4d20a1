"""The results folder: shards whole or absent, one writer, one study, and clear words where it cannot be written."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wmjax.core.errors import Damaged, InputError
from wmjax.core.files import write_atomically
from wmjax.study import store as storing
from wmjax.study.provenance import PROVENANCE, git_state
from wmjax.study.schema import SCHEMA
from wmjax.study.store import Store, read_manifest

MANIFEST = {"identity": {"study": {"budgets": [0.1]}, "victims": {"a": "0"}}, "notes": ["ä"], "earlier": []}


def row(**given):
    """A row with a value of the right kind in every column."""
    kinds = {pa.string(): "x", pa.bool_(): False}
    return {field.name: kinds.get(field.type, 7) for field in SCHEMA} | {"error": ""} | given


def damaged(store: Store, rows: int = 200) -> bool:
    """Whether the shard c is told to be damaged, by its name."""
    try:
        return not store.finished("c", rows)
    except InputError as error:
        return "rows/c.parquet: " in str(error)


ROWS = [row(seed=seed, **{"return": seed / 3}) for seed in range(200)]


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "out", MANIFEST) as opened:
        yield opened


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_rows_come_back(store):
    assert not store.finished("c", 200)
    store.write_rows("c", ROWS)
    assert store.finished("c", 200)
    with pytest.raises(InputError, match=r"rows/c\.parquet: has 200 rows, its chunk 199$"):
        store.finished("c", 199)
    table = pq.read_table(store.folder / "rows" / "c.parquet")
    assert table.schema.equals(SCHEMA, check_metadata=True)
    assert table.to_pylist() == ROWS


def test_a_row_must_have_every_column(store):
    with pytest.raises((pa.ArrowException, KeyError)):
        store.write_rows("c", [{name: value for name, value in ROWS[0].items() if name != "eps"}])
    assert files(store.folder).keys() == {".lock", "manifest.json"}


def test_traces_come_back_without_pickle(store):
    store.write_trace("t", {"reward": np.arange(3.0), "meta": np.array('{"a": 1}')})
    with np.load(store.folder / "traces" / "t.npz", allow_pickle=False) as arrays:
        assert arrays["reward"].tolist() == [0, 1, 2]
        assert arrays["meta"].item() == '{"a": 1}'


def test_a_chunk_that_failed_is_not_finished_and_forgotten_when_it_succeeds(store):
    store.write_rows("c", [ROWS[0], row(error="out of luck")], "Traceback ä \udcff")
    assert (store.folder / "errors" / "c.txt").read_text() == "Traceback ä \\udcff"
    assert not store.finished("c", 2)
    assert pq.read_table(store.folder / "rows" / "c.parquet")["error"].to_pylist() == ["", "out of luck"]
    store.write_rows("c", ROWS)
    assert store.finished("c", 200)
    assert not (store.folder / "errors" / "c.txt").exists()


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_crash_while_writing_leaves_what_was_there(store, monkeypatch, moment):
    class Crash(BaseException):
        pass

    def crash(*_):
        raise Crash

    monkeypatch.setattr(*((os, "fsync") if moment == "fsync" else (Path, "replace")), crash)
    with pytest.raises(Crash):
        store.write_rows("new", ROWS)
    assert not store.finished("new", 200)
    assert not list(store.folder.glob("rows/*.parquet"))
    with pytest.raises(Crash):
        write_atomically(store.folder / "manifest.json", b"{}")
    assert read_manifest(store.folder) == MANIFEST
    monkeypatch.undo()
    store.write_rows("new", ROWS)
    write_atomically(store.folder / "manifest.json", b"{}")
    assert files(store.folder).keys() == {".lock", "manifest.json", "rows/new.parquet"}  # nothing else is left


@pytest.mark.parametrize("step", [1, 211, 997])
def test_a_damaged_shard_is_not_finished(store, step):
    path = store.folder / "rows" / "c.parquet"
    store.write_rows("c", ROWS)
    content = path.read_bytes()
    for end in range(0, len(content), 1009):
        path.write_bytes(content[:end])
        with pytest.raises(InputError, match=r"rows/c\.parquet: not a readable Parquet file \("):
            store.finished("c", 200)
    for place in range(step, len(content), 1009):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        # Comments in the footer may be damaged, but no number.
        assert damaged(store) or pq.read_table(path).to_pylist() == ROWS


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"a": [1, 2]}),
        pa.table({"seed": ["1", "2"]}),
        pa.Table.from_pylist(ROWS[:2], SCHEMA).drop_columns("wall_s"),
        pa.Table.from_pylist(ROWS[:2]),
    ],
    ids=["other", "kind", "column", "kinds"],
)
def test_a_foreign_shard_is_not_finished(store, table):
    pq.write_table(table, store.folder / "rows" / "c.parquet")
    with pytest.raises(InputError, match=r"rows/c\.parquet: not a table of wmjax rows \(differs in "):
        store.finished("c", 2)
    store.write_rows("c", ROWS[:2])
    assert store.finished("c", 2)


def test_a_folder_in_place_of_a_shard(store):
    (store.folder / "rows" / "c.parquet").mkdir()
    assert damaged(store, 2)
    with pytest.raises(InputError, match=r"rows/c\.parquet: cannot be written \(Is a directory\)"):
        store.write_rows("c", ROWS)


def test_one_writer_at_a_time(store):
    before = files(store.folder)
    with pytest.raises(InputError, match="another process is writing to it"):
        Store(store.folder, MANIFEST)
    code = "import sys; from pathlib import Path; from wmjax.study.store import Store; Store(Path(sys.argv[1]), {})"
    other = subprocess.run([sys.executable, "-c", code, store.folder], capture_output=True, text=True)
    assert "another process is writing to it" in other.stderr
    assert files(store.folder) == before
    store.close()
    Store(store.folder, MANIFEST).close()


def test_another_study_changes_nothing(store):
    store.write_rows("c", ROWS)
    store.close()
    before = files(store.folder)
    for _ in range(2):  # and the lock is free again
        with pytest.raises(InputError, match="holds the results of another study; choose another folder"):
            Store(store.folder, {"identity": {}})
    assert files(store.folder) == before
    with Store(store.folder, MANIFEST | {"device": "another"}) as again:
        assert again.finished("c", 200)
    assert read_manifest(store.folder)["device"] == "another"


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ({"study": {"budgets": [0.2]}, "victims": {"a": "0"}}, "study.budgets is [0.2], the folder has [0.1]"),
        ({"study": {"budgets": [0.1]}, "victims": {"a": "1"}}, "victims.a is '1', the folder has '0'"),
        ({"study": {"budgets": [0.1]}, "victims": {}}, "victims.a is None, the folder has '0'"),
        (MANIFEST["identity"] | {"batch": 2}, "batch is 2, the folder has None"),
        ({"study": {"budgets": "x" * 999}}, f"study.budgets is '{'x' * 79}, the folder has [0.1]"),
    ],
)
def test_the_difference_to_another_study_is_named(store, identity, words):
    store.close()
    with pytest.raises(InputError) as error:
        Store(store.folder, {"identity": identity})
    assert str(error.value).endswith(f"({words})")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000], ids=["empty", "cut", "list", "bytes", "deep"]
)
def test_a_foreign_manifest_is_kept(store, content):
    store.close()
    path = store.folder / "manifest.json"
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(InputError, match="not a manifest of wmjax"):
            Store(store.folder, MANIFEST)
    assert path.read_bytes() == content


def test_no_manifest(tmp_path):
    assert read_manifest(tmp_path) is None


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_manifest_that_an_editor_saved(store, mark):
    path = store.folder / "manifest.json"
    path.write_bytes(mark + path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_manifest(store.folder) == MANIFEST


def test_a_shard_is_damaged_or_cannot_be_opened(store, monkeypatch):
    """Only the former is mended by playing its chunk again."""
    store.write_rows("c", ROWS)
    path = store.folder / "rows" / "c.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    with pytest.raises(Damaged, match=r"rows/c\.parquet: not a readable Parquet file"):
        store.finished("c", 200)
    path.write_bytes(content)

    def fail(self):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))

    monkeypatch.setattr(Path, "read_bytes", fail)
    for read in (lambda: store.finished("c", 200), lambda: read_manifest(store.folder)):
        with pytest.raises(InputError, match=r"cannot be read \(Input/output error\)") as error:
            read()
        assert not isinstance(error.value, Damaged)


@pytest.mark.parametrize("folder", ["/proc/none", "/dev/null/out", "file/out", "file", "x" * 300])
def test_an_impossible_folder(tmp_path, folder):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InputError, match=r"cannot be written \("):
        Store(tmp_path / folder, MANIFEST)
    assert files(tmp_path) == {"file": b"kept"}


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match=r"cannot be written \(Permission denied\)"):
        Store(tmp_path / "out", MANIFEST)


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(InputError, match=r"cannot be locked \(No locks available\)"):
        Store(tmp_path, MANIFEST)


def test_a_full_disk(store, monkeypatch):
    store.write_rows("c", ROWS)
    before = files(store.folder)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for write, *what in ((store.write_rows, "d", ROWS), (store.write_trace, "t", {}), (store.write_rows, "d", [], "x")):
        with pytest.raises(InputError, match=r"out/\w+/\w+\.\w+: cannot be written \(No space left on device\)$"):
            write(*what)
    assert files(store.folder) == before
    store.close()
    with pytest.raises(InputError, match=r"manifest\.json: cannot be written \(No space left on device\)"):
        Store(store.folder, MANIFEST)


def test_a_write_that_fails_halfway_leaves_nothing(store):
    store.write_rows("c", ROWS)
    before = files(store.folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))  # the system's own failure, after some bytes
    try:
        with pytest.raises(InputError, match=r"rows/d\.parquet: cannot be written \(File too large\)$"):
            store.write_rows("d", ROWS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(store.folder) == before


def test_a_shard_whose_schema_text_is_damaged_is_made_again(store):
    store.write_rows("new", ROWS)
    path = store.folder / "rows" / "new.parquet"
    data = path.read_bytes()
    assert data.count(b"victim_sha256")
    path.write_bytes(data.replace(b"victim_sha256", b"victim_sha25\xff"))
    with pytest.raises(InputError, match="not a readable Parquet file"):
        store.finished("new", len(ROWS))


def test_what_is_no_chunk_is_found_and_left(store):
    store.write_rows("c", ROWS)
    for name in ("notes.txt", "d.parquet", "c.parquet.bak"):
        (store.folder / "rows" / name).write_text("mine")
    assert [path.name for path in store.strays(["c", "e"])] == ["c.parquet.bak", "d.parquet", "notes.txt"]
    assert (store.folder / "rows" / "notes.txt").read_text() == "mine"


def test_what_a_killed_writer_left_is_removed_at_the_next_start(store):
    store.write_rows("c", ROWS)
    before = files(store.folder)
    for left in (".manifest.json.part", "rows/.d.parquet.part", "traces/.t.npz.part", "errors/.d.txt.part"):
        (store.folder / left).write_bytes(b"half")
    store.close()
    with pytest.raises(InputError, match="another study"):
        Store(store.folder, {"identity": {}})
    assert files(store.folder).keys() > before.keys()  # it may be of use to whom the folder belongs
    Store(store.folder, MANIFEST).close()
    assert files(store.folder) == before


def test_the_manifest_remembers_where_earlier_rows_come_from(store):
    def opened(**provenance) -> dict:
        store.close()
        Store(store.folder, MANIFEST | provenance).close()
        return read_manifest(store.folder)

    first = {"device": "1 x cpu", "started": "2026-01-01", "git": {"commit": "a", "dirty": False}}
    opened(**first)
    assert opened(**first | {"started": "2026-01-02"})["earlier"] == [dict.fromkeys(PROVENANCE)]
    other = first | {"git": {"commit": "b", "dirty": False}}
    for _ in range(2):
        seen = opened(**other)
        assert [run["git"] for run in seen["earlier"]] == [None, {"commit": "a", "dirty": False}]
        assert seen["git"]["commit"] == "b"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_of_a_checkout(tmp_path):
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        done = subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    root = tmp_path.resolve()
    assert git_state(root) is None
    git("init")
    assert git_state(root) is None  # without a commit
    (root / "site-packages").mkdir()
    (root / "code.py").write_text("1")
    git("add", "code.py")
    git("commit", "-m", "one")
    assert git_state(root) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    assert git_state(root / "site-packages") is None  # a package that lies somewhere in another's checkout
    (root / "code.py").write_text("2")
    assert git_state(root) == {"commit": git("rev-parse", "HEAD"), "dirty": True}


@pytest.mark.parametrize("what", ["link", "pipe"])
def test_a_lock_that_leads_elsewhere_is_refused(tmp_path, what):
    """A folder from a stranger: nothing is written through its links, and no pipe is waited for."""
    mine = tmp_path / "mine.txt"
    mine.write_text("kept")
    (tmp_path / "out").mkdir()
    if what == "link":
        (tmp_path / "out" / ".lock").symlink_to(mine)
        with pytest.raises(InputError, match="out: cannot be written"):
            Store(tmp_path / "out", MANIFEST)
    else:
        os.mkfifo(tmp_path / "out" / ".lock")
        Store(tmp_path / "out", MANIFEST).close()
    assert mine.read_text() == "kept"


@pytest.mark.parametrize("name", ["manifest.json", "rows/c.parquet"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_what_would_never_end_is_not_read(tmp_path, name, make):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    make(path)
    with pytest.raises(InputError, match=f"{name}: not a regular file"):
        read_manifest(tmp_path) if name == "manifest.json" else storing.finished(tmp_path, "c", 1)


def test_a_shard_that_is_too_large_is_not_read(store, monkeypatch):
    store.write_rows("c", ROWS)
    monkeypatch.setattr(storing, "_SHARD_ROWS", 199)
    with pytest.raises(InputError, match=r"rows/c\.parquet: not the rows of one chunk: 200"):
        store.finished("c", 200)


@pytest.mark.parametrize("name", ["rows", "traces", "errors"])
def test_nothing_is_written_or_removed_through_a_linked_folder(tmp_path, name):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / ".mine.part").write_text("kept")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(mine)
    with pytest.raises(InputError, match=f"{name}: is a link to another folder"):
        Store(tmp_path / "out", MANIFEST)
    assert [path.name for path in mine.iterdir()] == [".mine.part"]
