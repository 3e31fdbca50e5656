// Addresses of the pages, after the # of the file's own.

const toGroup = (group) => `#/group/${group.at}`;
const toRollout = (group, index) => `#/group/${group.at}/rollout/${index}`;

function seedName(group, index) {
  const { seed, run, schedule } = group.rollouts;
  const which = schedule.length ? `, schedule ${schedule[index]}` : run[index] > 1 ? `, run ${run[index]}` : "";
  return `seed ${seed[index]}${which}`;
}

/** A group's link; without the name of its file, which stands below it. */
function groupLink(group, whole = false) {
  const file = group.location.replace(/:\d+$/, "");
  const name = !whole && group.name.startsWith(`${file}::`) ? group.name.slice(file.length + 2) : group.name;
  return h("a", { href: toGroup(group) }, breakable(name));
}

function rolloutLink(group, index, text) {
  const outcome = group.outcomes[index];
  return h("a", { href: toRollout(group, index), class: outcome, "aria-label": text ? null : `${seedName(group, index)}, ${outcome}` }, text || group.rollouts.seed[index]);
}

/** What an address leads to: the page's name, and the group and the rollout it is about. */
function parsedRoute(hash) {
  const words = hash.replace(/^#\/?/, "").split("/");
  const group = words[0] === "group" ? report.groups[Number(words[1])] : null;
  if (group && words[2] === "rollout" && Number(words[3]) < group.size) return { name: "rollout", group, index: Number(words[3]) };
  if (group) return { name: "group", group };
  return { name: PAGES.some(([name]) => name === words[0]) ? words[0] : "overview" };
}
