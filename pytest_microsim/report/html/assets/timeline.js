// When what happened: a lane for each world's warm-up and for each worker.

const PHASES = ["warm-up", "queue", "fork", "episode", "exec", "test"];
const LANE_PX = 30;

function timelineChart(lanes, width) {
  const end = Math.max(report.duration || 0, ...lanes.flatMap((lane) => [lane.spans.reduce((most, span) => Math.max(most, span[0] + span[1]), 0)]), 0.001);
  const rows = lanes.map((lane, at) => [lanes.length - 1 - at, laneName(lane)]);
  const longest = Math.max(...rows.map(([, text]) => text.length));
  // The whole of a test lies below its phases.
  const layered = lanes.map((lane) => lane.spans.slice().sort((one, other) => (other[2] === "test") - (one[2] === "test")));
  return chart({
    height: lanes.length * LANE_PX + 44, width,
    label: `What ran when, over ${seconds(end)}: ${lanes.map((lane) => `${laneName(lane)} ${plural(lane.spans.length, "span")}`).join(", ")}`,
    legend: PHASES.filter((phase) => lanes.some((lane) => lane.spans.some((span) => span[2] === phase))).map((phase) => [phase, phase, "block"]),
    x: { low: 0, high: end, format: clock },
    y: { low: -0.6, high: lanes.length - 0.4, ticks: rows, size: Math.min(150, 20 + 7 * longest) },
    draw(plot, context, palette) {
      layered.forEach((spans, lane) => {
        const row = lanes.length - 1 - lane;
        for (const [start, duration, phase] of spans) {
          const whole = phase === "test" ? 0.4 : 0.3;
          const [top, bottom] = [plot.valToPos(row + whole, "y", true), plot.valToPos(row - whole, "y", true)];
          const [left, right] = [plot.valToPos(start, "x", true), plot.valToPos(start + duration, "x", true)];
          context.fillStyle = palette[phase] || palette.muted;
          context.fillRect(left, top, Math.max(right - left - (right - left > 4 ? 1 : 0), 1), bottom - top);
        }
      });
    },
    near(plot, left, top) {
      const lane = layered[lanes.length - 1 - Math.round(plot.posToVal(top, "y"))];
      const at = plot.posToVal(left, "x");
      const slack = plot.posToVal(left + 1, "x") - at;
      const span = lane?.findLast(([start, duration]) => start - slack <= at && at <= start + duration + slack);
      if (!span) return null;
      const [, duration, phase, group, index] = span;
      const owner = report.groups[group];
      return { text: `${phase}, ${seconds(duration)}${owner ? `: ${owner.name}, ${seedName(owner, index)}` : ""}`, go: owner && toRollout(owner, index) };
    },
  });
}

function laneName(lane) {
  const name = lane.name || "main process";
  return lane.kind === "world" ? `${name.slice(0, 16)} (world)` : name;
}

function phaseTable(lanes) {
  const rows = lanes.flatMap((lane) => PHASES.flatMap((phase) => {
    const spans = lane.spans.filter((span) => span[2] === phase).map((span) => span[1]);
    return spans.length ? [{ lane: laneName(lane), phase, sorted: ascending(spans), total: spans.reduce((one, other) => one + other, 0) }] : [];
  }));
  const numeric = (label, value, cell) => ({ label, numeric: true, value, cell: (row) => cell(value(row)) });
  return table({
    caption: "Time by lane and phase", rows, sort: "Where", hideCaption: true,
    columns: [
      { label: "Where", value: (row) => row.lane },
      { label: "Phase", value: (row) => row.phase, cell: (row) => [h("span", { class: `sign block ${row.phase}`, "aria-hidden": "true" }), row.phase] },
      numeric("Times", (row) => row.sorted.length, count), numeric("Total", (row) => row.total, seconds),
      numeric("Share of the run", (row) => row.total / report.duration, percent),
      numeric("Median", (row) => quantile(row.sorted, 0.5), seconds), numeric("Longest", (row) => row.sorted.at(-1), seconds),
    ],
  });
}

async function timelinePage() {
  const lanes = (await packet("data-timeline")).filter((lane) => lane.spans.length);
  return {
    title: "Timeline",
    content: lanes.length ? [h("p", { class: "quiet" }, "Drag across the chart to look closer; a double click shows all of it. A click leads to the rollout."),
      timelineChart(lanes), section("Where the time went", phaseTable(lanes))] : h("p", { class: "quiet" }, "No times were recorded."),
  };
}
