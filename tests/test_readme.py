"""README's examples run as they stand; only the episodes are shortened, and what a reader brings is made up."""

import re
import tomllib
from pathlib import Path

import numpy as np

import wmjax
from wmjax import attacks
from wmjax.study.study_file import parse_study

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_study_file_is_valid():
    (study,) = blocks("toml")
    assert parse_study(tomllib.loads(study)).seeds == tuple(range(20, 40))


def test_the_python_examples_run():
    load, made, step, attack, device, defended = blocks("python")
    rng = np.random.default_rng(0)
    names = {
        "action": np.zeros((2, 1), np.float32),
        "image": rng.uniform(size=(2, 64, 64, 3)).astype(np.float32),
        "noise": rng.gumbel(size=(2, 32, 8)).astype(np.float32),
    }
    study = 'outcome = wmjax.run("study.toml", out="results")'
    assert study in load
    exec(load.replace(study, ""), names)
    exec(made.partition("outcome")[0], names | {"np": np}, given := {})
    assert given["study"].budgets == (0.0, 0.02, 0.04, 0.06, 0.08)
    exec(step.replace("batch=1", "batch=2"), names)
    exec(attack.replace('"sparse(2)", 500', '"sparse(2)", 4'), names)
    assert np.abs(names["attacked"] - names["image"]).max() <= 8 / 255
    assert names["played"].returns.shape == (2,)
    assert np.isfinite(names["played"].diagnostics["policy_kl"]).all()
    # The program of test_device_rollout.py, which takes the better part of a minute to compile.
    short = {"attack": attacks.Attack(attacks.optimizer("pgd", 2)), "mask": np.ones(8, bool)}
    exec(defended, names | {"threat": None}, guarded := {})
    assert guarded["adaptive"].adaptive
    assert guarded["threat"].strength.tolist() == [50, 50]
    exec(device, names | short | {"played": None}, played := {})
    assert played["played"].returns.shape == (2,)
    assert np.isfinite(played["played"].diagnostics["policy_kl"]).all()


def test_what_it_names_is_there():
    for name in re.findall(r"`wmjax\.([a-z_.]+?)[`(]", README):
        found = wmjax
        for part in name.split("."):
            found = getattr(found, part)
    root = Path(__file__).parents[1]
    for path in re.findall(r"`((?:wmjax|benchmarks|docs|notebooks)/[\w/.]+)`|\]\((docs/[^)]+)\)", README):
        assert (root / "".join(path)).exists(), path
