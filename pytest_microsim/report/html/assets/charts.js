// The kinds of charts, and the small pictures in tables.

const MARKER = 2.6;

/** A share with its interval, and its baseline's, on a line from 0 to 1. */
function rateBar(rate, before) {
  if (!rate) return null;
  const width = 112;
  const x = (share) => 2 + share * (width - 4);
  return svg("svg", { class: "rate", width, height: 14, viewBox: `0 0 ${width} 14`, "aria-hidden": "true" },
    svg("rect", { class: "track", x: 2, y: 5, width: width - 4, height: 4, rx: 2 }),
    svg("rect", { class: "band", x: x(rate.low), y: 3, width: Math.max(1, x(rate.high) - x(rate.low)), height: 8, rx: 1 }),
    before !== null && before !== undefined && svg("path", { class: "before", d: `M${x(before)} 0v14` }),
    svg("circle", { class: "at", cx: x(rate.passed / rate.total), cy: 7, r: 3 }));
}

function rateText(rate) {
  return rate ? `${percent(rate.passed / rate.total)} (${percent(rate.low)} to ${percent(rate.high)})` : NONE;
}

/** Low and high of numbers, with some room; a range of its own where they are all the same. */
function roomy(values, room = 0.04) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return [0, 1];
  const spread = high - low || 10 * (Math.abs(high) || 1);
  return [low - spread * room, high + spread * room];
}

/** Where a point lies beside its row's line: the same each time, and so that neighbours do not cover each other. */
function jitter(index) {
  return (((index * 0.6180339887) % 1) - 0.5) * 0.62;
}

/** All seeds of one metric, this run above its baseline; or of a parameter, which has none. */
function strip(group, name, { width, of = "metrics" } = {}) {
  const now = group.rollouts[of][name];
  const before = (of === "metrics" && group.baseline?.metrics[name]?.filter((value) => value !== null)) || [];
  const seen = now.filter((value) => value !== null);
  const [low, high] = roomy([...seen, ...before]);
  const rows = before.length ? [[1, "now"], [0, "baseline"]] : [[1, "now"]];
  const order = now.map((_, index) => index).filter((index) => now[index] !== null)
    .sort((one, other) => isBad(group.outcomes[one]) - isBad(group.outcomes[other]));
  return chart({
    title: name, height: before.length ? 132 : 92, width,
    label: `${name}: ${spreadText(seen)}${before.length ? `; baseline: ${spreadText(before)}` : ""}`,
    x: { low, high }, y: { low: before.length ? -0.55 : 0.45, high: 1.55, ticks: rows, size: 64 },
    draw(plot, context, palette) {
      const sorted = { 1: ascending(seen), 0: ascending(before) };
      const alpha = [crowded(seen.length, 250, 0.12, 0.6), crowded(group.bad.length, 250, 0.25, 1)];
      for (const [row] of rows) box(plot, context, palette, sorted[row], row);
      before.forEach((value, index) => spot(plot, context, palette.muted, value, jitter(index), "passed", alpha[0]));
      for (const index of order) {
        const outcome = group.outcomes[index];
        spot(plot, context, palette[outcome], now[index], 1 + jitter(index), outcome, alpha[Number(isBad(outcome))]);
      }
      for (const [row] of rows) median(plot, context, palette, sorted[row], row);
    },
    near(plot, left, top) {
      const index = nearest(order, left, top, (at) => [plot.valToPos(now[at], "x"), plot.valToPos(1 + jitter(at), "y")]);
      return index === null ? null : { text: `${seedName(group, index)}: ${number(now[index])}, ${group.outcomes[index]}`, go: toRollout(group, index) };
    },
    alternative: () => table({
      caption: `${name} over seeds`, rows: [["this run", seen], ...(before.length ? [["baseline", before]] : [])].map(([what, values]) => [what, ascending(values)]),
      columns: [
        { label: "Which", value: ([what]) => what },
        { label: "Seeds", numeric: true, value: ([, values]) => count(values.length) },
        ...[["Lowest", 0], ["Lower quartile", 0.25], ["Median", 0.5], ["Upper quartile", 0.75], ["Highest", 1]].map(([label, share]) =>
          ({ label, numeric: true, value: ([, values]) => number(quantile(values, share)) })),
      ],
    }),
  });
}

function spreadText(values) {
  const sorted = ascending(values);
  return sorted.length ? `${plural(sorted.length, "seed")}, median ${number(quantile(sorted, 0.5))}, from ${number(sorted[0])} to ${number(sorted.at(-1))}` : "no values";
}

function median(plot, context, palette, sorted, row) {
  if (sorted.length < 4) return;
  const [top, bottom] = [plot.valToPos(row + 0.42, "y", true), plot.valToPos(row - 0.42, "y", true)];
  context.fillStyle = palette.text;
  context.fillRect(plot.valToPos(quantile(sorted, 0.5), "x", true) - devicePixelRatio / 2, top, devicePixelRatio * 1.5, bottom - top);
}

/** The middle half as a band. */
function box(plot, context, palette, sorted, row) {
  if (sorted.length < 4) return;
  const [first, last] = [0.25, 0.75].map((share) => plot.valToPos(quantile(sorted, share), "x", true));
  const [top, bottom] = [plot.valToPos(row + 0.42, "y", true), plot.valToPos(row - 0.42, "y", true)];
  context.fillStyle = palette.band;
  context.fillRect(first, top, Math.max(last - first, 1), bottom - top);
}

/** A dot for what passed, a cross for what failed, a ring for what missed. */
function spot(plot, context, colour, x, y, outcome, alpha) {
  const [left, top, size] = [plot.valToPos(x, "x", true), plot.valToPos(y, "y", true), MARKER * devicePixelRatio];
  context.globalAlpha = alpha;
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 1.4 * devicePixelRatio;
  context.beginPath();
  if (outcome === "failed" || outcome === "error") {
    context.moveTo(left - size, top - size);
    context.lineTo(left + size, top + size);
    context.moveTo(left + size, top - size);
    context.lineTo(left - size, top + size);
    context.stroke();
  } else {
    context.arc(left, top, outcome === "missed" ? size : size * 0.8, 0, 2 * Math.PI);
    if (outcome === "missed") context.stroke();
    else context.fill();
  }
  context.globalAlpha = 1;
}

/** How opaque each of many things is, so that all of them together are about as dark as a few. */
function crowded(amount, few, least, most) {
  return Math.min(most, Math.max(least, (most * few) / (amount + 1)));
}

/** Which of some things lies nearest to a place, if one is near at all. */
function nearest(things, left, top, place, reach = 12) {
  let best = null;
  let least = reach * reach;
  for (const thing of things) {
    const [x, y] = place(thing);
    const distance = (x - left) ** 2 + (y - top) ** 2;
    if (distance < least) [best, least] = [thing, distance];
  }
  return best;
}

const OUTCOME_LEGEND = { passed: ["passed", "passed"], failed: ["failed", "failed", "cross"], missed: ["missed", "missed", "ring"], error: ["error", "error", "cross"] };

function outcomeLegend(group, line) {
  return Object.entries(OUTCOME_LEGEND).filter(([outcome]) => group.counts[outcome])
    .map(([outcome, entry]) => [entry[0], `${entry[1]} (${count(group.counts[outcome])})`, line ? "line" : entry[2]]);
}
