"""Paths of any bytes and texts of any locale, through every library that is given a path."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import wmjax
from wmjax import runtime
from wmjax.agents.weights import Card, read, write
from wmjax.core.errors import Damaged, InputError
from wmjax.core.files import check_file, plain_name, read_file, visible
from wmjax.core.text import as_path, printable
from wmjax.envs.dmc import physics
from wmjax.study.provenance import git_state
from wmjax.train.checkpoint import checkpoints, restore, save
from wmjax.train.curves import Curves

C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NAMES = ["ü 5%", "\udcff", "new\nline", "-o", "[*]'\"#?"]


@pytest.fixture(params=NAMES, ids=ascii)
def folder(request, tmp_path):
    path = as_path(tmp_path / request.param)
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("r_ü", "r_ü"),
        ("r_\udcc3\udcbc", "r_ü"),  # UTF-8, read in a C locale
        ("ü\udcff\udcc3\udcbc", "ü?ü"),
        ("\ud800", "?"),  # no byte, but JSON can hold it
        ("a\nb\x1b", "a?b?"),
    ],
)
def test_texts_of_the_system_are_shown_as_utf8(text, shown):
    assert printable(text) == shown


def test_texts_and_paths_are_the_same_in_every_locale(tmp_path):
    path = as_path(tmp_path / "ü.txt")
    path.write_text("found", encoding="utf-8")
    code = r"""
import os, sys
from pathlib import Path
from wmjax.core.text import as_path, as_text
given = Path(sys.argv[1])
assert sys.getfilesystemencoding() == sys.argv[2], sys.getfilesystemencoding()
assert as_text(given.name) == "\xfc.txt"
assert as_path(given) == given
assert as_path(str(given)) == given
assert os.fsencode(as_path("\xfc.txt")) == b"\xc3\xbc.txt"
assert as_path(given.with_name("\xfc.txt")).read_text(encoding="utf-8") == "found"
assert as_text(os.fsdecode(b"\xff")) == "\udcff"
"""
    for variables, encoding in ((C_LOCALE, "ascii"), ({"LC_ALL": "C.UTF-8"}, "utf-8")):
        command = [sys.executable, "-c", code, path, encoding]
        environment = os.environ | variables | {"PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("encoding", "printed"), [("utf-8", "ü → ".encode()), ("ascii", b"? ? "), ("iso8859-1", "ü ? ".encode("latin-1"))]
)
def test_everything_can_be_printed(encoding, printed):
    code = r"from wmjax import runtime; runtime.print_anything(); print('\xfc \u2192 \udcff')"
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True)
    assert done.stdout == printed + b"\xff\n"


def test_a_plain_name_leads_to_the_same_file(folder):
    (folder / "a").write_bytes(b"found")
    with plain_name(folder) as name:
        assert (name / "a").read_bytes() == b"found"
        assert str(name).encode()  # is UTF-8
        assert "*" not in str(name)
    with plain_name(folder / "a") as name:
        assert name.read_bytes() == b"found"


def test_what_is_no_path_on_any_machine_is_an_unknown_name():
    with pytest.raises(InputError, match="unknown agent"):
        wmjax.load("\ud800")
    with pytest.raises(InputError, match="not an agent"):
        wmjax.load("\ud800.safetensors")


def test_weight_files(folder, tiny):
    victim, params = tiny
    path = as_path(folder / "ä\udcfe.safetensors")
    card = Card(victim, "dmc_reacher_easy", 2, "latest.pt", 64 * "0")
    names = {"/".join(str(key.key) for key in where): np.asarray(x) for where, x in jax.tree.leaves_with_path(params)}
    write(path, card, names)
    found, weights = read(path)
    assert found == card
    assert jax.tree.all(jax.tree.map(np.array_equal, weights, params))


def test_checkpoints_and_curves(folder):
    state, mesh = {"x": jnp.arange(3.0)[None]}, Mesh(np.array(jax.devices()[:1]), ("seeds",))
    with checkpoints(folder / "kept") as kept:
        save(kept, 1, state, [{"steps": 1}])
    with checkpoints(folder / "kept") as kept:
        found, log = restore(kept, state, mesh)
        assert found["x"].tolist() == [[0.0, 1.0, 2.0]]
        assert log == [{"steps": 1}]
        with pytest.raises(InputError) as error:
            restore(kept, {"x": jnp.zeros((1, 4))}, mesh)
        assert str(error.value).startswith(f"{folder / 'kept'}: checkpoint 1 cannot be read")
    with Curves(folder / "curves", [0], 0) as curves:
        curves.add({"steps": 1, "loss": [0.5]})
    (events,) = (folder / "curves" / "seed_0").iterdir()
    assert b"loss" in events.read_bytes()


def test_an_installation_anywhere(tmp_path, monkeypatch):
    place = tmp_path / "site-packages \udcff"
    place.symlink_to(physics.resources.files("dm_control"))
    monkeypatch.setattr(physics.resources, "files", lambda package: place)
    assert physics.load.__wrapped__("cartpole", 1, ()).model.nq == 2


def test_a_cache_anywhere(folder, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("WMJAX_CACHE", str(folder / "cache"))
    try:
        runtime.use_compilation_cache()
        name = jax.config.jax_compilation_cache_dir
        assert name.encode()
        assert os.path.realpath(name) == str(folder / "cache")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_checkout_anywhere(folder):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True).stdout

    git("init")
    git("commit", "--allow-empty", "-m", "first")
    assert git_state(folder) == {"commit": git("rev-parse", "HEAD").decode().strip(), "dirty": False}


def test_what_cannot_be_opened_is_told_from_what_is_damaged(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "large").write_bytes(b"123")
    assert visible(tmp_path / "absent") == []
    for read_it in (visible, lambda path: read_file(path, 2)):
        with pytest.raises(InputError, match=r"loop: cannot be read \(Too many levels") as error:
            read_it(tmp_path / "loop")
        assert not isinstance(error.value, Damaged)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "absent", 2)
    with pytest.raises(Damaged, match="large: is larger"):
        check_file(tmp_path / "large", 2)
    assert read_file(tmp_path / "large", 3) == b"123"
