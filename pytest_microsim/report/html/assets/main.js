// The frame around the pages, and the start.

const PAGES = [["overview", "Overview"], ["timeline", "Timeline"], ["environment", "Environment"], ["comparison", "Comparison"]];
let report = null;

function frame() {
  document.getElementById("top").replaceChildren(
    h("p", { class: "brand" }, h("span", { class: "product" }, "microsim"), " ", h("code", null, report.command)),
    h("nav", { "aria-label": "Report" }, h("ul", null, PAGES.filter(([name]) => name !== "comparison" || report.comparison).map(([name, title]) => h("li", null, h("a", { href: `#/${name}`, "data-page": name }, title))),
      h("li", { class: "print" }, h("button", { type: "button", onclick: () => prepareForPaper().then(() => print()) }, "Print")))));
  document.getElementById("foot").replaceChildren(h("p", null, `pytest-microsim ${report.version}, ${moment(report.started)}. This file needs no network. Charts: uPlot (MIT).`));
}

let asked = 0;

async function show(first) {
  const turn = ++asked;
  const route = parsedRoute(location.hash);
  const main = document.getElementById("main");
  main.setAttribute("aria-busy", "true");
  let page;
  try {
    page = await { overview: overviewPage, group: groupPage, rollout: rolloutPage, timeline: timelinePage, environment: environmentPage, comparison: report.comparison ? comparisonPage : overviewPage }[route.name](route);
  } catch (error) {
    page = { title: "This page cannot be shown", content: output("Why", error.stack || String(error)) };
    console.error(error);
  }
  if (turn !== asked) return; // another page was asked for meanwhile
  const heading = h("h1", { tabindex: "-1" }, page.title);
  main.replaceChildren();
  add(main, [h("div", { class: "heading" }, page.kind ? h("p", { class: "kind" }, page.kind) : null, heading, page.bar), page.content]);
  main.removeAttribute("aria-busy");
  document.title = `${clean(page.title)} \u2013 microsim`;
  for (const link of document.querySelectorAll("#top nav a")) {
    if (link.dataset.page === route.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!first) {
    scrollTo(0, 0);
    heading.focus({ preventScroll: true });
  }
}

async function start() {
  report = await packet("data-overview");
  report.groups.forEach((group, at) => prepare(group, at, report.outcomes));
  frame();
  await show(true);
  performance.mark("microsim-overview");
  addEventListener("hashchange", () => show(false));
  addEventListener("beforeprint", lay);
  addEventListener("afterprint", clear);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address is the page's
    document.getElementById("main").focus();
  });
  await parsed;
  (window.requestIdleCallback || setTimeout)(() => prepareForPaper().then(() => performance.mark("microsim-paper")));
}

start();
