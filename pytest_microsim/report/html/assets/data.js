// What is in the file: packets of compressed data, read when something needs them.

const parsed = new Promise((done) => {
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", done, { once: true });
  else done();
});
const read = new Map();

async function element(id) {
  const found = document.getElementById(id);
  if (found) return found;
  await parsed; // it may stand further below
  return document.getElementById(id);
}

function decoded(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  return bytes;
}

/** The bytes of a packet, or null where the file has none of that name. */
async function bytesOf(id) {
  const found = await element(id);
  if (!found) return null;
  const stream = new Blob([decoded(found.textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

function once(id, make) {
  if (!read.has(id)) read.set(id, make());
  return read.get(id);
}

function packet(id) {
  return once(id, async () => {
    const bytes = await bytesOf(id);
    return bytes && JSON.parse(new TextDecoder().decode(bytes));
  });
}

/** A group's trajectories: columns, each with its curves; steps and values, NaN where there is a gap. */
function trajectories(at) {
  return once(`data-curves-${at}`, async () => {
    const bytes = await bytesOf(`data-curves-${at}`);
    if (!bytes) return { every: 1, columns: [] };
    const length = new DataView(bytes).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
    let offset = 4 + length + ((4 - (length % 4)) % 4);
    for (const column of header.columns) {
      const total = column.points.reduce((sum, points) => sum + points, 0);
      const steps = new Uint32Array(bytes, offset, total);
      offset += 4 * total;
      const levels = new Uint16Array(bytes, offset, total);
      offset += 2 * total + ((2 * total) % 4);
      column.curves = unpacked(column, steps, levels);
    }
    return header;
  });
}

function unpacked(column, differences, levels) {
  const scale = (column.high / 2 - column.low / 2) / 65534;
  let at = 0;
  return column.points.map((points, index) => {
    const steps = new Uint32Array(points);
    const values = new Float64Array(points);
    for (let point = 0, step = 0; point < points; point++, at++) {
      step += differences[at];
      steps[point] = step;
      values[point] = levels[at] === 0xffff ? NaN : 2 * (column.low / 2 + levels[at] * scale);
    }
    return { rollout: column.rollout[index], episode: column.episode[index], steps, values };
  });
}

/** A rollout's video as something to show, or null. */
async function medium(group, rollout) {
  return once(`media-${group}-${rollout}`, async () => {
    const found = await element(`media-${group}-${rollout}`);
    if (!found) return null;
    const kind = found.dataset.kind;
    return { kind, url: URL.createObjectURL(new Blob([decoded(found.textContent)], { type: kind })) };
  });
}

/** Add to a group what follows from its rollouts. */
function prepare(group, at, outcomes) {
  const rollouts = group.rollouts;
  group.at = at;
  group.size = rollouts.seed.length;
  group.outcomes = rollouts.outcome.map((index) => outcomes[index]);
  group.counts = Object.fromEntries(outcomes.map((outcome) => [outcome, group.outcomes.filter((one) => one === outcome).length]));
  group.failing = group.verdicts.filter((verdict) => verdict.outcome === "failed" || verdict.outcome === "error");
  group.warned = group.verdicts.filter((verdict) => verdict.outcome === "warned");
  const seeds = rollouts.run.filter((run) => run === 1).length;
  group.seeds = seeds;
  group.state = group.failing.length || group.counts.failed || group.counts.error ? "failed"
    : seeds < group.expected ? "partial" : group.warned.length ? "warned" : group.size === group.counts.skipped ? "skipped" : "passed";
  group.forkP50 = quantile(ascending(rollouts.fork), 0.5);
  group.episodeP50 = quantile(ascending(rollouts.episode), 0.5);
  group.bad = [];
  for (let index = 0; index < group.size; index++) if (isBad(group.outcomes[index])) group.bad.push(index);
  return group;
}

function isBad(outcome) {
  return outcome === "failed" || outcome === "error" || outcome === "missed";
}
