// What the judges of whole groups say, and the copies that a gate has found.

const SHOWN_CLUSTERS = 12;
const SHOWN_SEEDS = 24;

function verdictState(verdict) {
  return verdict.outcome === "not assessed" || verdict.outcome === "off" || verdict.outcome === "inconclusive" ? "skipped" : verdict.outcome;
}

/** A verdict's message without the group's name in front, where that stands beside it already. */
function said(group, verdict) {
  return verdict.message.startsWith(`${group.name}: `) ? verdict.message.slice(group.name.length + 2) : verdict.message;
}

function verdictCard(group, verdict) {
  return h("article", { class: `verdict ${verdictState(verdict)}` },
    h("h3", null, badge(verdictState(verdict), verdict.outcome), " ", verdict.gate, verdict.metric ? `: ${verdict.metric}` : ""),
    h("p", null, said(group, verdict)),
    facts([["Likely cause", verdict.cause], ["Next step", verdict.next_step]], { class: "why" }));
}

/** Verdicts that say something in full, the others in one line each. */
function verdicts(group) {
  if (!group.verdicts.length) return h("p", { class: "quiet" }, "No gate judged this group.");
  const loud = group.verdicts.filter((verdict) => ["failed", "error", "warned"].includes(verdict.outcome));
  const quiet = group.verdicts.filter((verdict) => !loud.includes(verdict));
  return [loud.map((verdict) => verdictCard(group, verdict)), quiet.length ? h("ul", { class: "verdicts" }, quiet.map((verdict) =>
    h("li", null, badge(verdictState(verdict), verdict.outcome), " ", h("b", null, verdict.gate, verdict.metric ? `: ${verdict.metric}` : ""), " ", said(group, verdict)))) : null];
}

/** Seeds that are copies of each other: a bar for each cluster, its share of the group and its seeds. */
function clusters(group) {
  return group.verdicts.filter((verdict) => verdict.clusters.length && ["failed", "warned", "error"].includes(verdict.outcome)).map((verdict) => {
    const places = new Map(group.rollouts.seed.map((seed, index) => [seed, index]));
    const copies = verdict.clusters.reduce((sum, cluster) => sum + cluster.length, 0);
    const rest = verdict.n - copies;
    const row = (cluster, at) => h("tr", null,
      h("th", { scope: "row" }, `Copies ${at + 1}`), h("td", { class: "number" }, count(cluster.length)),
      h("td", null, shareBar(cluster.length / verdict.n)),
      h("td", { class: "seeds" }, cluster.slice(0, SHOWN_SEEDS).map((seed) => [places.has(seed) ? rolloutLink(group, places.get(seed)) : seed, " "]),
        cluster.length > SHOWN_SEEDS && `and ${count(cluster.length - SHOWN_SEEDS)} more`));
    return h("div", { class: "clusters" },
      h("h3", null, `Copies that ${verdict.gate} found`),
      h("p", null, `${count(verdict.n)} seeds amount to ${number(verdict.n_eff)} independent ones: `,
        `${plural(verdict.clusters.length, "set")} of copies${rest > 0 ? `, and ${plural(rest, "seed")} like no other` : ""}.`),
      h("div", { class: "scroller", tabindex: "0", role: "group", "aria-label": "Sets of copies" }, h("table", null,
        h("caption", { class: "unseen" }, "Sets of seeds that are copies of each other"),
        h("thead", null, h("tr", null, ["Set", "Seeds", "Share of the group", "Which"].map((label) => h("th", { scope: "col", class: label === "Seeds" ? "number" : null }, label)))),
        h("tbody", null, verdict.clusters.slice(0, SHOWN_CLUSTERS).map(row)))),
      verdict.clusters.length > SHOWN_CLUSTERS ? h("p", { class: "quiet" }, `and ${count(verdict.clusters.length - SHOWN_CLUSTERS)} smaller sets`) : null);
  });
}

function shareBar(share) {
  return [svg("svg", { class: "rate", width: 112, height: 10, "aria-hidden": "true" },
    svg("rect", { class: "track", width: 112, height: 10, rx: 1 }), svg("rect", { class: "share", width: Math.max(1, 112 * share), height: 10, rx: 1 })),
  " ", percent(share)];
}
