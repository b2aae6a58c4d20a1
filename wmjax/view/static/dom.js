// Elements from data. Foreign text only ever becomes a text node: nothing here, or anywhere, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

/** Return an element with attributes (`on...` are listeners) and children (texts and elements; null ones are left out). */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Return an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return a number as a reader wants it: about four digits, a dash where there is none. */
export function shown(value, digits = null) {
  if (value === null || value === undefined) return "–";
  if (digits !== null) return value.toFixed(digits);
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e6) return value.toExponential(1);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

/** Return what the server answers; throws its own words where it refuses. */
export async function ask(path, body = undefined) {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer. Is `wmjax view` still running?");
  }
  const answer = await response.json().catch(() => ({ error: `The server answers with ${response.status}; its terminal says more.` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}
