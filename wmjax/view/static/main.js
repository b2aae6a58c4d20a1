// The page: which results, which cell, which episode; everything else shows what is chosen here.

import { budgetChart, frameChart } from "./charts.js";
import { $, ask, el, shown } from "./dom.js";
import { makeLaunch } from "./launch.js";
import { makePicker } from "./picker.js";
import { makePlayer } from "./player.js";

const CHARTS = [
  { title: "return so far", both: "return", floor: 0 },
  { title: "reward", both: "reward", floor: 0 },
  { title: "value", meaning: "The critic's value on the clean and on the attacked frame", series: [["clean", "clean", "value_clean"], ["attacked", "attacked", "value_adv"]] },
  { title: "policy KL", meaning: "KL(policy on the clean frame || policy on the attacked frame)", floor: 0, series: [["", "attacked", "policy_kl"]] },
  { title: "action change", meaning: "L1 distance of the action to the one the clean frame would have caused", floor: 0, series: [["", "attacked", "action_change"]] },
  { title: "policy entropy", meaning: "In nats, on the clean and on the attacked frame", series: [["clean", "clean", "entropy_clean"], ["attacked", "attacked", "entropy_adv"]] },
  { title: "drift of z", meaning: "Squared distance of the latent sample to the clean frame's", floor: 0, series: [["", "attacked", "drift_z"]] },
  { title: "drift of h", meaning: "Squared distance of h to that of a twin that saw every frame unattacked", floor: 0, series: [["", "attacked", "drift_h"]] },
];

const player = makePlayer((step) => { for (const chart of charts) chart.cursor(step); remember({ step }); });
const launch = makeLaunch((id) => { open(id); $("play").focus(); });
let charts = [], picker = null, overview = null, results = null, cell = null;
let asked = null, wanted = { seed: null, step: 0 }; // the cell that is on its way; what it is to show first
const place = new URLSearchParams(location.hash.slice(1));

// ---- what is chosen

/** Show the results of this id, and of them the cell and seed that are asked for. */
async function open(id, { cell: at = null, seed = null, step = 0 } = {}) {
  try {
    const listed = await ask("/api/results");
    const found = listed.find((one) => one.id === id) ?? listed[0];
    $("results").replaceChildren(...listed.map((one) => el("option", { value: one.id }, one.name)));
    $("results").value = results = found.id;
    overview = await ask(`/api/results/${results}`);
    document.title = `${overview.name} · wmjax view`;
    picker = makePicker(overview, (chosen) => show(chosen));
    wanted = { seed, step };
    picker.pick(at && picker.has(at) ? at : overview.first);
    trouble("");
  } catch (error) {
    trouble(error.message);
  }
}

/** Show a cell: the seed that was asked for where it has one, else a recorded one. */
async function show(id) {
  asked = id;
  try {
    const answer = await ask(`/api/results/${results}/cells/${id}`);
    if (asked !== id) return; // another was chosen meanwhile
    cell = answer;
  } catch (error) {
    trouble(error.message);
    return;
  }
  $("title").textContent = cell.title;
  $("about").textContent = cell.about;
  showNumbers();
  showCurve();
  showFindings();
  picker.seed.replaceChildren(...cell.episodes.map((one) => el("option", { value: one.seed }, `${one.seed}${one.attacked.trace ? "  ● recorded" : ""}`)));
  const first = cell.episodes.find((one) => String(one.seed) === String(wanted.seed)) ?? cell.episodes.find((one) => one.attacked.trace) ?? cell.episodes[0];
  picker.seed.value = first.seed;
  picker.seed.onchange = () => { wanted.seed = picker.seed.value; showEpisode(); };
  showEpisode();
}

