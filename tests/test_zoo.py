"""Weight files by name or path; a foreign, damaged or malicious one is refused in one line, quickly."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file, save_file

import wmjax
from wmjax.agents import zoo
from wmjax.agents.compatibility import unplayable
from wmjax.agents.weights import Card, card_text, read, read_card, template, write
from wmjax.core.errors import InputError

NOT_OURS = "not an agent converted by wmjax"


@pytest.fixture
def weight_file(tiny, tmp_path):
    victim, params = tiny
    path = tmp_path / "agent.safetensors"
    flat = {name: np.asarray(leaf) for name, leaf in flatten_dict(params, sep="/").items()}
    write(path, Card(victim, task="dmc_walker_walk", action_repeat=2, source="latest.pt", source_sha256="0" * 64), flat)
    return path


def refuse(path, *words, card_too=True):
    """Assert that loading fails in one line that has all `words` in it, and soon."""
    start = time.monotonic()
    for function in (wmjax.load, zoo.card)[: 2 if card_too else 1]:
        with pytest.raises(InputError) as error:
            function(path)
        message = str(error.value)
        assert "\n" not in message
        assert len(message) < 700
        for word in (path.name, *words):
            assert str(word) in message, message
    assert time.monotonic() - start < 20


def rewrite(path, tensors=None, **changes):
    """Write the file again with other tensors or another card; sizes of the victim have names with `victim__`."""
    card = json.loads(card_text(read_card(path)))
    for name, value in changes.items():
        branch = card["victim"] if name.startswith("victim__") else card
        branch[name.removeprefix("victim__")] = value
    tensors = load_file(path) if tensors is None else tensors
    save_file(tensors, path, metadata={"wmjax": json.dumps(card, sort_keys=True)})
    return path


# What loads.


def test_round_trip(tiny, weight_file):
    victim, params = tiny
    loaded, weights = wmjax.load(weight_file)
    assert loaded == victim
    assert hash(loaded) == hash(victim)
    jax.tree.map(np.testing.assert_array_equal, weights, params)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(weights))
    assert wmjax.load(str(weight_file))[0] == victim
    card = zoo.card(weight_file)
    assert card == read(weight_file)[0]
    assert (card.task, card.action_repeat, card.converter) == ("dmc_walker_walk", 2, wmjax.__version__)


def test_rewriting_as_it_is_still_loads(weight_file, tiny):
    assert wmjax.load(rewrite(weight_file))[0] == tiny[0]
    assert zoo.card(rewrite(weight_file, task=None)).task is None


def test_template_is_the_tree_of_weights(tiny):
    victim, params = tiny
    assert template(victim) == {name: leaf.shape for name, leaf in flatten_dict(params, sep="/").items()}


def test_shipped_agents():
    names = zoo.names()
    assert names
    for name in names:
        card = zoo.card(name)
        victim, _ = wmjax.load(name)
        assert victim == card.victim
        assert card.task in zoo.description(name)


def test_unknown_names_list_the_known_ones(monkeypatch, tmp_path, weight_file):
    (tmp_path / "zoo").mkdir()
    for name in ("swift", "calm"):
        (tmp_path / "zoo" / f"{name}.safetensors").write_bytes(weight_file.read_bytes())
    monkeypatch.setattr(zoo, "_SHIPPED", tmp_path / "zoo")
    assert zoo.names() == ["calm", "swift"]
    assert wmjax.load("swift")[0] == wmjax.load(weight_file)[0]
    for name in ("Swift", "", "swift.md", "s*"):
        with pytest.raises(InputError, match=r"unknown agent .*known: calm, swift; .*safetensors") as error:
            wmjax.load(name)
        assert repr(name) in str(error.value)


def test_only_shipped_agents_have_a_description(weight_file):
    for name in (str(weight_file), "c/a.safetensors", "a.safetensors", "nobody"):
        with pytest.raises(InputError, match=r"unknown agent .*; known: dmc_"):
            zoo.description(name)


# What does not.


def test_missing_file_and_folder(tmp_path):
    refuse(tmp_path / "none.safetensors", "no such file")
    refuse(tmp_path / "none" / "none.safetensors", "no such file")
    (tmp_path / "folder.safetensors").mkdir()
    refuse(tmp_path / "folder.safetensors")


@pytest.mark.parametrize("content", [b"", b"{}", b"hello\n" * 100, bytes(range(256)) * 50, b"PK\x03\x04" + bytes(100)])
def test_foreign_bytes(content, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    refuse(path, NOT_OURS)


@pytest.mark.parametrize(
    "header",
    [b"[" * 500_000, b'{"__metadata__": {"wmjax": "' + b"[" * 500_000 + b'"}}', b'{"__metadata__": {"wmjax": "3"}}',
     b'{"__metadata__": {"wmjax": "null"}}', b'{"__metadata__": {"wmjax": "[]"}}', b'{"__metadata__": 3}', b"{}",
     b'{"a": {"dtype": "F32", "shape": [1099511627776], "data_offsets": [0, 4398046511104]}}',
     b'{"a": {"dtype": "F32", "shape": [0, 18446744073709551615], "data_offsets": [0, 0]}}'],
    ids=range(9),
)  # fmt: skip
@pytest.mark.parametrize("claimed", [None, 1 << 62, (1 << 64) - 1, 99_000_000])
def test_malicious_headers(header, claimed, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes((len(header) if claimed is None else claimed).to_bytes(8, "little") + header)
    refuse(path, NOT_OURS)


@pytest.mark.parametrize("share", [0.001, 0.02, 0.5, 0.999])
def test_truncated(share, weight_file):
    content = weight_file.read_bytes()
    weight_file.write_bytes(content[: int(share * len(content))])
    refuse(weight_file, NOT_OURS)


def test_foreign_safetensors(tmp_path):
    path = tmp_path / "a.safetensors"
    for metadata in (None, {"format": "pt"}, {"wmjax": "hello"}, {"wmjax": "{}"}):
        save_file({"a": np.ones(3, np.float32)}, path, metadata=metadata)
        refuse(path, NOT_OURS)


def test_another_version(weight_file):
    refuse(rewrite(weight_file, format="wmjax-victim-0"), "another version", "convert the checkpoint again")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("victim__deter", "32"),
        ("victim__deter", 32.0),
        ("victim__dyn_layers", True),
        ("victim__deter", None),
        ("victim__deter", [32]),
        ("victim__depths", "88"),
        ("victim__depths", 8),
        ("victim__depths", [8, "8"]),
        ("victim__agent", 3),
        ("victim__agent", "planner"),
        ("victim__surprise", 1),
        ("surprise", 1),
        ("action_repeat", 0),
        ("action_repeat", "2"),
        ("task", 3),
        ("source", None),
        ("victim", None),
        ("victim", 3),
    ],
)
def test_cards_of_another_type(field, value, weight_file):
    refuse(rewrite(weight_file, **{field: value}), NOT_OURS)


@pytest.mark.parametrize(
    ("size", "value"),
    [
        ("deter", 0),
        ("deter", -32),
        ("deter", 30),
        ("deter", 1 << 62),
        ("deter", 10**400),
        ("blocks", 0),
        ("blocks", 5),
        ("hidden", 1 << 40),
        ("stoch", 0),
        ("bins", 0),
        ("bins", 30),
        ("minres", 0),
        ("kernel_size", 0),
        ("actor_layers", -1),
        ("obs_layers", 0),
        ("actor_layers", 1 << 16),
        ("decoder_blocks", 0),
        ("decoder_blocks", 3),
        ("horizon", 0),
        ("horizon", 1 << 31),
        ("decoder_units", -1),
        ("action_size", 0),
        ("depths", []),
        ("depths", [8, 0]),
        ("depths", [8] * 100_000),
    ],
)
def test_impossible_sizes(size, value, weight_file):
    refuse(rewrite(weight_file, **{f"victim__{size}": value}), NOT_OURS)


def test_decoder_blocks_divide_the_state(weight_file):
    refuse(rewrite(weight_file, victim__deter=36, victim__decoder_blocks=8), NOT_OURS)


@pytest.mark.parametrize(
    ("size", "value"),
    [
        ("deter", 64), ("deter", 131072), ("blocks", 8), ("hidden", 17), ("stoch", 5), ("discrete", 131072),
        ("units", 15), ("bins", 33), ("minres", 8), ("minres", 131072), ("kernel_size", 3), ("kernel_size", 9999),
        ("actor_layers", 2), ("actor_layers", 0), ("critic_layers", 32), ("obs_layers", 2), ("dyn_layers", 0),
        ("decoder_units", 7), ("decoder_blocks", 8), ("action_size", 3), ("depths", [8]), ("depths", [8, 8, 8]),
        ("depths", [8] * 8), ("agent", "r2dreamer"),
    ],
)  # fmt: skip
def test_sizes_of_another_agent(size, value, weight_file):
    refuse(rewrite(weight_file, **{f"victim__{size}": value}), card_too=False)


def test_tensors_that_do_not_fit(weight_file):
    good = load_file(weight_file)
    name = "actor/linear1/kernel"
    rest = {key: value for key, value in good.items() if key != name}
    refuse(rewrite(weight_file, rest), "missing weights", name, card_too=False)
    refuse(rewrite(weight_file, good | {"actor/more": good[name]}), "unknown weights", "actor/more", card_too=False)
    for wrong, words in (
        (good[name][1:], ["float32[15, 16]", "float32[16, 16]"]),
        (good[name].astype(np.float16), ["float16[16, 16]"]),
        (good[name].astype(np.int32), ["int32[16, 16]"]),
        (good[name] * np.nan, ["NaN or infinite"]),
    ):
        refuse(rewrite(weight_file, rest | {name: wrong}), name, *words, card_too=False)
    more = {f"actor/more{i:03}": np.ones(1, np.float32) for i in range(100)}
    refuse(rewrite(weight_file, good | more), "unknown weights", "88 more", card_too=False)


def test_names_that_are_no_tree(weight_file):
    one = np.ones(1, np.float32)
    clash = {"projector": one, "projector/kernel": one}
    refuse(rewrite(weight_file, load_file(weight_file) | clash), NOT_OURS, card_too=False)


def test_types_that_numpy_lacks(weight_file):
    """The header alone says what the numbers are; 8-bit floats have no NumPy type."""
    content = weight_file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for kind in ("BF16", "F8_E5M2", "F64", "C64", "Q99"):
        changed = {key: value for key, value in header.items() if key == "__metadata__"}
        size = {"BF16": 2, "F8_E5M2": 1, "F64": 8, "C64": 8}.get(kind, 4)
        changed["actor/out/bias"] = {"dtype": kind, "shape": [4], "data_offsets": [0, 4 * size]}
        text = json.dumps(changed).encode()
        weight_file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4 * size))
        refuse(weight_file, card_too=False)


def test_training_parts_may_stay(weight_file):
    extra = {"return_ema/quantiles": np.ones(2, np.float32), "projector/kernel": np.ones((4, 3), np.float32)}
    _, params = wmjax.load(rewrite(weight_file, load_file(weight_file) | extra))
    assert params["projector"]["kernel"].shape == (4, 3)


def test_writing_where_one_cannot(tiny, tmp_path):
    card = Card(tiny[0], None, 2, "latest.pt", "0")
    for path in (tmp_path / "none" / "a.safetensors", tmp_path / f"{'x' * 300}.safetensors"):
        with pytest.raises(InputError, match="cannot be written"):
            write(path, card, {"a": np.ones(1, np.float32)})
    assert not list(tmp_path.iterdir())


def test_agents_are_read_without_a_device(weight_file):
    """Neither a card nor the weights need one: files are converted on machines that have another than configured."""
    code = "import sys; from pathlib import Path; from wmjax.agents.weights import read; read(Path(sys.argv[1]))"
    environment = os.environ | {"JAX_PLATFORMS": "cuda"}
    subprocess.run([sys.executable, "-c", code, weight_file], check=True, env=environment)


@pytest.mark.parametrize(
    ("task", "changes", "reasons"),
    [
        ("dmc_walker_walk", {}, []),
        (None, {}, []),
        ("atari_pong", {}, ["unknown task 'atari_pong'; known: dmc_ball_in_cup_catch"]),
        ("dmc_walker_walk", {"action_repeat": 1}, ["its action_repeat is 1, that of dmc_walker_walk is 2"]),
        ("dmc_walker_walk", {"minres": 8}, ["its image_size is 128, that of dmc_walker_walk is 64"]),
        (None, {"minres": 8}, ["its image_size is 128, that of the known tasks is 64"]),
        (None, {"action_size": 3}, ["its action_size is 3, that of the known tasks is 1 or 2 or 4 or 6"]),
        ("dmc_reacher_easy", {"minres": 8}, ["its action_size is 6, that of", "its image_size is 128, that of"]),
    ],
)
def test_what_cannot_be_played_is_told(task, changes, reasons, tiny):
    sizes = {"action_size": 6, "depths": (8, 8, 8, 8), "action_repeat": 2} | changes
    repeat = sizes.pop("action_repeat")
    found = unplayable(Card(replace(tiny[0], **sizes), task, repeat, "latest.pt", "0"))
    assert len(found) == len(reasons)
    for line, reason in zip(found, reasons, strict=True):
        assert line.startswith(f"`wmjax run` cannot play it yet: {reason}")
