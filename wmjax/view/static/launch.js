// The form that attacks an episode, and the bar that tells how far it is.

import { $, ask, el } from "./dom.js";

const FIELDS = [
  { name: "victim", label: "Victim", kind: "select" },
  { name: "task", label: "Task", kind: "select" },
  { name: "objective", label: "Objective", kind: "list", first: "vsa", hint: "or a mixture: vsa+0.5*pea" },
  { name: "optimizer", label: "Optimizer", kind: "list", first: "pgd" },
  { name: "steps", label: "Optimizer steps", kind: "number", first: 10, low: 1, high: 10000 },
  { name: "budget", label: "Budget ε", kind: "text", first: "8/255", hint: "8/255 or 0.03" },
  { name: "mode", label: "Mode", kind: "list", first: "full", hint: "which frames, as sparse(2)" },
  { name: "defense", label: "Defense", kind: "list", first: "none" },
  { name: "adaptive", label: "Attacker knows the defense", kind: "check" },
  { name: "noise", label: "Latent noise", kind: "select", first: "fresh" },
  { name: "seed", label: "Seed", kind: "number", first: 20, low: 0, high: 4294967295 },
  { name: "length", label: "Agent steps", kind: "number", first: 250, low: 1, high: 500 },
  { name: "region", label: "Where in the image", kind: "list", first: "all", rare: true },
  { name: "frames", label: "Attacked frames", kind: "select", first: "float", rare: true },
  { name: "draws", label: "Noise draws", kind: "number", first: 1, low: 1, high: 64, rare: true },
  { name: "source", label: "Made on", kind: "select", first: "self", rare: true },
];
/** The study's fields that messages begin with, by the form's. */
const STUDY = { victims: "victim", tasks: "task", objectives: "objective", optimizers: "optimizer", budgets: "budget", modes: "mode", defenses: "defense", seeds: "seed", episode_steps: "length", regions: "region", sources: "source" };