async function showEpisode() {
  const episode = cell.episodes.find((one) => String(one.seed) === picker.seed.value);
  const shown = cell.id;
  const { step } = wanted;
  wanted.step = 0;
  remember({ results, cell: cell.id, seed: episode.seed, step });
  $("seed-return")?.replaceWith(returns(episode));
  const recorded = episode.attacked.trace !== null;
  $("episode").hidden = !recorded;
  $("unrecorded").hidden = recorded;
  if (!recorded) {
    player.clear();
    $("unrecorded").replaceChildren(...unrecorded(episode));
    return;
  }
  try {
    const [clean, attacked] = await Promise.all([episode.clean.trace, episode.attacked.trace].map(fetchEpisode));
    if (cell.id !== shown || String(episode.seed) !== picker.seed.value) return; // another was chosen meanwhile
    showCharts(clean, attacked);
    player.load({ clean, attacked }, step);
  } catch (error) {
    $("episode").hidden = true;
    trouble(error.message);
  }
}

async function fetchEpisode(id) {
  if (id === null) return null;
  const base = `/api/results/${results}/traces/${id}`;
  const episode = await ask(base);
  const load = async (what) => { const image = new Image(); image.src = `${base}/${what}.png`; await image.decode(); return image; };
  const [frames, seen] = await Promise.all([load("frames"), episode.seen_differs ? load("seen") : null]);
  return { ...episode, strips: { frames, seen } };
}

// ---- what is shown

function showNumbers() {
  const { largest } = cell;
  const digits = largest >= 10 ? 0 : 3;
  const interval = (one, places) => (one.low === null ? "" : ` [${shown(one.low, places)}, ${shown(one.high, places)}]`);
  const percent = (share) => (share === null ? "–" : `${shown(100 * share, 0)} %`);
  const line = (name, value, rest, meaning, kind = "") => el("div", { title: meaning, class: kind }, el("dt", {}, name), el("dd", {}, el("b", {}, value), el("span", { class: "faint" }, rest)));
  const facts = Object.entries(cell.facts).filter(([, value]) => value !== null);
  const failed = cell.episodes.filter((one) => one.error || one.attacked.return === null).length;
  $("numbers").replaceChildren(
    el("h2", {}, "Return"),
    el("dl", { class: "figures" },
      line("attacked", shown(cell.return.value, digits), interval(cell.return, digits), "Mean return over seeds, with its 95 % bootstrap interval", "attacked"),
      line("clean", shown(cell.clean.value, digits), interval(cell.clean, digits), "Mean return over seeds, with its 95 % bootstrap interval", "clean"),
      line("drop", percent(cell.drop), " of clean", "(clean - attacked) / (|clean| + 1), arXiv 2605.23220"),
      line("flips", percent(cell.facts.flip ?? null), " of frames", cell.meanings.flip),
      line("nAUC", cell.nauc ? shown(cell.nauc.value, 3) : "–", cell.nauc ? interval(cell.nauc, 3) : " one budget only", "Normalised area under the curve of return over budget: this victim, task and attack")),
    el("p", { id: "seed-return", class: "faint" }),
    el("p", { class: "faint" }, `${cell.episodes.length} ${cell.episodes.length === 1 ? "seed" : "seeds"}${failed ? `, of which ${failed} without a return` : ""}; the largest possible return is ${shown(largest, digits)}.`),
    facts.length ? el("details", {}, el("summary", {}, "Inside the attack"), el("dl", { class: "facts" }, facts.map(([name, value]) =>
      el("div", { title: cell.meanings[name] }, el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, shown(value)))))) : null);
}

function returns(episode) {
  const digits = cell.largest >= 10 ? 0 : 3;
  return el("p", { id: "seed-return", class: "faint" }, `This seed: ${shown(episode.clean.return, digits)} clean, ${shown(episode.attacked.return, digits)} attacked.`);
}

function showCharts(clean, attacked) {
  const steps = Math.max(attacked.steps, clean?.steps ?? 0);
  charts = CHARTS.map(({ title, meaning, both, floor, series }) => {
    const lines = both
      ? [...(clean ? [{ name: "clean", kind: "clean", values: clean[both] }] : []), { name: "attacked", kind: "attacked", values: attacked[both] }]
      : series.map(([name, kind, key]) => ({ name, kind, values: attacked.diagnostics[key] ?? [] }));
    if (!lines.some((line) => line.values.some((value) => value !== null))) return null;
    return frameChart({ title, meaning, floor, series: lines, steps, onscrub: (step) => player.show(step) });
  }).filter((chart) => chart !== null);
  $("charts").replaceChildren(...charts.map((chart) => chart.element));
}

