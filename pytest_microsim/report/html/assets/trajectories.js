// All seeds' trajectories, one over the other.

const FIRST_CHARTS = 4;

/** Columns without those that only repeat another one, as a state that is observed does; that one has their names too. */
function distinct(columns) {
  const kept = [];
  for (const column of columns) {
    const twin = kept.find((one) => one.low === column.low && one.high === column.high && one.curves.length === column.curves.length && one.curves.every((curve, at) => alike(curve, column.curves[at])));
    if (twin) twin.also.push(column.name);
    else kept.push({ ...column, also: [] });
  }
  return kept;
}

function alike(one, other) {
  return one.rollout === other.rollout && one.episode === other.episode && one.values.length === other.values.length &&
    one.values.every((value, at) => Object.is(value, other.values[at]));
}

/** Columns, those first in which seeds that did not pass lie furthest from those that did. */
function telling(group, columns) {
  if (!group.bad.length || group.bad.length === group.size) return columns;
  const bad = new Set(group.bad);
  const scores = new Map(columns.map((column) => [column, apart(column, bad)]));
  return columns.slice().sort((one, other) => scores.get(other) - scores.get(one));
}

function apart(column, bad) {
  const sums = { true: [0, 0], false: [0, 0] };
  let squares = 0;
  let mean = 0;
  const middles = column.curves.map((curve) => {
    let total = 0;
    let points = 0;
    for (const value of curve.values) if (!Number.isNaN(value)) [total, points] = [total + value, points + 1];
    return points ? total / points : 0;
  });
  middles.forEach((middle, index) => {
    const side = sums[bad.has(column.curves[index].rollout)];
    side[0] += middle;
    side[1]++;
    mean += middle / middles.length;
  });
  for (const middle of middles) squares += (middle - mean) ** 2;
  const spread = Math.sqrt(squares / middles.length);
  return spread ? Math.abs(sums.true[0] / sums.true[1] - sums.false[0] / sums.false[1]) / spread : 0;
}

/** One column of all seeds; those that did not pass stand out, and one that is asked for stands out most. */
function overlay(group, column, { chosen = null, width = null, hidePassed = false } = {}) {
  const last = column.curves.reduce((most, curve) => Math.max(most, curve.steps.at(-1) || 0), 1);
  const [low, high] = roomy([column.low, column.high], 0.05);
  const passed = column.curves.length - column.curves.filter((curve) => isBad(group.outcomes[curve.rollout])).length;
  // Many lines over each other have to let through where most of them are.
  const faint = crowded(passed, 20, 0.03, 0.5);
  const strong = crowded(column.curves.length - passed, 40, 0.06, 0.85);
  const layers = [
    [(curve) => curve.rollout !== chosen && !isBad(group.outcomes[curve.rollout]), hidePassed ? 0 : faint, 1],
    [(curve) => curve.rollout !== chosen && isBad(group.outcomes[curve.rollout]), chosen === null ? strong : strong * 0.4, 1.3],
    [(curve) => curve.rollout === chosen, 1, 2.2],
  ];
  return chart({
    title: [column.name, ...column.also].join(" = "), height: 210, width,
    label: `${column.name} over the steps of ${plural(column.curves.length, "episode")}, from ${number(column.low)} to ${number(column.high)}`,
    x: { low: 0, high: last, label: "step" }, y: { low, high },
    draw(plot, context, palette) {
      for (const [belongs, alpha, thickness] of layers) {
        if (!alpha) continue;
        context.globalAlpha = alpha;
        context.lineWidth = thickness * devicePixelRatio;
        for (const curve of column.curves) {
          if (!belongs(curve)) continue;
          context.strokeStyle = curve.rollout === chosen ? palette.text : palette[group.outcomes[curve.rollout]];
          line(plot, context, curve);
        }
      }
      context.globalAlpha = 1;
    },
    near(plot, left, top) {
      const at = plot.posToVal(left, "x");
      const shown = hidePassed ? column.curves.filter((curve) => isBad(group.outcomes[curve.rollout])) : column.curves;
      const curve = nearest(shown, left, top, (one) => [left, plot.valToPos(valueAt(one, at), "y")]);
      return curve && { text: `${seedName(group, curve.rollout)}${curve.episode ? `, episode ${curve.episode + 1}` : ""}: ${number(valueAt(curve, at))} at step ${Math.round(at)}, ${group.outcomes[curve.rollout]}`, go: toRollout(group, curve.rollout) };
    },
    alternative: () => curveTable(group, column, chosen),
  });
}

