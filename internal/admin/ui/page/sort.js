// Headers that sort, by mouse and keyboard.
import { h } from "./dom.js";

export const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

/** turned is the order by a column, the other way round if it was the order before. */
export const turned = (sort, column) => ({ column, down: sort.column === column && !sort.down });

/** sortText is an order as a part of an address, null if it is the usual one. */
export const sortText = (sort, usual) => (sort.column === usual && !sort.down ? null : sort.column + (sort.down ? "-" : ""));

/** sortOf is the order of a part of an address, by the usual column if no column has that id. */
export function sortOf(text, columns, usual) {
  const column = (text ?? "").replace(/-$/, "");
  return columns.some((c) => c.id && c.id === column) ? { column, down: text.endsWith("-") } : { column: usual, down: false };
}

const orderOf = (sort, id) => (sort.column !== id ? "none" : sort.down ? "descending" : "ascending");

const button = (c, onSort) => h("button", { type: "button", "data-sort": c.id, "aria-label": `Sort by ${c.spoken ?? c.name}`, title: c.spoken ? `Sort by ${c.spoken}` : null, onclick: () => onSort(c) }, c.name);

/** heads draws the headers of a grid, and keeps the focus on one of them. */
export function heads(row, columns, sort, onSort) {
  const focused = document.activeElement?.dataset?.sort;
  const inside = row.contains(document.activeElement);
  row.replaceChildren(...columns.map((c) => h("span", { role: "columnheader", class: `${c.at} ${c.at.startsWith("r") ? "rate" : ""}`, "aria-sort": orderOf(sort, c.id) }, button(c, onSort))));
  if (inside) row.querySelector(`[data-sort="${focused}"]`)?.focus();
}

/** thead is the head of a table, and sorted has its rows in order. Columns with an id sort. */
export const thead = (columns, sort, onSort) => h("thead", {}, h("tr", {}, columns.map((c) => h("th", { scope: "col", class: c.right ? "right" : "", "aria-sort": c.id ? orderOf(sort, c.id) : null }, c.id ? button(c, onSort) : c.name))));

export function sorted(list, columns, sort) {
  const of = columns.find((c) => c.id && c.id === sort.column)?.of;
  return of ? [...list].sort((a, b) => (sort.down ? -1 : 1) * compare(of(a), of(b))) : list;
}
