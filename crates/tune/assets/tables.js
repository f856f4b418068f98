"use strict";
// Tables that sort by their headers, by mouse and by keyboard.

/**
 * A table. A column is { name, cell(row) -> node or text, key(row) -> number or text, numeric, hint }; one without a
 * key does not sort. `sortedBy` is the name of the column the rows come sorted by, smallest first. Rows for which
 * `last(row)` holds stay below the others in every order.
 */
function sortableTable({ id, caption, columns, rows, rowClass, last, sortedBy }) {
  const body = el("tbody");
  const heads = columns.map((column) => headCell(column));
  const table = el("table", { id }, el("caption", {}, caption), el("thead", {}, el("tr", {}, heads)), body);
  const lines = rows.map((row) => ({ row, line: tableLine(columns, row, rowClass) }));
  body.append(...lines.map(({ line }) => line));
  const order = { name: null, up: true };
  const mark = () => columns.forEach((column, index) => {
    if (column.key) heads[index].setAttribute("aria-sort", column.name !== order.name ? "none" : order.up ? "ascending" : "descending");
  });
  const sort = (column) => {
    order.up = order.name === column.name ? !order.up : true;
    order.name = column.name;
    lines.sort((a, b) => compareRows(a.row, b.row, column, order.up, last));
    body.append(...lines.map(({ line }) => line));
    mark();
  };
  columns.forEach((column, index) => {
    if (column.key) heads[index].querySelector("button").addEventListener("click", () => sort(column));
  });
  order.name = sortedBy || null;
  mark();
  return el("div", { class: "table", role: "region", tabindex: "0", "aria-label": caption }, table);
}

function headCell(column) {
  const attributes = { scope: "col", class: column.numeric ? "number" : null, title: column.hint };
  if (!column.key) return el("th", attributes, column.name);
  return el("th", attributes, el("button", { type: "button" }, column.name, el("span", { class: "arrow", "aria-hidden": "true" })));
}

function tableLine(columns, row, rowClass) {
  const cells = columns.map((column, index) => {
    const content = [column.cell(row)].flat();
    return el(index === 0 ? "th" : "td", { scope: index === 0 ? "row" : null, class: column.numeric ? "number" : null }, content);
  });
  return el("tr", { class: rowClass ? rowClass(row) : null }, cells);
}

/** What has no value comes last in both directions. */
function compareRows(a, b, column, up, last) {
  if (last && last(a) !== last(b)) return last(a) ? 1 : -1;
  const [x, y] = [column.key(a), column.key(b)];
  const [hasX, hasY] = [x, y].map((value) => typeof value === "string" || isNumber(value));
  if (!hasX || !hasY) return hasX === hasY ? 0 : hasX ? -1 : 1;
  const order = typeof x === "string" ? String(x).localeCompare(String(y), "en", { numeric: true }) : x - y;
  return up ? order : -order;
}

/** A value with a smaller line below it. */
function twoLines(value, below) {
  return below ? [value, el("small", {}, below)] : [value];
}
