"""Clean and random returns are those of a study's episodes; a trained agent's card says what it is worth."""

from dataclasses import replace
from io import StringIO

import jax
import numpy as np
import pytest
from programs import QUICK
from rich.console import Console
from rich.markdown import Markdown
from scipy import stats

import wmjax
from wmjax.agents import zoo
from wmjax.core.errors import InputError
from wmjax.rollout import drivers
from wmjax.study import plan
from wmjax.study.device_worker import DeviceWorker
from wmjax.study.spec import Study
from wmjax.train import evaluate, sizes
from wmjax.train.card import Facts, Point, card, margin, sparkline, write_card
from wmjax.train.evaluate import clean_returns, random_returns
from wmjax.train.recipe import Recipe

TASK, AGENT = "dmc_cartpole_balance", "dmc_cartpole_balance_r2dreamer_1m"
SEEDS = (20, 21)
T = 8  # as many steps, and episodes, as other modules play: they share programs


@pytest.fixture(scope="module")
def agent():
    victim, params = wmjax.load(AGENT)
    return victim, jax.device_put(params, jax.devices()[0])  # where a study has them, for its program


def of_a_study(backend: str) -> list[float]:
    """The clean returns in the rows of a study."""
    study = Study(victims=(AGENT,), objectives=("random",), budgets=(0.1,), seeds=SEEDS)
    clean = [one for one in plan.episodes(study, {AGENT: zoo.card(AGENT)}) if one.objective == "clean"]
    programs = drivers._scan._cache_size()
    worker = DeviceWorker(jax.devices()[0], 1, {AGENT: zoo.locate(AGENT)})
    try:
        chunk = plan.Chunk(tuple(clean), len(clean), T, backend, "", "")
        returns = [row["return"] for row in worker.play(chunk, lambda _: False, lambda _: None).rows]
        assert drivers._scan._cache_size() == programs  # it is the same program
        return returns
    finally:
        worker.close()


@pytest.mark.parametrize("backend", ["device", "host"])
def test_clean_returns_are_those_of_a_studys_clean_rows(agent, backend):
    returns = clean_returns(*agent, TASK, backend, SEEDS, name=AGENT, steps=T)
    assert returns.dtype == np.float64
    np.testing.assert_array_equal(returns, of_a_study(backend))
    assert returns[0] != returns[1]


def test_one_program_serves_all_weights_and_seeds(agent, caplog):
    victim, params = agent
    first = clean_returns(*agent, TASK, "device", SEEDS, steps=T)
    braver = params | {"actor": jax.tree.map(lambda x: x * np.float32(3), params["actor"])}
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        others = clean_returns(victim, braver, TASK, "device", (3, 4), steps=T)
        again = clean_returns(victim, braver, TASK, "device", (3, 4), steps=T)
        messages = [entry.getMessage() for entry in caplog.records]
        assert [text for text in messages if text.startswith(("Compiling", "Finished tracing"))] == []
        jax.jit(lambda x: x + 1)(others)  # that they are counted at all
    assert any(entry.getMessage().startswith("Compiling") for entry in caplog.records)
    np.testing.assert_array_equal(others, again)
    assert (others != first).all()


def test_an_agent_that_breaks_has_no_return(agent):
    victim, params = agent
    broken = params | {"actor": jax.tree.map(lambda x: x * np.float32(np.nan), params["actor"])}
    assert np.isnan(clean_returns(victim, broken, TASK, "device", SEEDS, steps=T)).all()


def test_random_actions_are_drawn_for_each_seed_alone(monkeypatch):
    quick = jax.jit(evaluate._wander.__wrapped__, static_argnums=(0, 1), compiler_options=QUICK)
    monkeypatch.setattr(evaluate, "_wander", quick)
    returns = random_returns(TASK, SEEDS, steps=60)
    assert returns.dtype == np.float64
    np.testing.assert_allclose(returns, random_returns(TASK, SEEDS[::-1], steps=60)[::-1], rtol=1e-6)
    assert returns[0] != returns[1]
    assert ((returns > 0) & (returns < 2 * 60)).all()


def test_unknown_names_are_refused(agent):
    with pytest.raises(InputError, match="unknown backend"):
        clean_returns(*agent, TASK, "moon", SEEDS)
    with pytest.raises(InputError, match="unknown task"):
        random_returns("dmc_moon_walk", SEEDS)


# The card.

