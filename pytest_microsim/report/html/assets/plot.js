// A chart: uPlot brings the axes, the scales and zooming by dragging; what is in it is drawn by the caller.

const charts = new Set();

const COLOURS = ["text", "muted", "grid", "band", "accent", "passed", "failed", "missed", "error", "skipped",
  "queue", "fork", "episode", "exec", "warm-up", "test"];

/** Colours as they are now where an element stands: in the dark, and on paper, they are others. */
function colours(place) {
  const style = getComputedStyle(place);
  return Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/**
 * title, label (what a reader who cannot see it is told), height, x and y ({label, low, high, ticks: [[at, text]]}),
 * draw(plot, context, colours), near(plot, left, top) -> {text, go} of what is at a place, legend, alternative (a
 * function that makes the table behind the chart), width (fixed: on paper).
 */
function chart(options) {
  const canvas = h("div", { class: "canvas", role: "img", "aria-label": options.label });
  const figure = h("figure", { class: "chart" },
    options.title && h("figcaption", null, options.title), options.legend && legend(options.legend), canvas,
    options.alternative && !options.width && behind("Show as a table", options.alternative));
  const state = { plot: null, canvas, options };
  if (options.width) {
    requestPaper(state);
  } else {
    const observer = new ResizeObserver(() => {
      const width = Math.floor(canvas.clientWidth);
      if (!width) return;
      if (state.plot) {
        if (state.plot.width !== width) state.plot.setSize({ width, height: options.height });
      } else {
        state.plot = made(state, width);
        charts.add(state);
      }
    });
    observer.observe(canvas);
  }
  return figure;
}

function requestPaper(state) {
  papers.push(() => (state.plot = made(state, state.options.width)));
}

/** Charts on paper are drawn once all of it stands in the document, where its colours are known. */
const papers = [];

function made(state, width) {
  const { options, canvas } = state;
  let palette = colours(canvas);
  const axis = (which) => ({
    label: which.label, labelSize: which.label ? 20 : 0, labelFont: "12px system-ui, sans-serif", font: "12px system-ui, sans-serif",
    stroke: () => palette.muted, grid: { stroke: () => palette.grid, width: 1 }, ticks: { stroke: () => palette.grid, width: 1, size: 4 },
    ...(which.ticks && { splits: () => which.ticks.map(([at]) => at), values: () => which.ticks.map(([, text]) => text), grid: { show: false }, ticks: { show: false } }),
  });
  const { x, y } = options;
  const plot = new uPlot({
    width, height: options.height, legend: { show: false }, padding: [8, 12, 0, 0],
    cursor: { show: !options.width, x: false, y: false, points: { show: false }, drag: { x: true, y: false, setScale: true } },
    scales: { x: { time: false, auto: false, range: (_, low, high) => [low, high] }, y: { auto: false, range: [y.low, y.high] } },
    axes: [
      { ...axis(x), size: x.label ? 34 : 28, values: x.format && ((_, splits) => splits.map(x.format)) },
      { ...axis(y), size: y.size || 56, values: y.ticks ? axis(y).values : (_, splits) => splits.map((value) => number(value, 3)) },
    ],
    series: [{}, { show: true, paths: () => null, points: { show: false } }],
    hooks: {
      drawClear: [() => (palette = colours(canvas))],
      draw: [(self) => inside(self, () => options.draw(self, self.ctx, palette))],
    },
  }, [[x.low, x.high], [y.low, y.high]], canvas);
  if (options.near && !options.width) hovering(plot, options.near);
  return plot;
}

function inside(plot, draw) {
  const { left, top, width, height } = plot.bbox;
  plot.ctx.save();
  plot.ctx.beginPath();
  plot.ctx.rect(left, top, width, height);
  plot.ctx.clip();
  draw();
  plot.ctx.restore();
}

function hovering(plot, near) {
  const tip = h("div", { class: "tip", "aria-hidden": "true" });
  tip.hidden = true;
  plot.over.append(tip);
  let found = null;
  let pressed = 0;
  plot.over.addEventListener("mousemove", (event) => {
    const box = plot.over.getBoundingClientRect();
    const left = event.clientX - box.left;
    found = near(plot, left, event.clientY - box.top);
    tip.hidden = !found;
    plot.over.classList.toggle("leads", Boolean(found?.go));
    if (!found) return;
    tip.textContent = clean(found.text);
    tip.style.left = `${Math.max(0, Math.min(left + 12, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${Math.max(0, event.clientY - box.top - tip.offsetHeight - 8)}px`;
  });
  plot.over.addEventListener("mouseleave", () => (tip.hidden = true));
  plot.over.addEventListener("mousedown", (event) => (pressed = event.clientX));
  plot.over.addEventListener("click", (event) => {
    if (found?.go && Math.abs(event.clientX - pressed) < 3) location.hash = found.go;
  });
}

/** Something to open that is made when it is first opened. */
function behind(title, make) {
  const details = h("details", { class: "behind" }, h("summary", null, title));
  details.addEventListener("toggle", () => details.children.length === 1 && details.append(make()));
  return details;
}

/** Signs and what they stand for. */
function legend(entries) {
  return h("ul", { class: "legend" }, entries.map(([name, text, shape]) => h("li", null, h("span", { class: `sign ${name} ${shape || "dot"}`, "aria-hidden": "true" }), text)));
}

function redrawCharts() {
  for (const state of charts) {
    if (state.canvas.isConnected) state.plot.redraw(false, true);
    else charts.delete(state);
  }
}
