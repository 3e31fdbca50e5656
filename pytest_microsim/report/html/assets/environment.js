// What it ran in: the machine, the worlds, and every knob that changes a trajectory beside the seed.

function knobTable(pairs, caption) {
  if (!pairs.length) return h("p", { class: "quiet" }, "Nothing is known of it.");
  return table({ caption, rows: pairs, hideCaption: true, columns: [
    { label: "Knob", value: ([name]) => name }, { label: "Set to", cell: ([, value]) => h("code", null, value) },
  ] });
}

/** Knobs that are the same for all groups, and those that are not. */
function shared() {
  const names = [...new Set(report.groups.flatMap((group) => Object.keys(group.environment)))].sort();
  const same = [];
  const other = [];
  for (const name of names) {
    const values = new Map();
    for (const group of report.groups) {
      const value = group.environment[name] ?? "absent";
      values.set(value, [...(values.get(value) || []), group]);
    }
    if (values.size === 1) same.push([name, [...values.keys()][0]]);
    else other.push(...[...values].map(([value, groups]) => ({ name, value, groups })));
  }
  return { same, other };
}

function environmentPage() {
  const { same, other } = shared();
  const { host } = report;
  return {
    title: "Environment",
    content: [
      facts([["Command", h("code", null, report.command)], ["Started", moment(report.started)], ["Took", seconds(report.duration)],
        ["Exit status", String(report.exit)], ["pytest-microsim", report.version], ["Processor", `${host.cpu}, ${plural(host.cores, "core")}`],
        ["Memory", `${count(host.memory_mib)} MiB`], ["Kernel", host.kernel], ["System", host.system]], { class: "facts wide" }),
      section("Worlds", report.worlds.length ? table({ caption: "Worlds that rollouts were forked from", rows: report.worlds, hideCaption: true, columns: [
        { label: "World", value: (world) => world.name }, { label: "Engine", value: (world) => world.engine }, { label: "Isolation", value: (world) => world.isolation },
        { label: "Snapshot", cell: (world) => [world.warmed ? "warmed in this run" : "found in the cache", world.phases.map(([phase, duration]) => `, ${phase} ${seconds(duration)}`)] },
        { label: "Digest", cell: (world) => h("code", null, world.digest) },
        { label: "Found in it", class: "prose", cell: (world) => (world.findings.length ? h("ul", null, world.findings.map((text) => h("li", null, text))) : NONE) },
      ] }) : h("p", { class: "quiet" }, "No world was loaded.")),
      section("Knobs that differ between groups", other.length ? table({ caption: "Knobs that differ between groups", rows: other, hideCaption: true, columns: [
        { label: "Knob", value: (row) => row.name }, { label: "Set to", cell: (row) => h("code", null, row.value) },
        { label: "Groups", class: "prose", cell: (row) => [row.groups.slice(0, 5).map((group, at) => [at ? ", " : "", h("a", { href: toGroup(group) }, group.name)]), row.groups.length > 5 && ` and ${row.groups.length - 5} more`] },
      ] }) : h("p", { class: "quiet" }, "None: all groups ran in the same environment.")),
      section("Knobs of all groups", knobTable(same, "Knobs of all groups")),
    ],
  };
}
