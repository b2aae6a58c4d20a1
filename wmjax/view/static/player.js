// Both rollouts in step: pictures out of two or three strips, the perturbation from the pixels that are shown.

import { $ } from "./dom.js";

const STEPS_A_SECOND = 25;
const GAINS = [1, 2, 4, 8, 16, 32, 64];

/** Return a player; `onstep` is called with each step that is shown. */
export function makePlayer(onstep) {
  let clean = null, attacked = null, steps = 0, at = 0, gain = 8, playing = false, last = 0;
  const contexts = Object.fromEntries(["clean", "camera", "seen", "change"].map((name) => [name, $(`tile-${name}`).getContext("2d", { willReadFrequently: name !== "clean" })]));
  const gains = $("gain");
  for (const value of GAINS) gains.append(new Option(value, value));

  function draw(context, episode, strip, t) {
    const { width, height, across, steps } = episode;
    const frame = Math.min(t, steps - 1);
    context.drawImage(strip, (frame % across) * width, Math.floor(frame / across) * height, width, height, 0, 0, width, height);
  }

  function drawChange() {
    const { width, height } = attacked;
    const before = contexts.camera.getImageData(0, 0, width, height);
    const after = contexts.seen.getImageData(0, 0, width, height);
    for (let i = 0; i < after.data.length; i += 1) {
      if (i % 4 !== 3) after.data[i] = 128 + gain * (after.data[i] - before.data[i]); // clamped by the array
    }
    contexts.change.putImageData(after, 0, 0);
  }

  function show(t) {
    at = Math.max(0, Math.min(steps - 1, t));
    const step = Math.floor(at);
    if (clean) draw(contexts.clean, clean, clean.strips.frames, step);
    draw(contexts.camera, attacked, attacked.strips.frames, step);
    draw(contexts.seen, attacked, attacked.strips.seen ?? attacked.strips.frames, step);
    drawChange();
    $("episode").classList.toggle("is-struck", attacked.attacked[Math.min(step, attacked.steps - 1)] === 1);
    $("scrub").value = step;
    $("scrub").setAttribute("aria-valuetext", `step ${step + 1} of ${steps}`);
    $("step").textContent = `${step + 1} / ${steps}`;
    onstep(step);
  }

  function play(on) {
    if (on && !attacked) return;
    if (on && at >= steps - 1) show(0);
    playing = on;
    $("play").setAttribute("aria-pressed", String(on));
    $("play").setAttribute("aria-label", on ? "Pause" : "Play");
    last = performance.now();
    if (on) requestAnimationFrame(tick);
  }

  function tick(now) {
    if (!playing) return;
    const before = Math.floor(at);
    at += ((now - last) / 1000) * STEPS_A_SECOND * Number($("speed").value);
    last = now;
    if (Math.floor(at) !== before) show(at);
    if (at >= steps - 1) play(false);
    else requestAnimationFrame(tick);
  }

  function mark() {
    const canvas = $("struck");
    canvas.width = steps;
    canvas.height = 1;
    const context = canvas.getContext("2d");
    context.fillStyle = getComputedStyle(canvas).color;
    attacked.attacked.forEach((struck, t) => { if (struck) context.fillRect(t, 0, 1, 1); });
  }

  gains.addEventListener("change", () => { gain = Number(gains.value); if (attacked) show(at); });
  $("play").addEventListener("click", () => play(!playing));
  $("scrub").addEventListener("input", (event) => { play(false); show(Number(event.target.value)); });
  document.addEventListener("keydown", (event) => {
    const own = event.target.closest(`input:not([type=range]), select, dialog${event.key === " " ? ", summary, button:not(#play)" : ""}`);
    if (own || event.altKey || event.ctrlKey || event.metaKey || !attacked) return;
    const far = event.shiftKey ? 10 : 1;
    const keys = {
      " ": () => play(!playing), ArrowRight: () => step(far), ArrowLeft: () => step(-far), Home: () => step(-steps), End: () => step(steps),
    };
    const step = (by) => { play(false); show(Math.floor(at) + by); };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (attacked) mark(); });

  return {
    show(t) { play(false); if (attacked) show(t); },
    /** Show a pair of episodes, the clean one may be missing, from step `t` on. */
    load(pair, t) {
      play(false);
      ({ clean, attacked } = pair);
      steps = Math.max(attacked.steps, clean?.steps ?? 0);
      for (const [name, episode] of Object.entries({ clean, camera: attacked, seen: attacked, change: attacked })) {
        const canvas = contexts[name].canvas;
        canvas.closest("figure").hidden = !episode;
        if (episode) Object.assign(canvas, { width: episode.width, height: episode.height });
      }
      $("scrub").max = steps - 1;
      mark();
      const change = largestChange(attacked);
      gain = GAINS.filter((value) => value * change <= 127).pop() ?? 1;
      gains.value = gain;
      show(t);
    },
    clear() { play(false); attacked = clean = null; },
  };
}

/** Return the largest change of any pixel over some of the frames, 0 to 255. */
function largestChange(episode) {
  if (!episode.strips.seen) return 1;
  const { width, height, across } = episode;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const struck = episode.attacked.flatMap((hit, t) => (hit ? [t] : []));
  let largest = 1;
  for (let i = 0; i < struck.length; i += Math.ceil(struck.length / 8)) {
    const [x, y] = [(struck[i] % across) * width, Math.floor(struck[i] / across) * height];
    const [before, after] = [episode.strips.frames, episode.strips.seen].map((strip) => {
      context.drawImage(strip, x, y, width, height, 0, 0, width, height);
      return context.getImageData(0, 0, width, height).data;
    });
    for (let j = 0; j < before.length; j += 1) largest = Math.max(largest, Math.abs(after[j] - before[j]));
  }
  return largest;
}
