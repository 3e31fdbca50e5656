// Two runs: in what they differ, what broke, what was mended, and metric by metric.

function seedChips(group, seeds) {
  if (!seeds.length) return NONE;
  const places = group ? new Map(group.rollouts.seed.map((seed, index) => [seed, index])) : new Map();
  return [seeds.slice(0, 12).map((seed) => [places.has(seed) ? rolloutLink(group, places.get(seed)) : seed, " "]), seeds.length > 12 && h("span", { class: "quiet" }, `+${seeds.length - 12}`)];
}

/** Where as many seeds broke, the groups whose metrics got worse come first. */
function worstFirst(groups) {
  const order = ["worse", "shifted", "better", "indistinguishable"];
  return groups.slice().sort((one, other) => order.indexOf(one.trend) - order.indexOf(other.trend));
}

function passedOf(rate) {
  return rate ? `${count(rate.passed)} of ${count(rate.total)}` : NONE;
}

function comparisonPage() {
  const { before, now, environment, groups, only_before: gone, only_now: fresh } = report.comparison;
  const own = (row) => report.groups.find((group) => group.key === row.key);
  const apart_ = [...new Set([...environment, ...groups.flatMap((row) => row.environment)])];
  const telling_ = groups.filter((row) => row.trends.some((trend) => trend.trend !== "indistinguishable"));
  return {
    title: "Comparison",
    content: [
      facts([["Before", `${before.name}, ${moment(before.started)}`], ["Now", `${now.name}, ${moment(now.started)}`]]),
      environmentLines(apart_, "The environments differ"),
      apart_.length ? null : h("p", null, "Both ran in the same environment."),
      section("Groups", table({ caption: "Groups of both runs", rows: worstFirst(groups), sort: "-Broke", hideCaption: true, columns: [
        { label: "Group", class: "name", value: (row) => row.name, cell: (row) => (own(row) ? groupLink(own(row)) : row.name) },
        { label: "Trend", value: (row) => row.trend, cell: (row) => badge(TREND_STATES[row.trend] || "skipped", row.trend) },
        { label: "Paired seeds", numeric: true, value: (row) => row.paired, cell: (row) => count(row.paired) },
        { label: "Same episode", numeric: true, value: (row) => row.identical, cell: (row) => count(row.identical) },
        { label: "Before", numeric: true, value: (row) => row.before && row.before.passed / row.before.total, cell: (row) => passedOf(row.before) },
        { label: "Now", numeric: true, value: (row) => row.now && row.now.passed / row.now.total, cell: (row) => passedOf(row.now) },
        { label: "Broke", class: "seeds", value: (row) => row.broke.length, cell: (row) => seedChips(own(row), row.broke) },
        { label: "Mended", class: "seeds", value: (row) => row.mended.length, cell: (row) => seedChips(own(row), row.mended) },
      ] })),
      telling_.length ? section("Metrics that changed", telling_.map((row) => [h("h3", null, row.name), environmentLines(row.environment, "Environment"), trendsTable(row.trends.filter((trend) => trend.trend !== "indistinguishable"), `${row.name}, metric by metric`)]))
        : section("Metrics that changed", h("p", null, "None, beyond chance.")),
      gone.length ? section("Only before", h("ul", null, gone.map((name) => h("li", null, name)))) : null,
      fresh.length ? section("Only now", h("ul", null, fresh.map((name) => h("li", null, name)))) : null,
    ],
  };
}