function line(plot, context, curve) {
  context.beginPath();
  let drawing = false;
  for (let at = 0; at < curve.steps.length; at++) {
    const value = curve.values[at];
    if (Number.isNaN(value)) {
      drawing = false;
      continue;
    }
    const [x, y] = [plot.valToPos(curve.steps[at], "x", true), plot.valToPos(value, "y", true)];
    if (drawing) context.lineTo(x, y);
    else context.moveTo(x, y);
    drawing = true;
  }
  context.stroke();
}

/** A curve's value at a step, between its points; NaN before its first and after its last. */
function valueAt(curve, step) {
  let [low, high] = [0, curve.steps.length - 1];
  if (step < curve.steps[low] || step > curve.steps[high]) return NaN;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (curve.steps[middle] <= step) low = middle;
    else high = middle;
  }
  const share = (step - curve.steps[low]) / (curve.steps[high] - curve.steps[low] || 1);
  return curve.values[low] + (curve.values[high] - curve.values[low]) * share;
}

function curveTable(group, column, chosen) {
  const rows = column.curves.filter((curve) => chosen === null || curve.rollout === chosen).map((curve) => {
    const sorted = ascending(Array.from(curve.values, (value) => (Number.isNaN(value) ? null : value)));
    return { curve, low: sorted[0] ?? null, high: sorted.at(-1) ?? null, first: curve.values[0], last: curve.values.at(-1) };
  });
  const numeric = (label, value) => ({ label, numeric: true, value, cell: (row) => number(value(row)) });
  return table({
    caption: `${column.name} of each episode`, rows, sort: "Seed",
    columns: [
      { label: "Seed", value: (row) => group.rollouts.seed[row.curve.rollout], cell: (row) => rolloutLink(group, row.curve.rollout) },
      { label: "Outcome", value: (row) => group.outcomes[row.curve.rollout], cell: (row) => badge(group.outcomes[row.curve.rollout]) },
      numeric("First", (row) => row.first), numeric("Lowest", (row) => row.low), numeric("Highest", (row) => row.high), numeric("Last", (row) => row.last),
      { label: "Last step", numeric: true, value: (row) => row.curve.steps.at(-1) ?? null },
    ],
  });
}

/** The charts of a group, or of one of its rollouts, as far as they are wanted at first. */
function trajectoryCharts(group, data, chosen = null) {
  if (!data.columns.length) return h("p", { class: "quiet" }, "No trajectory was recorded for this report.");
  const found = distinct(data.columns);
  const columns = telling(group, found.filter((column) => column.low < column.high));
  const constant = found.filter((column) => column.low === column.high);
  const grid = h("div", { class: "charts" });
  const hide = h("input", { type: "checkbox", onchange: () => draw() });
  const all = h("button", { type: "button", onclick: () => { shown = columns.length; draw(); } }, `Show all ${columns.length} columns`);
  let shown = FIRST_CHARTS;
  function draw() {
    grid.replaceChildren(...columns.slice(0, shown).map((column) => overlay(group, column, { chosen, hidePassed: hide.checked })));
    all.hidden = shown >= columns.length;
  }
  draw();
  const mixed = group.bad.length && group.bad.length < group.size;
  return h("div", null,
    mixed ? h("p", { class: "quiet" }, "Columns come first in which the seeds that did not pass lie furthest from the others. ",
      h("label", null, hide, " hide those that passed")) : null,
    data.every > 1 ? h("p", { class: "quiet" }, `To keep this file small, curves of seeds that passed have every ${data.every}th of their points.`) : null,
    grid, h("p", { class: "more" }, all),
    constant.length ? h("p", { class: "quiet" }, "The same at every step of every seed: ", constant.map((column) => `${column.name} = ${number(column.low)}`).join(", ")) : null);
}