function showCurve() {
  const { curve } = cell;
  const one = curve ? null : "There is no curve: nothing was attacked.";
  $("curve-about").textContent = one ?? `${cell.episodes.length === 1 ? "One seed, so no interval" : `Mean over ${cell.episodes.length} seeds, band: 95 % bootstrap interval`}. Frames attacked: ${curve.setting}. A point opens its cell.`;
  if (!curve) { $("curve").replaceChildren(); return; }
  const eps = curve.budgets[curve.attacks.find((attack) => attack.chosen)?.cells.indexOf(cell.id) ?? 0];
  $("curve").replaceChildren(budgetChart(curve, eps, Math.max(300, $("curve").clientWidth), (id) => picker.pick(id)));
}

function showFindings() {
  const fired = overview.checks.filter((check) => check.fired);
  const numbers = (finding) => Object.entries(finding.numbers).map(([name, value]) => `${name} ${shown(value)}`).join(", ");
  const here = cell.findings.map((finding) => el("li", { class: "fired here" }, el("b", {}, finding.name), ` here: ${numbers(finding)}.`, el("p", {}, finding.meaning)));
  const elsewhere = fired.map((check) => el("li", { class: "fired" }, el("details", {},
    el("summary", {}, el("b", {}, check.name), ` in ${check.fired} ${check.fired === 1 ? "cell" : "cells"} of the study`), el("p", {}, check.meaning),
    el("ul", { class: "cells" }, check.cells.map((one) => el("li", {}, one.id ? el("button", { type: "button", class: "link", onclick: () => picker.pick(one.id) }, one.title) : one.title))),
    check.fired > check.cells.length ? el("p", { class: "faint" }, `and ${check.fired - check.cells.length} more`) : null)));
  const silent = overview.checks.filter((check) => !check.fired && !check.unasked).length;
  const unasked = overview.checks.filter((check) => check.unasked);
  $("findings").replaceChildren(
    here.length ? "" : el("p", { class: "calm" }, "No check fired in this cell."),
    el("ul", { class: "findings" }, here, elsewhere),
    el("p", { class: "faint" }, `${silent} of ${overview.checks.length} checks are silent over the whole study.`),
    unasked.length ? el("details", { class: "faint" }, el("summary", {}, `${unasked.length} could not be asked`), el("ul", {}, unasked.map((check) => el("li", {}, `${check.name}: ${check.unasked}`)))) : "",
    ...overview.notes.map((note) => el("p", { class: "note" }, note)));
}

function unrecorded(episode) {
  const near = picker.recordedNear();
  const why = episode.error ? `This episode could not be played: ${episode.error}` : "This episode was not recorded frame by frame: a study keeps those of its first seed, clean and at its largest budget.";
  return [
    el("p", {}, why),
    el("div", { class: "buttons" },
      el("button", { type: "button", class: "primary", onclick: () => launch({ ...cell.form, seed: episode.seed }) }, "Play it now…"),
      near && near.id !== cell.id ? el("button", { type: "button", onclick: () => { wanted.seed = null; picker.pick(near.id); } }, "Show the nearest recorded cell") : null),
  ];
}

// ---- around it

function trouble(message) {
  $("trouble").textContent = message;
  $("trouble").hidden = !message;
}

/** Keep in the address what is shown: it can be reloaded, and kept as a bookmark. */
let pending = null;
function remember(changes) {
  for (const [name, value] of Object.entries(changes)) place.set(name, value);
  clearTimeout(pending);
  pending = setTimeout(() => history.replaceState(null, "", `#${place}`), 300);
}

$("results").addEventListener("change", () => open($("results").value));
$("open-launch").addEventListener("click", () => launch(cell ? { ...cell.form, seed: picker.seed.value } : {}));
let drawn = 0;
new ResizeObserver(([entry]) => {
  if (cell && Math.abs(entry.contentRect.width - drawn) > 4) showCurve();
  drawn = entry.contentRect.width;
}).observe($("curve"));

open(place.get("results"), { cell: place.get("cell"), seed: place.get("seed"), step: Number(place.get("step")) || 0 });
