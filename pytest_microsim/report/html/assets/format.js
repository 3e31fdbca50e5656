// Numbers and words.

const OUTCOME_MARKS = { passed: "\u2713", failed: "\u2717", missed: "\u25cb", error: "!", skipped: "\u2013", warned: "\u25b3", partial: "\u2026" };
const NONE = "\u2013";
const MINUS = "\u2212";

function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-3 ? value.toExponential(Math.max(0, digits - 2)) : String(Number(value.toPrecision(digits)));
  return text.replace("-", MINUS);
}

function signed(value) {
  return value > 0 ? `+${number(value)}` : number(value);
}

function count(value) {
  return value.toLocaleString("en-GB");
}

/** A share in percent; what is not all never reads 100 %. */
function percent(share) {
  if (share === null || share === undefined) return NONE;
  const digits = share === 0 || share === 1 ? 0 : 1;
  const shown = 100 * share;
  const text = share < 1 && shown > 99.9 ? "99.9" : share > 0 && shown < 0.1 ? "0.1" : shown.toFixed(digits);
  return `${text}\u00a0%`;
}

function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 1) return `${number(value * 1000, 3)} ms`;
  if (value < 100) return `${number(value, 3)} s`;
  const minutes = Math.floor(value / 60);
  const rest = String(Math.round(value % 60)).padStart(2, "0");
  if (rest === "60") return seconds(60 * (minutes + 1));
  return minutes < 60 ? `${minutes} min ${rest} s` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

/** A place on a clock that starts with the run; what lies between whole seconds only where the axis shows it. */
function clock(value) {
  if (value < 60) return `${number(value)} s`;
  const rest = value % 60;
  return `${Math.floor(value / 60)}:${rest < 9.9995 ? "0" : ""}${number(rest, 4)}`;
}

function milliseconds(value) {
  return value === null || value === undefined ? NONE : seconds(value / 1000);
}

function plural(amount, word, words = `${word}s`) {
  return `${count(amount)} ${amount === 1 ? word : words}`;
}

function moment(text) {
  return text.replace("T", " ").replace(/\.\d+/, "").replace("+00:00", " UTC");
}

/** Quantile of numbers in ascending order, between neighbours where it falls between them. */
function quantile(sorted, share) {
  if (!sorted.length) return null;
  const at = (sorted.length - 1) * share;
  const low = Math.floor(at);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (at - low);
}

function ascending(values) {
  return Float64Array.from(values.filter((value) => value !== null)).sort();
}

/** An outcome, or a state, as a sign and a word: never by colour alone. */
function badge(state, text) {
  return h("span", { class: `badge ${state.replace(/[^a-z]/g, "-")}` }, h("span", { "aria-hidden": "true" }, OUTCOME_MARKS[state] || "\u2022"), ` ${text || state}`);
}
