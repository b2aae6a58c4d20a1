"""Joining the folders of machines that split a study: every chunk once, and nothing contradictory or damaged."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from wmjax import cli
from wmjax.core.errors import InputError
from wmjax.study.merge import Merged, merge
from wmjax.study.schema import SCHEMA
from wmjax.study.store import Store, read_manifest

DEFAULTS = {"string": "none", "int32": 1, "int64": 1, "double": 0.5, "float": float("nan"), "bool": False}
IDS = [f"{i:016x}" for i in range(5)]
IDENTITY = {"study": {"budgets": [0.1]}, "victims": {"a": "0"}, "batch": 2}


def rows(chunk: str, error: str = "", **given) -> list[dict]:
    """The two rows of a chunk, which are clean episodes with seeds of their own."""
    row = {field.name: DEFAULTS[str(field.type)] for field in SCHEMA} | {"objective": "clean", "error": error}
    seeds = (2 * int(chunk, 16), 2 * int(chunk, 16) + 1)
    return [row | {"seed": seed, "return": seed / 3} | given for seed in seeds]


def make(folder: Path, chunks, identity=IDENTITY, **provenance) -> Path:
    """A machine's results: `chunks` by id, each a list of rows."""
    manifest = {"identity": identity, "study": {"seeds": [1]}, "versions": {"jax": "1"}, "chunks": IDS}
    manifest |= {"device": "1 x cpu", "notes": ["a note"], "git": {"commit": "c", "dirty": False}} | provenance
    with Store(folder, manifest) as store:
        for chunk, content in chunks.items():
            failure = content[0]["error"]
            store.write_rows(chunk, content, f"Traceback of {folder.name}" if failure else None)
            if not failure:
                store.write_trace(f"trace_{chunk}", {"reward": np.arange(3.0)})
    return folder


def parts(tmp_path: Path, **provenance) -> tuple[Path, Path]:
    """Two machines' results, which have chunk 2 in common and lack chunk 4."""
    one = make(tmp_path / "one", {chunk: rows(chunk, wall_s=1.0) for chunk in IDS[:3]}, shard="1/2")
    other = {"device": "2 x cpu", "notes": ["a note", "another"], "shard": "2/2"} | provenance
    return one, make(tmp_path / "two", {chunk: rows(chunk, wall_s=2.0) for chunk in IDS[2:4]}, **other)


def column(folder: Path, name: str) -> list:
    """A column of all rows, in the order of chunks."""
    return [value for path in sorted((folder / "rows").iterdir()) for value in pq.read_table(path)[name].to_pylist()]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_chunk_is_taken_once(tmp_path):
    one, two = parts(tmp_path)
    before = files(one), files(two)
    out = tmp_path / "out"
    assert merge([one, str(two)], str(out)) == Merged(out, played=4, failed=0, missing=1)
    assert (files(one), files(two)) == before
    for name, content in (files(two) | files(one)).items():
        assert name in (".lock", "manifest.json") or files(out)[name] == content  # of what both have, the first's
    assert files(out).keys() == before[0].keys() | before[1].keys()
    assert column(out, "seed") == list(range(8))
    assert merge([two, one, one], out) == Merged(out, played=4, failed=0, missing=1)  # and again
    make(tmp_path / "three", {IDS[4]: rows(IDS[4])})
    assert merge([tmp_path / "three"], out) == Merged(out, played=5, failed=0, missing=0)


def test_the_manifest_is_of_the_whole_and_tells_of_the_parts(tmp_path):
    one, two = parts(tmp_path)
    out = merge([one, two], tmp_path / "out", command=["wmjax", "merge"]).folder
    manifest = read_manifest(out)
    assert manifest["study"] == {"seeds": [1]}
    assert manifest["device"] == "1 x cpu, 2 x cpu"
    assert manifest["notes"] == ["a note", "another"]
    assert manifest["git"] == {"commit": "c", "dirty": False}
    assert manifest["command"] == ["wmjax", "merge"]
    assert manifest["shard"] is None
    assert [run["shard"] for run in manifest["earlier"]] == ["1/2", "2/2"]
    make(out, {})  # the study goes on there
    assert [run["shard"] for run in read_manifest(out)["earlier"]] == ["1/2", "2/2", None]

    other = parts(tmp_path / "other", git={"commit": "d", "dirty": False})
    manifest = read_manifest(merge(other, tmp_path / "mixed").folder)
    assert manifest["git"] is None
    assert [run["git"]["commit"] for run in manifest["earlier"]] == ["c", "d"]


