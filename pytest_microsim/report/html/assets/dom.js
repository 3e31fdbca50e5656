// Elements. All text goes in as text: nothing of a report is ever parsed as HTML.

const CONTROL = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ufeff]" +
    "|[\\ud800-\\udbff](?![\\udc00-\\udfff])|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]",
  "g",
);
const COLOURING = /\u001b\[[0-9;]*m/g;
const SVG = "http://www.w3.org/2000/svg";

/** Text without a terminal's colours, and with everything that would be invisible, or turn other text round, shown. */
function clean(text) {
  return String(text).replace(COLOURING, "").replace(CONTROL, shown);
}

function shown(character) {
  const code = character.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return code === 0x7f ? "\u2421" : `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
}

/** An element: attributes, listeners (onclick: function) and children; what is null or false is left out. */
function h(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for a part of a picture. */
function svg(name, attributes, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : clean(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child instanceof Node ? child : clean(child));
  }
}

/** A long name that breaks between its parts before it breaks anywhere. */
function breakable(name) {
  return name.split(/(?<=::|\/|_|\[|-)/).flatMap((part) => [part, h("wbr")]);
}

/** A list of terms and what they are; pairs without a value are left out. */
function facts(pairs, attributes) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", attributes || { class: "facts" }, known.map(([term, value]) => h("div", null, h("dt", null, term), h("dd", null, value))));
}

/** Lines of output as they were written; long ones scroll, by keyboard too. */
function output(title, text) {
  if (!text) return null;
  return h("section", { class: "output" }, h("h3", null, title),
    h("pre", { tabindex: "0", role: "group", "aria-label": title }, text));
}
