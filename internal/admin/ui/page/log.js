// The log of what the dataplane did: updates with their latency, repairs of drift, failures.
import { h, $, clock, span, plural } from "./dom.js";

const kinds = ["all", "programmed", "repaired", "failed"];

export class Log {
  #data;
  #kind = "all";

  constructor(data) {
    this.#data = data;
    data.addEventListener("changes", () => this.draw());
    this.draw();
  }

  draw() {
    const counts = (kind) => this.#data.changes.filter((c) => kind === "all" || c.kind === kind).length;
    const focused = document.activeElement?.dataset?.kind;
    $("#kinds").replaceChildren(...kinds.map((kind) => h("button", { type: "button", class: "chip", "data-kind": kind, "aria-pressed": kind === this.#kind ? "true" : "false", onclick: () => { this.#kind = kind; this.draw(); } }, `${kind} ${counts(kind)}`)));
    if (focused) $(`#kinds [data-kind="${focused}"]`)?.focus();
    const list = this.#data.changes.filter((c) => this.#kind === "all" || c.kind === this.#kind);
    $("#log").replaceChildren(
      h("thead", {}, h("tr", {}, ["Time", "What", "Latency", "Took", "Written"].map((t, i) => h("th", { scope: "col", class: i > 1 ? "right" : "" }, t)))),
      h("tbody", {}, list.map((c) => h("tr", { class: c.kind }, h("td", { class: "mono" }, clock(c.at)), h("td", {}, what(c)),
        h("td", { class: "right", title: "from the change in the cluster until the kernel had it" }, c.latency === undefined ? "–" : span(c.latency)), h("td", { class: "right" }, span(c.took)), h("td", { class: "right" }, c.written ?? 0)))),
      h("caption", {}, list.length ? `The last ${plural(list.length, "entry").replace("entrys", "entries")}` : "Nothing yet."));
  }
}

function what(c) {
  const label = h("span", { class: `label ${c.kind}` }, c.kind);
  const names = c.services ?? [], n = (c.changed ?? 0) + (c.removed ?? 0);
  if (c.kind === "repaired") return h("span", {}, label, ` ${plural(c.repaired, "object")} of the kernel that something else had changed`);
  const of = c.full ? `the whole state, ${plural(c.changed ?? 0, "Service")}` : n === 0 ? (c.revision ? "settings of the node" : "a verification") : names.join(", ") + (n > names.length ? ` and ${n - names.length} more` : "");
  return h("span", {}, label, " ", of, c.removed > 0 && h("span", { class: "muted" }, ` (${c.removed} removed)`), c.revision && h("span", { class: "muted" }, ` · revision ${c.revision}`), c.error && h("div", { class: "bad" }, c.error));
}