def test_into_one_of_the_parts(tmp_path):
    one, two = parts(tmp_path)
    kept = (one / "rows" / f"{IDS[2]}.parquet").read_bytes()
    assert merge([two, one], one) == Merged(one, played=4, failed=0, missing=1)
    assert (one / "rows" / f"{IDS[2]}.parquet").read_bytes() == kept
    assert column(one, "seed") == list(range(8))


def test_another_study_is_refused_where_it_differs(tmp_path):
    one, _ = parts(tmp_path)
    other = make(tmp_path / "other", {}, IDENTITY | {"batch": 3})
    with pytest.raises(InputError, match=r"other: holds another study than .*one \(batch is 2, the folder has 3\)"):
        merge([one, other], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    before = files(other)
    with pytest.raises(InputError, match="other: holds the results of another study"):
        merge([one], other)
    assert files(other) == before


@pytest.mark.parametrize("change", [{"return": 0.25}, {"return": float("nan")}, {"policy_kl": 0.5}, {"device": "gpu"}])
def test_other_rows_of_one_chunk_are_refused_and_both_named(tmp_path, change):
    one, two = parts(tmp_path)
    with Store(two, read_manifest(two)) as store:
        store.write_rows(IDS[2], rows(IDS[2], **change))
    with pytest.raises(InputError, match=rf"two/rows/{IDS[2]}\.parquet: holds other rows than .*one/rows/{IDS[2]}"):
        merge([one, two], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_one_machine_could_not_play_another_could(tmp_path):
    one, two = parts(tmp_path)
    lost = make(tmp_path / "lost", {chunk: rows(chunk, error="out of luck") for chunk in (IDS[0], IDS[4])})
    errors = lambda: {path.name: path.read_text() for path in (tmp_path / "out" / "errors").iterdir()}  # noqa: E731
    assert merge([lost], tmp_path / "out") == Merged(tmp_path / "out", played=0, failed=2, missing=3)
    assert errors() == {f"{chunk}.txt": "Traceback of lost" for chunk in (IDS[0], IDS[4])}
    for order in ([one, lost, two], [lost, two, one]):
        assert merge(order, tmp_path / "out") == Merged(tmp_path / "out", played=4, failed=1, missing=0)
        assert errors() == {f"{IDS[4]}.txt": "Traceback of lost"}
        assert column(tmp_path / "out", "error") == [""] * 8 + ["out of luck"] * 2


def test_what_is_damaged_or_no_chunk_is_named_and_left_out(tmp_path):
    one, two = parts(tmp_path)
    shard = one / "rows" / f"{IDS[0]}.parquet"
    shard.write_bytes(shard.read_bytes()[:-9])
    (one / "rows" / "notes.txt").write_text("mine")
    (one / "rows" / f".{IDS[4]}.parquet.part").write_text("half")
    other = one / "rows" / f"{IDS[4]}.parquet"
    pq.write_table(pq.read_table(one / "rows" / f"{IDS[1]}.parquet").drop_columns("seed"), other)
    merged = merge([one, two], tmp_path / "out")
    assert (merged.played, merged.failed, merged.missing) == (3, 0, 2)
    assert [line.split(": ")[0] for line in merged.left_out] == [str(shard), str(other), str(one / "rows/notes.txt")]
    assert ["readable" in line for line in merged.left_out] == [True, False, False]
    assert sorted(path.stem for path in (tmp_path / "out" / "rows").iterdir()) == IDS[1:4]


def test_chunks_of_another_study_are_left_out(tmp_path):
    one, two = parts(tmp_path)
    stray = one / "rows" / f"{9:016x}.parquet"
    stray.write_bytes((one / "rows" / f"{IDS[0]}.parquet").read_bytes())
    merged = merge([one, two], tmp_path / "out")
    assert (merged.played, merged.missing, merged.left_out) == (4, 1, (f"{stray}: no chunk of the study",))


def test_links_and_what_is_no_episode_are_left_out_and_the_rest_taken(tmp_path):
    """Of a stranger's folder: links that lead to my files, pipes, a file too large for any memory, garbage."""
    one, two = parts(tmp_path)
    mine = tmp_path / "mine.txt"
    mine.write_text("secret")
    lost = make(tmp_path / "lost", {IDS[4]: rows(IDS[4], error="out of luck")})
    (lost / "errors" / f"{IDS[4]}.txt").unlink()
    (lost / "errors" / f"{IDS[4]}.txt").symlink_to(mine)
    (one / "errors" / f"{IDS[0]}.txt").symlink_to(mine)  # of a chunk that did not fail: not even looked at
    bad = {name: one / "traces" / f"{name}.npz" for name in ("a_link", "b_pipe", "c_garbage", "d_huge")}
    bad["a_link"].symlink_to(mine)
    os.mkfifo(bad["b_pipe"])
    bad["c_garbage"].write_text("hi")
    bad["d_huge"].write_bytes((one / "traces" / f"trace_{IDS[0]}.npz").read_bytes())
    with bad["d_huge"].open("r+b") as file:  # a hole, and a zip file's end after it
        end = file.read()
        file.seek(1 << 31)
        file.write(end)
    merged = merge([one, lost, two], tmp_path / "out")
    assert (merged.played, merged.failed, merged.missing) == (4, 1, 0)
    left_out = {line.split(": ")[0] for line in merged.left_out}
    assert left_out == {*map(str, bad.values()), str(lost / "errors" / f"{IDS[4]}.txt")}
    assert not list((tmp_path / "out" / "errors").iterdir())
    assert sorted(path.stem for path in (tmp_path / "out" / "traces").iterdir()) == [f"trace_{i}" for i in IDS[:4]]


def test_a_damaged_shard_is_replaced_by_a_whole_one(tmp_path):
    one, two = parts(tmp_path)
    shard = two / "rows" / f"{IDS[2]}.parquet"
    shard.write_bytes(b"")
    merged = merge([one], two)
    assert (merged.played, merged.missing) == (4, 1)
    assert [line.split(": ")[0] for line in merged.left_out] == [str(shard)]
    assert shard.read_bytes() == (one / "rows" / shard.name).read_bytes()


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (None, "holds no study"),
        ("{", "not a manifest"),
        ({}, "'identity' is missing"),
        ({"identity": []}, "'identity' is not what a study writes there"),
        ({"identity": {}, "study": {}, "versions": {}, "chunks": "5"}, "'chunks' is not what a study writes there"),
        ({"identity": {}, "study": {}, "versions": {}, "chunks": [], "device": "cpu", "notes": {}}, "'notes' is not"),
        (
            {"identity": {}, "study": {}, "versions": {}, "chunks": [], "device": "", "notes": [1]},
            "'notes' is not what",
        ),
        (
            {"identity": {}, "study": {}, "versions": {}, "chunks": [5], "device": "", "notes": []},
            "'chunks' is not what",
        ),
        ({"identity": {"schema": 3}}, "in: rows of schema version 3; this wmjax reads version"),
    ],
)
def test_a_folder_without_a_manifest_of_a_study(tmp_path, manifest, words):
    folder = tmp_path / "in"
    folder.mkdir()
    if manifest is not None:
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        (folder / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=words):
        merge([folder], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_folders(tmp_path):
    with pytest.raises(InputError, match="no folders to merge"):
        merge([], tmp_path / "out")


def test_the_command_says_what_is_missing_and_ends_with_1(tmp_path, monkeypatch, capsys):
    one, two = parts(tmp_path)
    whole = make(tmp_path / "rest", {IDS[4]: rows(IDS[4])})
    reported = []
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(cli, "_report", reported.append)

    def call(*folders: Path) -> int:
        monkeypatch.setattr(sys, "argv", ["wmjax", "merge", *map(str, folders), "--out", str(tmp_path / "out")])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code

    assert call(one, two) == 1
    assert "4 chunks played, 0 failed, 1 missing" in capsys.readouterr().out
    assert reported == [tmp_path / "out"]
    assert read_manifest(tmp_path / "out")["command"][:2] == ["wmjax", "merge"]
    assert call(one, two, whole) == 0
    assert "5 chunks played, 0 failed, 0 missing" in capsys.readouterr().out
    (whole / "rows" / f"{IDS[4]}.parquet").write_bytes(b"x")
    assert call(whole, one) == 1
    said = capsys.readouterr()
    assert f"wmjax: left out: {whole}/rows/{IDS[4]}.parquet: not a readable Parquet file" in said.err
