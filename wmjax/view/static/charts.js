// Two charts, drawn as SVG: numbers frame by frame with a cursor, and return over budget.

import { el, shown, svg } from "./dom.js";

const WIDE = 1000, HIGH = 100; // of a frame chart's own units, stretched to its place

/** Return a chart of `series` ({name, kind, values}) over `steps`, its axis from `floor` or lower; `onscrub` is called with the step under the pointer. */
export function frameChart({ title, meaning, floor = Infinity, series, steps, onscrub }) {
  const known = series.flatMap((one) => one.values.filter((value) => value !== null));
  let [low, high] = [Math.min(floor, ...known), Math.max(...known)];
  if (!(high > low)) [low, high] = [Math.min(low, floor), low + (floor < Infinity ? 1 : 0.5)];
  const x = (t) => (steps > 1 ? (t / (steps - 1)) * WIDE : WIDE / 2);
  const y = (value) => 4 + ((HIGH - 8) * (high - value)) / (high - low);
  const cursor = svg("line", { class: "cursor", y1: 0, y2: HIGH });
  const lines = series.map((one) => svg("path", { class: `line ${one.kind}`, d: path(one.values.map((value, t) => (value === null ? null : [x(t), y(value)]))) }));
  const zero = low < 0 && high > 0 ? svg("line", { class: "zero", x1: 0, x2: WIDE, y1: y(0), y2: y(0) }) : null;
  const drawing = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title} by agent step, from ${shown(low)} to ${shown(high)}` }, zero, lines, cursor);
  const values = series.map((one) => el("b", { class: one.kind }, ""));
  const scrub = (event) => {
    if (event.type === "pointerdown") drawing.setPointerCapture(event.pointerId);
    if (event.buttons !== 1) return;
    const box = drawing.getBoundingClientRect();
    onscrub(Math.round(Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * (steps - 1)));
  };
  drawing.addEventListener("pointerdown", scrub);
  drawing.addEventListener("pointermove", scrub);
  const legend = series.map((one, i) => el("span", { class: "key" }, el("i", { class: one.kind, "aria-hidden": "true" }), one.name ? `${one.name} ` : "", values[i]));
  const element = el("figure", { class: "chart" },
    el("figcaption", { title: meaning }, el("span", { class: "chart-title" }, title), legend),
    el("div", { class: "plot" }, el("span", { class: "high", "aria-hidden": "true" }, shown(high)), el("span", { class: "low", "aria-hidden": "true" }, shown(low)), drawing));
  return {
    element,
    cursor(t) {
      cursor.setAttribute("x1", x(t));
      cursor.setAttribute("x2", x(t));
      series.forEach((one, i) => { values[i].textContent = shown(one.values[Math.min(t, one.values.length - 1)]); });
    },
  };
}

/** Return a path through the points; a null one is a gap. */
function path(points) {
  let pen = "M";
  return points.map((point, i) => {
    if (!point) { pen = "M"; return ""; }
    const alone = pen === "M" && !points[i + 1]; // between gaps: a dot
    const text = `${pen}${point[0].toFixed(1)} ${point[1].toFixed(2)}${alone ? "h0.01" : ""}`;
    pen = "L";
    return text;
  }).join("");
}

/** Return the curve of every attack, the chosen one with its interval; `onpick` is called with the cell of a point. */
export function budgetChart(curve, eps, width, onpick) {
  const height = Math.max(240, Math.min(320, width * 0.55));
  const [left, right, top, foot] = [46, 118, 12, 42];
  const { budgets, labels, largest, attacks } = curve;
  const x = (value) => left + ((width - left - right) * value) / budgets.at(-1);
  const y = (value) => top + ((height - top - foot) * (largest - value)) / largest;
  const points = (values) => values.map((value, k) => (value === null ? null : [x(budgets[k]), y(value)]));
  const chosen = attacks.find((attack) => attack.chosen);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": summary(curve, chosen) });

  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(part * largest), y2: y(part * largest) }),
      svg("text", { class: "tick", x: left - 8, y: y(part * largest) + 4, "text-anchor": "end" }, shown(part * largest, largest >= 10 ? 0 : 2)));
  }
  let edge = Infinity;
  for (let k = budgets.length - 1; k >= 0; k -= 1) {
    if (x(budgets[k]) > edge - 38 && k) continue;
    if (k === 0 && x(0) > edge - 20) continue;
    edge = x(budgets[k]);
    drawing.append(svg("text", { class: "tick", x: x(budgets[k]), y: height - foot + 17, "text-anchor": "middle" }, labels[k]));
  }
  drawing.append(svg("text", { class: "tick", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "budget ε, of an image in [0, 1]"));

  const clean = attacks.map((attack) => attack.value[0]).find((value) => value !== null) ?? null;
  if (clean !== null) drawing.append(svg("line", { class: "clean-level", x1: left, x2: width - right, y1: y(clean), y2: y(clean) }));
  if (chosen) {
    const upper = points(chosen.high), lower = points(chosen.low);
    const band = upper.map((point, k) => [point, lower[k]]).filter(([high, low]) => high && low);
    if (band.length > 1) drawing.append(svg("path", { class: "band", d: `M${band.map(([high]) => high.join(" ")).join("L")}L${band.map(([, low]) => low.join(" ")).reverse().join("L")}Z` }));
  }
  const ordered = [...attacks.filter((attack) => !attack.chosen), ...(chosen ? [chosen] : [])];
  const ends = [];
  for (const attack of ordered) {
    const line = points(attack.value);
    const group = svg("g", { class: attack.chosen ? "curve chosen" : "curve" }, svg("path", { d: path(line), class: "line" }));
    line.forEach((point, k) => {
      if (!point) return;
      const id = attack.cells[k];
      const here = attack.chosen && budgets[k] === eps;
      const dot = svg("circle", { cx: point[0], cy: point[1], r: here ? 6.5 : 3.5, class: here ? "dot here" : "dot" });
      const target = svg("circle", { cx: point[0], cy: point[1], r: 11, class: id ? "target" : "target idle" },
        svg("title", {}, k ? `${attack.name}, ε = ${labels[k]}: ${shown(attack.value[k])}` : `clean: ${shown(attack.value[k])}`));
      if (id) target.addEventListener("click", () => onpick(id));
      group.append(dot, target);
    });
    const end = line.findLast((point) => point);
    if (end) ends.push({ name: attack.name, y: end[1], kind: attack.chosen ? "name chosen" : "name", strong: attack.chosen, id: attack.cells.findLast((id) => id), group });
    drawing.append(group);
  }
  if (clean !== null) ends.push({ name: "clean", y: y(clean), kind: "name clean" });
  for (const label of spread(ends, 14, height - foot)) {
    const text = svg("text", { class: label.id ? `${label.kind} target` : label.kind, x: width - right + 12, y: label.place + 4 }, label.name.length > 17 ? `${label.name.slice(0, 16)}…` : label.name);
    if (label.id) text.addEventListener("click", () => onpick(label.id));
    if (label.group) {
      for (const part of [text, label.group]) {
        part.addEventListener("pointerenter", () => { label.group.classList.add("hover"); text.classList.add("hover"); });
        part.addEventListener("pointerleave", () => { label.group.classList.remove("hover"); text.classList.remove("hover"); });
      }
    }
    drawing.append(text);
  }
  return drawing;
}

/** Return the labels with places at least `gap` apart, near their curves' ends; where all have no room, the chosen and clean. */
function spread(ends, gap, bottom) {
  const most = Math.floor(bottom / gap);
  const kept = ends.length > most ? ends.filter((end) => end.kind !== "name") : ends;
  kept.sort((a, b) => a.y - b.y);
  kept.forEach((end, i) => { end.place = i ? Math.max(end.y, kept[i - 1].place + gap) : Math.max(end.y, 8); });
  for (let i = kept.length - 1, edge = bottom; i >= 0; i -= 1) {
    kept[i].place = Math.min(kept[i].place, edge);
    edge = kept[i].place - gap;
  }
  return kept;
}

function summary(curve, chosen) {
  if (!chosen) return "Return over budget";
  const told = chosen.value.map((value, k) => `${shown(value)} at ${curve.labels[k]}`).join(", ");
  return `Return of ${chosen.name} over budget: ${told}; beside it ${curve.attacks.length - 1} other attacks`;
}
