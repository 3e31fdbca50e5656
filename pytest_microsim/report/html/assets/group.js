// One group: how it was judged, how its seeds are spread, their trajectories, and all of its rollouts.

const FIRST_STRIPS = 6;

function section(title, ...children) {
  const id = title.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  return h("section", { "aria-labelledby": id }, h("h2", { id }, title), children);
}

function groupFacts(group) {
  return facts([
    ["State", badge(group.state)],
    ["Pass rate", group.rate ? [rateBar(group.rate, group.baseline?.trends.find((trend) => trend.metric === "pass rate")?.baseline), " ", rateText(group.rate)] : null],
    ["Seeds", group.seeds === group.expected ? count(group.seeds) : `${count(group.seeds)} of ${count(group.expected)}`],
    ["N_eff", group.nEff === null ? null : number(group.nEff)],
    ["World", group.world],
    ["Where", group.location],
    ["Tags", group.tags.length ? group.tags.map((tag) => [h("span", { class: "tag" }, tag), " "]) : null],
    ["Fork, episode", `${milliseconds(group.forkP50)}, ${milliseconds(group.episodeP50)} (medians)`],
  ]);
}

function metricNames(group) {
  return Object.keys(group.rollouts.metrics);
}

/** Metrics that differ between seeds; of the others one number says all. */
function spread(group) {
  const varied = [];
  const constant = [];
  for (const name of metricNames(group)) {
    const values = group.rollouts.metrics[name].filter((value) => value !== null);
    const both = new Set([...values, ...(group.baseline?.metrics[name] || []).filter((value) => value !== null)]);
    (both.size > 1 ? varied : constant).push([name, values[0] ?? null]);
  }
  return { varied: varied.map(([name]) => name), constant };
}

function strips(group) {
  const { varied, constant } = spread(group);
  if (!varied.length && !constant.length) return h("p", { class: "quiet" }, "No metric was recorded.");
  const grid = h("div", { class: "charts" });
  const all = h("button", { type: "button", onclick: () => draw(varied.length) }, `Show all ${varied.length} metrics`);
  function draw(shown) {
    grid.replaceChildren(...varied.slice(0, shown).map((name) => strip(group, name)));
    all.hidden = shown >= varied.length;
  }
  draw(FIRST_STRIPS);
  return [legend(outcomeLegend(group)), grid, h("p", { class: "more" }, all),
    constant.length ? h("p", { class: "quiet" }, "The same for every seed: ", constant.map(([name, value]) => `${name} = ${number(value)}`).join(", ")) : null];
}

/** What a scenario drew for each seed: where failures gather says what the robot cannot stand. */
function parameterStrips(group, width) {
  return Object.keys(group.rollouts.parameters).filter((name) => new Set(group.rollouts.parameters[name]).size > 1)
    .map((name) => strip(group, name, { width, of: "parameters" }));
}

function parameters(group) {
  const charts_ = parameterStrips(group);
  return charts_.length ? section("Parameters", legend(outcomeLegend(group)), h("div", { class: "charts" }, charts_)) : null;
}

function rolloutTable(group, caption, limit) {
  const names = metricNames(group).slice(0, 8);
  const rows = Array.from({ length: group.size }, (_, index) => index);
  const { rollouts } = group;
  const rank = { error: 0, failed: 1, missed: 2, passed: 3, skipped: 4 };
  const numeric = (label, values, cell) => ({ label, numeric: true, value: (index) => values[index], cell: (index) => (cell || number)(values[index]) });
  return table({
    caption, rows, sort: "Outcome", hideCaption: true, limit,
    columns: [
      { label: "Seed", value: (index) => rollouts.seed[index], cell: (index) => h("a", { href: toRollout(group, index) }, seedName(group, index)) },
      { label: "Outcome", value: (index) => String(rank[group.outcomes[index]]), cell: (index) => badge(group.outcomes[index]) },
      numeric("Took", rollouts.duration, seconds), numeric("Steps", rollouts.steps, count), numeric("Reward", rollouts.reward),
      ...names.map((name) => numeric(name, rollouts.metrics[name])),
      ...(rollouts.worker.some((worker) => report.workers[worker])
        ? [{ label: "Worker", value: (index) => report.workers[rollouts.worker[index]] || "" }] : []),
    ],
  });
}

async function groupPage({ group }) {
  const data = await trajectories(group.at);
  return {
    title: group.name, kind: "Group",
    content: [
      groupFacts(group), section("Verdicts", verdicts(group), clusters(group)),
      group.baseline ? section("Against the baseline", baselinePanel(group)) : null,
      section("Spread over seeds", strips(group)),
      parameters(group),
      section("Trajectories", legend(outcomeLegend(group, true)), trajectoryCharts(group, data)),
      section("Rollouts", rolloutTable(group, `Rollouts of ${group.name}`)),
      section("Environment", knobTable(Object.entries(group.environment), `What ${group.name} ran in`)),
    ],
  };
}
