// The first page: what the run came to, what needs attention, and all groups.

const ATTENTION = 8;
const CHIPS = 4;

function totals() {
  const sum = {};
  for (const group of report.groups) for (const [outcome, number_] of Object.entries(group.counts)) sum[outcome] = (sum[outcome] || 0) + number_;
  return sum;
}

function runFacts() {
  const sum = totals();
  const all = Object.values(sum).reduce((one, other) => one + other, 0);
  const failed = report.groups.filter((group) => group.state === "failed").length;
  const worlds = [...new Set(report.worlds.map((world) => `${world.isolation} (${world.engine})`))];
  return facts([
    ["Groups", failed ? [badge("failed", `${count(failed)} of ${count(report.groups.length)} failed`)] : badge("passed", `all ${count(report.groups.length)} passed`)],
    ["Rollouts", count(all)],
    ...["passed", "failed", "missed", "error", "skipped"].filter((outcome) => sum[outcome]).map((outcome) => [outcome[0].toUpperCase() + outcome.slice(1), badge(outcome, count(sum[outcome]))]),
    ["Took", `${seconds(report.duration)} in ${plural(report.processes, "process", "processes")}`],
    ["Isolation", worlds.join(", ")],
  ]);
}

/** Rollouts that failed on their own, as if a gate had said so. */
function ownFailures(group) {
  const failed = group.counts.failed + group.counts.error;
  return failed ? [{ outcome: "failed", gate: "", metric: "", message: `${count(failed)} of ${plural(group.size, "rollout")} failed` }] : [];
}

function attention() {
  const lines = report.groups.flatMap((group) => [...group.failing, ...ownFailures(group), ...group.warned].map((verdict) => ({ group, verdict })))
    .sort((one, other) => (one.verdict.outcome === "warned") - (other.verdict.outcome === "warned"));
  if (!lines.length) return null;
  return h("section", { "aria-labelledby": "attention" }, h("h2", { id: "attention" }, "Needs attention"),
    h("ul", { class: "attention" }, lines.slice(0, ATTENTION).map(({ group, verdict }) => h("li", null, badge(verdictState(verdict)), " ",
      groupLink(group, true), ` ${verdict.gate}${verdict.metric ? ` (${verdict.metric})` : ""}${verdict.gate ? ": " : ""}${said(group, verdict)}`))),
    lines.length > ATTENTION ? h("p", { class: "quiet" }, `and ${count(lines.length - ATTENTION)} more`) : null);
}

const STATE_ORDER = ["failed", "partial", "warned", "passed", "skipped"];

function groupTable(groups, limit, memory) {
  const hasBaseline = groups.some((group) => group.baseline);
  const before = (group) => group.baseline?.trends.find((trend) => trend.metric === "pass rate")?.baseline;
  return table({
    caption: "Groups of seeds", rows: groups, sort: "State", hideCaption: true, limit, memory,
    columns: [
      { label: "Group", class: "name", value: (group) => group.name, cell: (group) => [groupLink(group),
        h("div", { class: "quiet" }, group.scenario || group.location, group.tags.map((tag) => [" ", h("span", { class: "tag" }, tag)]))] },
      { label: "State", value: (group) => String(STATE_ORDER.indexOf(group.state)), cell: (group) => badge(group.state) },
      { label: "Seeds", numeric: true, value: (group) => group.seeds, cell: (group) => group.seeds === group.expected ? count(group.seeds) : `${count(group.seeds)} of ${count(group.expected)}` },
      { label: "Pass rate", class: "rates", value: (group) => group.rate ? group.rate.passed / group.rate.total : null, cell: (group) => [rateBar(group.rate, before(group)), h("div", null, rateText(group.rate))] },
      { label: "N_eff", numeric: true, value: (group) => group.nEff, cell: (group) => number(group.nEff) },
      hasBaseline && { label: "Baseline", value: (group) => group.baseline ? `${worstTrend(group.baseline)} ${group.baseline.standing}` : null, cell: (group) => baselineWord(group.baseline) },
      { label: "Fork", numeric: true, value: (group) => group.forkP50, cell: (group) => milliseconds(group.forkP50) },
      { label: "Episode", numeric: true, value: (group) => group.episodeP50, cell: (group) => milliseconds(group.episodeP50) },
      { label: "Did not pass", class: "seeds", value: (group) => group.bad.length, cell: (group) => [group.bad.slice(0, CHIPS).map((index) => [rolloutLink(group, index), " "]), group.bad.length > CHIPS && h("span", { class: "quiet" }, `+${count(group.bad.length - CHIPS)}`)] },
    ].filter(Boolean),
  });
}

function overviewPage() {
  const words = h("input", { type: "search", id: "words", placeholder: "name, file or tag", autocomplete: "off", oninput: () => draw() });
  const state = h("select", { id: "state", onchange: () => draw() }, h("option", { value: "" }, "any state"), STATE_ORDER.map((one) => h("option", { value: one }, one)));
  const holder = h("div");
  const memory = {};
  function draw() {
    const sought = words.value.toLowerCase();
    const found = report.groups.filter((group) => (!state.value || group.state === state.value) && [group.name, group.location, group.scenario, ...group.tags].some((text) => text.toLowerCase().includes(sought)));
    holder.replaceChildren(found.length ? groupTable(found, undefined, memory) : h("p", { class: "quiet" }, report.groups.length ? "No group is like that." : "No test of this run used a rollout."));
  }
  draw();
  return {
    title: "Overview",
    content: [
      runFacts(), attention(),
      report.baselines.length ? h("section", { "aria-labelledby": "baselines" }, h("h2", { id: "baselines" }, "Baselines"), h("ul", null, report.baselines.map((line_) => h("li", null, line_)))) : null,
      h("section", { "aria-labelledby": "groups" }, h("h2", { id: "groups" }, "Groups"),
        report.groups.length > 8 ? h("p", { class: "filter", role: "search" }, h("label", { for: "words" }, "Find "), words, " ", h("label", { for: "state" }, "in "), state) : null,
        holder, h("p", { class: "quiet" }, "Fork and Episode are medians. An interval of a pass rate is exact, of 95 %.")),
    ],
  };
}
