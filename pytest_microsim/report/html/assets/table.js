// Tables that sort by any column, and grow on demand: a thousand rows at once would keep a reader waiting.

const FIRST_ROWS = 50;
const MORE_ROWS = 500;

/**
 * columns: label, cell(row) and, to sort by it, value(row); numeric ones are aligned to the right. The first is the
 * row's name. sort is the column to begin with, descending if it begins with a minus sign; memory keeps what a reader
 * chose for a table that is made anew.
 */
function table({ caption, columns, rows, sort, limit = FIRST_ROWS, hideCaption = false, memory = {} }) {
  let order = memory.order || (sort ? { label: sort.replace(/^-/, ""), down: sort.startsWith("-") } : null);
  let visible = limit;
  const head = h("tr");
  const body = h("tbody");
  const more = h("p", { class: "more" });
  const status = h("span", { class: "unseen", role: "status" });

  function draw() {
    const sorted = order ? rows.slice().sort(comparing(columns.find((column) => column.label === order.label), order.down)) : rows;
    body.replaceChildren(...sorted.slice(0, visible).map((row) => h("tr", null, columns.map((column, at) =>
      h(at ? "td" : "th", { scope: at ? null : "row", class: column.numeric ? "number" : column.class }, column.cell ? column.cell(row) : column.value(row))))));
    for (const cell of head.children) {
      cell.setAttribute("aria-sort", order && cell.dataset.label === order.label ? (order.down ? "descending" : "ascending") : "none");
    }
    const left = rows.length - visible;
    more.replaceChildren(...(left > 0 ? [
      h("button", { type: "button", onclick: () => grow(visible + MORE_ROWS) }, `Show ${count(Math.min(left, MORE_ROWS))} more`),
      " ", h("span", { class: "quiet" }, `${count(left)} not shown`)] : []));
  }

  function grow(to) {
    visible = to;
    draw();
    more.querySelector("button")?.focus();
  }

  for (const column of columns) {
    const cell = h("th", { scope: "col", class: column.numeric ? "number" : column.class, "data-label": column.label },
      column.value && sort !== undefined ? h("button", {
        type: "button",
        onclick: () => {
          order = memory.order = { label: column.label, down: order?.label === column.label ? !order.down : Boolean(column.numeric) };
          status.textContent = `sorted by ${column.label}, ${order.down ? "descending" : "ascending"}`;
          draw();
        },
      }, column.label) : column.label);
    head.append(cell);
  }
  draw();
  const scroller = h("div", { class: "scroller", tabindex: "0", role: "group", "aria-label": caption },
    h("table", null, h("caption", { class: hideCaption ? "unseen" : null }, caption), h("thead", null, head), body));
  return h("div", { class: "table" }, scroller, more, status);
}

/** Nothing sorts last in either direction. */
function comparing(column, down) {
  return (first, second) => {
    const one = column.value(first);
    const other = column.value(second);
    const empty = (one === null) - (other === null);
    if (empty) return empty;
    const order = typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other;
    return down ? -order : order;
  };
}
