// A group against its baseline. In what the two environments differ comes before any number.

const TREND_STATES = { better: "passed", worse: "failed", shifted: "warned", indistinguishable: "skipped" };

/** The worst trend of a group, to say in one word. */
function worstTrend(baseline) {
  return ["worse", "shifted", "better", "indistinguishable"].find((trend) => baseline.trends.some((one) => one.trend === trend)) || null;
}

function baselineWord(baseline) {
  if (!baseline) return h("span", { class: "quiet" }, NONE);
  const trend = worstTrend(baseline);
  return h("span", null, baseline.standing, trend && trend !== "indistinguishable" ? [", ", badge(TREND_STATES[trend], trend)] : null);
}

function trendsTable(trends, caption) {
  const numeric = (label, cell, value) => ({ label, numeric: true, cell, value });
  return table({
    caption, rows: trends, sort: "p, corrected", hideCaption: true,
    columns: [
      { label: "Metric", value: (row) => row.metric },
      { label: "Trend", value: (row) => row.trend, cell: (row) => badge(TREND_STATES[row.trend] || "skipped", row.trend) },
      numeric("Baseline", (row) => number(row.baseline), (row) => row.baseline),
      numeric("Now", (row) => number(row.now), (row) => row.now),
      numeric("Difference", (row) => signed(row.difference), (row) => row.difference),
      { label: "Interval", cell: (row) => row.low === null ? NONE : `${signed(row.low)} to ${signed(row.high)} (${Math.round(100 * row.confidence)}\u00a0%)` },
      numeric("Effect", (row) => number(row.effect, 3), (row) => row.effect),
      numeric("p, corrected", (row) => number(row.p_corrected, 3), (row) => row.p_corrected),
      { label: "Better is", value: (row) => row.better },
      { label: "Test", value: (row) => row.test },
    ],
  });
}

function environmentLines(lines, title) {
  return lines.length ? h("div", { class: "verdict warned" }, h("h3", null, badge("warned", title)), h("ul", null, lines.map((line) => h("li", null, line)))) : null;
}

function baselinePanel(group) {
  const baseline = group.baseline;
  if (!baseline) return null;
  const places = new Map(group.rollouts.seed.map((seed, index) => [seed, index]));
  const counted = ["identical", "within", "different", "missing"].filter((name) => baseline[name]);
  const words = { identical: "identical bit by bit", within: "within tolerance", different: "different", missing: "missing in the baseline" };
  return [
    environmentLines(baseline.environment, "Recorded in another environment"),
    h("p", null, h("b", null, baseline.standing), counted.length ? `: ${counted.map((name) => `${plural(baseline[name], "seed")} ${words[name]}`).join(", ")}` : "",
      ". Recorded ", moment(baseline.recorded), " in ", h("code", null, baseline.path), "."),
    baseline.trends.length ? trendsTable(baseline.trends, `${group.name} against its baseline, metric by metric`) : null,
    baseline.variance.length ? h("div", null, h("h3", null, "Spread over seeds shrank"), h("ul", null, baseline.variance.map((text) => h("li", null, text)))) : null,
    baseline.differences.length ? [h("h3", null, "Where seeds first differ"), table({
      caption: "Where seeds first differ from the baseline", rows: baseline.differences, sort: "Step", hideCaption: true, limit: 20,
      columns: [
        { label: "Seed", value: (row) => row.seed, cell: (row) => (places.has(row.seed) ? rolloutLink(group, places.get(row.seed)) : row.seed) },
        { label: "Column", value: (row) => row.column },
        { label: "Step", numeric: true, value: (row) => row.step },
        { label: "Baseline", numeric: true, value: (row) => row.baseline, cell: (row) => number(row.baseline, 7) },
        { label: "Now", numeric: true, value: (row) => row.now, cell: (row) => number(row.now, 7) },
      ],
    })] : null,
  ];
}
