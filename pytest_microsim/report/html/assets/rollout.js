// One rollout: how to run it again, what failed, and what it left.

function copyable(command) {
  const code = h("code", { tabindex: "0" }, command);
  const said = h("span", { role: "status", class: "said" });
  async function copy() {
    try {
      await navigator.clipboard.writeText(clean(command));
    } catch {
      // Not every browser lets a file do that; then it is selected, to be copied by hand.
      getSelection().selectAllChildren(code);
      said.textContent = document.execCommand("copy") ? "copied" : "selected: press Ctrl-C";
      return;
    }
    said.textContent = "copied";
  }
  return h("div", { class: "command" }, code, h("button", { type: "button", onclick: copy }, "Copy"), said);
}

function neighbours(group, index) {
  if (!isBad(group.outcomes[index]) || group.bad.length < 2) return null;
  const at = group.bad.indexOf(index);
  return h("p", { class: "neighbours" },
    at > 0 ? h("a", { href: toRollout(group, group.bad[at - 1]), rel: "prev" }, `\u2190 ${seedName(group, group.bad[at - 1])}`) : null,
    h("span", { class: "quiet" }, `${at + 1} of ${group.bad.length} that did not pass`),
    at + 1 < group.bad.length ? h("a", { href: toRollout(group, group.bad[at + 1]), rel: "next" }, `${seedName(group, group.bad[at + 1])} \u2192`) : null);
}

/** A rollout's metrics beside the group's middle half, so that what is unusual is seen. */
function metricTable(group, index) {
  const rows = metricNames(group).map((name) => {
    const sorted = ascending(group.rollouts.metrics[name]);
    return { name, value: group.rollouts.metrics[name][index], low: quantile(sorted, 0.25), middle: quantile(sorted, 0.5), high: quantile(sorted, 0.75) };
  });
  if (!rows.length) return null;
  return table({
    caption: "Metrics of this rollout and of its group", rows, hideCaption: true,
    columns: [
      { label: "Metric", value: (row) => row.name },
      { label: "This seed", numeric: true, cell: (row) => h("b", null, number(row.value)) },
      { label: "Group's median", numeric: true, cell: (row) => number(row.middle) },
      { label: "Middle half of the group", cell: (row) => (row.low === null ? NONE : `${number(row.low)} to ${number(row.high)}`) },
    ],
  });
}

function video(medium_, files, name) {
  if (medium_) {
    const label = `Video of ${name}`;
    return h("figure", { class: "video" }, medium_.kind.startsWith("image/") ? h("img", { src: medium_.url, alt: label }) : h("video", { src: medium_.url, controls: true, loop: true, "aria-label": label }));
  }
  return files.video ? h("p", null, "The video is not in this file: ", h("code", null, files.video)) : null;
}

function episodeParts(episode, at, several) {
  const title = several ? `Episode ${at + 1}` : "Episode";
  return section(title, facts([
    ["Ended", episode.end], ["Steps", count(episode.steps)], ["Total reward", number(episode.reward)],
    ["Simulated", episode.simulated === null ? null : seconds(episode.simulated)], ["Wall time", milliseconds(episode.wall)],
    ["Late steps", episode.late ? count(episode.late) : null], ["Controller", episode.controller],
    ...Object.entries(episode.options).map(([name, value]) => [`Option ${name}`, value]),
  ]),
  output("Error", episode.error),
  episode.attempts.length ? h("div", { class: "verdict warned" }, h("h3", null, badge("warned", "The controller tried what it should not")), h("ul", null, episode.attempts.map((line_) => h("li", null, line_)))) : null,
  output(several ? `Standard output of episode ${at + 1}` : "Controller's standard output", episode.stdout),
  output(several ? `Standard error of episode ${at + 1}` : "Controller's standard error", episode.stderr));
}

async function rolloutPage({ group, index }) {
  const [all, data, medium_] = await Promise.all([packet(`data-details-${group.at}`), trajectories(group.at), medium(group.at, index)]);
  const name = seedName(group, index);
  const detail = all[index];
  return {
    title: `${name[0].toUpperCase()}${name.slice(1)}`, kind: h("a", { href: toGroup(group) }, group.name), bar: neighbours(group, index),
    content: [
      ...rolloutTop(group, index, detail),
      detail.failure ? section(group.outcomes[index] === "missed" ? "What it missed" : "Failure", h("pre", { tabindex: "0", role: "group", "aria-label": "Failure" }, detail.failure)) : null,
      medium_ || detail.files.video ? section("Video", video(medium_, detail.files, `${name} of ${group.name}`)) : null,
      metricNames(group).length ? section("Metrics", metricTable(group, index)) : null,
      data.columns.some((column) => column.curves.some((curve) => curve.rollout === index)) ? section("Trajectory", h("p", { class: "quiet" }, "This seed in front of the others of its group."), trajectoryCharts(group, data, index)) : null,
      detail.episodes.map((episode, at) => episodeParts(episode, at, detail.episodes.length > 1)),
      detail.console ? section("Guest's console", h("pre", { tabindex: "0", role: "group", "aria-label": "Guest's console" }, detail.console)) : null,
    ],
  };
}

function rolloutTop(group, index, detail) {
  return [
    facts([
      ["Outcome", badge(group.outcomes[index])], ["Took", seconds(group.rollouts.duration[index])],
      ["Worker", report.workers[group.rollouts.worker[index]]],
      ...detail.phases.map(([phase, duration]) => [phase[0].toUpperCase() + phase.slice(1), seconds(duration)]),
      ["Network", detail.island], ["Fingerprint", detail.fingerprint && h("code", null, detail.fingerprint)],
      ...Object.entries(detail.parameters).map(([key, value]) => [`Parameter ${key}`, value]),
      ...Object.entries(detail.files).map(([kind, path]) => [`File: ${kind}`, h("code", null, path)]),
    ]),
    detail.replay ? section("Run it again", copyable(detail.replay)) : null,
  ];
}