/** Return what opens the form; `onopen` is called with the id of the results to show. */
export function makeLaunch(onopen) {
  let inputs = null, began = 0, events = null;

  async function build() {
    const words = await ask("/api/vocabulary");
    inputs = Object.fromEntries(FIELDS.map((field) => [field.name, input(field, words)]));
    inputs.victim.addEventListener("change", () => {
      const task = words.victim[inputs.victim.value];
      if (task) inputs.task.value = task;
      inputs.task.disabled = Boolean(task);
    });
    const row = (field) => el("label", { class: `field field-${field.kind}` },
      el("span", {}, field.label), inputs[field.name],
      words[field.name] && field.kind === "list" ? el("datalist", { id: `known-${field.name}` }, words[field.name].map((name) => el("option", { value: name }))) : null,
      field.hint ? el("small", { class: "faint" }, field.hint) : null);
    const [usual, rare] = [FIELDS.filter((field) => !field.rare), FIELDS.filter((field) => field.rare)];
    $("launch-fields").replaceChildren(...usual.map(row), el("details", {}, el("summary", {}, "Rarely changed"), el("div", { class: "fields" }, rare.map(row))));
    $("launch-fields").removeAttribute("aria-busy");
    inputs.victim.dispatchEvent(new Event("change"));
  }

  function input({ name, kind, first, low, high }, words) {
    const known = name === "victim" ? Object.keys(words.victim) : words[name];
    if (kind === "select") {
      const select = el("select", { name }, known.map((value) => el("option", { value }, value)));
      if (first) select.value = first;
      return select;
    }
    if (kind === "check") return el("input", { name, type: "checkbox" });
    if (kind === "number") return el("input", { name, type: "number", value: first, min: low, max: high, inputmode: "numeric" });
    return el("input", { name, type: "text", value: first, spellcheck: "false", list: kind === "list" ? `known-${name}` : null });
  }

  function read() {
    return Object.fromEntries(FIELDS.map(({ name, kind }) => {
      const { value, checked } = inputs[name];
      if (kind === "check") return [name, checked];
      return [name, kind === "number" && value !== "" ? Number(value) : value];
    }));
  }

  function complain(message) {
    $("launch-wrong").textContent = message;
    $("launch-wrong").hidden = !message;
    $("launch-wrong").scrollIntoView({ block: "nearest" });
    for (const one of Object.values(inputs ?? {})) one.removeAttribute("aria-invalid");
    const field = message.match(/^(\w+)/)?.[1];
    const wrong = inputs?.[STUDY[field] ?? field];
    if (wrong) {
      wrong.closest("details")?.setAttribute("open", "");
      wrong.setAttribute("aria-invalid", "true");
      wrong.focus();
    }
  }

  async function submit(event) {
    event.preventDefault();
    if (!inputs) return;
    complain("");
    try {
      tell(await ask("/api/launch", read()));
    } catch (error) {
      complain(error.message);
      return;
    }
    began = 0;
    $("launch").close();
    listen();
  }

  function listen() {
    events?.close();
    events = new EventSource("/api/progress");
    events.onmessage = (event) => tell(JSON.parse(event.data));
  }

  function tell(state) {
    const over = !["running", "stopping"].includes(state.phase);
    if (over) events?.close();
    $("job").hidden = state.phase === "idle";
    $("job").dataset.phase = state.phase;
    const words = { running: state.done ? "Playing" : "Preparing", stopping: "Stopping after this step", done: "Played", failed: "Could not be played", stopped: "Stopped; what was finished is kept", idle: "" };
    const text = `${words[state.phase]}: ${state.what}${state.message ? `. ${state.message}` : ""}`;
    if ($("job-text").textContent !== text) $("job-text").textContent = text; // told once, not at every step
    $("job-bar").hidden = over;
    $("job-stop").hidden = state.phase !== "running";
    $("job-open").hidden = state.phase !== "done";
    if (state.total) $("job-bar").value = state.done / state.total;
    else $("job-bar").removeAttribute("value");
    $("job-left").textContent = over ? "" : left(state);
    if (state.phase === "done" && began) onopen(state.results);
    if (state.phase === "done") $("job-open").onclick = () => onopen(state.results);
    if (!began && !over) began = performance.now();
  }

  let mark = null;
  function left(state) {
    if (!state.total || !state.done) return "the first step compiles, which can take a minute";
    const now = performance.now();
    if (!mark || mark.what !== state.what || mark.done > state.done) mark = { what: state.what, done: state.done, at: now };
    const pace = (state.done - mark.done) / (now - mark.at);
    const seconds = pace > 0 ? Math.round((state.total - state.done) / pace / 1000) : null;
    return `${state.done} of ${state.total} agent steps${seconds === null ? "" : seconds >= 90 ? `, ${Math.round(seconds / 60)} min left` : `, ${seconds} s left`}`;
  }

  $("launch-form").addEventListener("submit", submit);
  $("launch-close").addEventListener("click", () => $("launch").close());
  $("job-stop").addEventListener("click", () => ask("/api/stop", {}).then(tell, () => {}));
  listen();

  /** Open the form, filled in with `values` by field. */
  return async function open(values = {}) {
    $("launch").showModal();
    try {
      if (!inputs) await build();
    } catch (error) {
      complain(error.message);
      return;
    }
    inputs.objective.focus();
    const found = [...inputs.victim.options].some((option) => option.value === values.victim);
    complain(values.victim && !found ? `The weights of ${values.victim} are not here; another victim is filled in.` : "");
    for (const [name, value] of Object.entries(values)) {
      const field = inputs[name];
      if (!field || value === null || value === undefined) continue;
      if (field.type === "checkbox") field.checked = value;
      else if (field.tagName !== "SELECT" || [...field.options].some((option) => option.value === String(value))) field.value = value;
    }
    inputs.victim.dispatchEvent(new Event("change")); // an agent that knows its task plays no other
  };
}