RETURNS = {"device": [990.0, 970.0, 980.0], "host": [985.0, 975.0, 992.0]}
POOR = {"device": [300.0, 350.0, 310.0], "host": [320.0, 330.0, 340.0]}
RANDOM = {"device": [250.0, 260.0, 280.0]}
CURVE = [Point(200 * i, None if i < 4 else 10.0 * i, 9.0 * i if i % 25 == 0 else None) for i in range(1, 101)]
FACTS = Facts(
    name="dmc_cartpole_balance_infonce_tiny",
    task=TASK,
    victim=sizes.victim("infonce", "tiny", 1),
    size="tiny",
    parameters=412_345,
    recipe=Recipe(batch_size=8, batch_length=32, train_ratio=64, env_num=8, lr=4e-4),
    seed=3,
    env_steps=200_000,
    updates=25_000,
    seconds=6000.0,
    machine="2 CPU cores",
    versions={"wmjax": "0.1", "jax": "0.10.2", "mujoco": "3.10.0"},
    command="wmjax train --task dmc_cartpole_balance --agent infonce --size tiny --seeds 3",
    seeds=range(20, 23),
    trained=RETURNS,
    untrained=POOR,
    random=RANDOM,
    curve=CURVE,
)


@pytest.mark.parametrize(
    "line",
    [
        "# dmc_cartpole_balance_infonce_tiny",
        "| agent | infonce (contrast), continuous actions |",
        "| task | dmc_cartpole_balance: 64x64 pixels from camera 0, action repeat 2, 500 agent steps an episode |",
        "| size | tiny: deter 256, hidden 64, 32 latent groups of 8 classes, 8, 12, 16, 16 channels, units 64; "
        "412,345 trainable parameters |",
        "| training | 200,000 environment steps in 8 episodes side by side, 25,000 updates of 8 x 32 frames, "
        "train ratio 64, learning rate 4e-4, seed 3 |",
        "| took | 1.7 hours on 2 CPU cores |",
        "| versions | wmjax 0.1, jax 0.10.2, mujoco 3.10.0 |",
        "| trained by | `wmjax train --task dmc_cartpole_balance --agent infonce --size tiny --seeds 3` |",
        "Clean return over 3 episodes, seeds 20 to 22, of 1000 at most:",
        "| trained | device | 980.0 | 10.0 | 970.0 |",
        "| trained | host | 984.0 | 8.5 | 975.0 |",
        "| untrained | device | 320.0 | 26.5 | 300.0 |",
        "| random actions | device | 263.3 | 15.3 | 250.0 |",
        "| 2,000 | 70.0 |  |",  # the first points have no return
        "| 20,000 | 955.0 | 900.0 |",
    ],
)
def test_the_card_has(line):
    assert line in card(FACTS).splitlines()


def test_the_margin_stands_in_the_card():
    text = " ".join(card(FACTS).split())
    device, host = 660 / np.sqrt(100 / 3 + 700 / 3), 654 / np.sqrt(73 / 3 + 100 / 3)
    assert f"660.0 ({device:.1f} standard errors) over the untrained agent on the device" in text
    assert f"654.0 ({host:.1f} standard errors) over the untrained agent on the host" in text
    assert "over random actions on the device." in text


def test_the_margin_is_welchs():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(3, 2, 20), rng.normal(1, 5, 7)
    gap, errors = margin(ours, theirs)
    assert gap == pytest.approx(ours.mean() - theirs.mean())
    assert errors == pytest.approx(stats.ttest_ind(ours, theirs, equal_var=False).statistic)
    assert margin([5.0, 5.0], [3.0, 3.0]) == (2.0, np.inf)
    assert margin([3.0, 3.0], [3.0, 3.0]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([0.0, 499.0, 500.0, 1000.0], "▁▄▅█"),
        ([None, 130.0, None], " ▂ "),
        ([0.0] * 60 + [1000.0] * 60, "▁" * 20 + "█" * 20),
    ],
)
def test_sparkline(values, line):
    assert sparkline(values, 1000.0) == line


def test_a_curve_has_ten_rows_at_most_and_may_be_missing():
    rows = lambda curve: card(replace(FACTS, curve=curve)).split("evaluation, last |\n")[-1].splitlines()[1:]  # noqa: E731
    assert len(rows(CURVE)) == 10
    assert len(rows(CURVE[:3])) == 3
    assert "Learning curve" not in card(replace(FACTS, curve=()))


def test_a_caveat_is_what_studies_print(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "_SHIPPED", tmp_path)
    path = tmp_path / f"{FACTS.name}.md"
    path.with_suffix(".safetensors").touch()
    write_card(path, FACTS)
    assert zoo.caveat(FACTS.name) is None
    words = (
        "This agent is half-trained: " + "its figures say nothing about how robust a trained agent is, " * 3 + "so far."
    )
    write_card(path, replace(FACTS, caveat=words))
    assert zoo.caveat(FACTS.name) == words
    assert max(map(len, path.read_text().split("|")[0].splitlines())) <= 120


def test_a_terminal_shows_the_card():
    out = StringIO()
    Console(file=out, width=100).print(Markdown(card(replace(FACTS, caveat="Half-trained."))))
    shown = out.getvalue()
    assert "Half-trained." in shown
    assert sparkline([point.training for point in CURVE], 1000.0).strip() in shown
