// On paper: the overview, every group with its charts, and every rollout that did not pass, all expanded.

const PAPER_PX = 680;
const HALF_PX = 318;
const PAPER_GROUPS = 40;
const PAPER_ROLLOUTS = 60;
const PAPER_ROWS = 30;
let prepared = null;

/** What paper needs has to be at hand before a browser prints: it does not wait. */
function prepareForPaper() {
  prepared ??= (async () => {
    const ready = { lanes: [], curves: new Map(), details: new Map() };
    ready.lanes = (await packet("data-timeline")).filter((lane) => lane.spans.length);
    for (const group of report.groups.slice(0, PAPER_GROUPS)) {
      ready.curves.set(group.at, await trajectories(group.at));
      if (group.bad.length) ready.details.set(group.at, await packet(`data-details-${group.at}`));
      await new Promise((done) => setTimeout(done)); // somebody may be reading
    }
    return ready;
  })();
  prepared.then((ready) => (paperData = ready));
  return prepared;
}

let paperData = null;

function paperGroup(group) {
  const columns = telling(group, distinct(paperData?.curves.get(group.at)?.columns || []).filter((column) => column.low < column.high)).slice(0, FIRST_CHARTS);
  return h("article", { class: "sheet" }, h("h2", null, group.name), groupFacts(group), verdicts(group), clusters(group), baselinePanel(group),
    legend(outcomeLegend(group)), h("div", { class: "charts" }, spread(group).varied.slice(0, FIRST_STRIPS).map((name) => strip(group, name, { width: HALF_PX })),
      parameterStrips(group, HALF_PX),
      columns.map((column) => overlay(group, column, { width: HALF_PX }))), rolloutTable(group, group.name, PAPER_ROWS));
}

function paperRollout(group, index) {
  const detail = paperData?.details.get(group.at)?.[index];
  if (!detail) return null;
  return h("article", { class: "slip" }, h("h2", null, `${group.name}, ${seedName(group, index)}`), rolloutTop(group, index, detail),
    output("Failure", detail.failure),
    detail.episodes.map((episode, at) => episodeParts(episode, at, detail.episodes.length > 1)), output("Guest's console", detail.console));
}

function lay() {
  const paper = document.getElementById("paper");
  papers.length = 0;
  const bad = report.groups.slice(0, PAPER_GROUPS).flatMap((group) => group.bad.map((index) => [group, index]));
  const left = report.groups.reduce((sum, group) => sum + group.bad.length, 0) - Math.min(bad.length, PAPER_ROLLOUTS);
  const parts = [
    h("h1", null, document.querySelector("#top .brand").textContent), runFacts(), attention(), groupTable(report.groups, 400),
    report.comparison ? comparisonPage().content : null,
    report.groups.slice(0, PAPER_GROUPS).map(paperGroup),
    report.groups.length > PAPER_GROUPS ? h("p", null, `${plural(report.groups.length - PAPER_GROUPS, "further group")}: see the table, or the file.`) : null,
    paperData?.lanes.length ? h("article", { class: "sheet" }, h("h2", null, "Timeline"), timelineChart(paperData.lanes, PAPER_PX), phaseTable(paperData.lanes)) : null,
    h("article", { class: "sheet" }, h("h2", null, "Environment"), environmentPage().content),
    bad.slice(0, PAPER_ROLLOUTS).map(([group, index]) => paperRollout(group, index)),
    left > 0 ? h("p", null, `${plural(left, "further rollout")} that did not pass: see the file.`) : null,
  ];
  paper.hidden = false;
  paper.replaceChildren();
  add(paper, parts);
  // Only ids of the page that is read count.
  for (const element_ of paper.querySelectorAll("[id]")) element_.removeAttribute("id");
  for (const draw of papers.splice(0)) draw();
}

function clear() {
  const paper = document.getElementById("paper");
  paper.hidden = true;
  paper.replaceChildren();
}
