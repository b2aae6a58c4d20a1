// The selects of the axes. A choice on one axis keeps as much of the others as there are cells for.

import { $, el } from "./dom.js";

/** Return a picker of the cells of `overview`; `onpick` is called with the id of each cell that is chosen. */
export function makePicker(overview, onpick) {
  const { axes, cells } = overview;
  const byId = new Map(cells.map((cell) => [cell.id, cell]));
  let current = null;

  const selects = axes.map((axis, i) => el("select", { id: `axis-${axis.name}`, onchange: (event) => choose(i, Number(event.target.value)) },
    axis.values.map((value, at) => el("option", { value: at }, value))));
  const seed = el("select", { id: "axis-seed" });
  const field = (label, select, id) => el("label", { class: `axis axis-${id}` }, label, select);
  $("picker").replaceChildren(
    ...axes.flatMap((axis, i) => (axis.shown ? [field(axis.label, selects[i], axis.name)] : [])), field("seed", seed, "seed"));

  /** Of the cells at `value` on axis `i`, take the one that shares most with the current, first of all its first axes. */
  function choose(i, value) {
    const score = (cell) => cell.at.reduce((sum, at, axis) => sum + (at === current.at[axis] ? 1 + 1 / (axis + 2) : 0), 0) + (cell.recorded ? 0.01 : 0);
    const fitting = cells.filter((cell) => cell.at[i] === value);
    pick(fitting.reduce((best, cell) => (score(cell) > score(best) ? cell : best)).id);
  }

  function pick(id) {
    current = byId.get(id);
    current.at.forEach((at, i) => { selects[i].value = at; });
    onpick(id);
  }

  return {
    pick,
    seed,
    has: (id) => byId.has(id),
    /** The recorded cell that differs least from the current one; null where nothing is recorded. */
    recordedNear() {
      const alike = (cell) => cell.at.reduce((sum, at, axis) => sum + (at === current.at[axis] ? 1 : 0), 0);
      const recorded = cells.filter((cell) => cell.recorded);
      return recorded.length ? recorded.reduce((best, cell) => (alike(cell) > alike(best) ? cell : best)) : null;
    },
  };
}
