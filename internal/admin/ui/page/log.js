// The log of what the dataplane did: updates with their latency, repairs of drift, failures.
import { h, $, clock, pathOf, plural, span } from "./dom.js";
import { sorted, sortOf, sortText, thead, turned } from "./sort.js";

const kinds = ["all", "programmed", "repaired", "failed"];

const columns = [
  { id: "time", name: "Time", of: (g) => -g.list[0].number, spoken: "time, newest first" },
  { name: "What" },
  { id: "latency", name: "Latency", of: (g) => -(g.list[0].latency ?? -1), spoken: "latency, longest first", right: true },
  { id: "took", name: "Took", of: (g) => -g.list[0].took, spoken: "duration, longest first", right: true },
  { id: "written", name: "Written", of: (g) => -(g.list[0].written ?? 0), spoken: "objects written, most first", right: true },
];

export class Log {
  #data;
  #kind = "all";
  #sort = { column: "time", down: false };
  #onState;
  #open = new Set(); // numbers of the first entries of groups that are shown in full

  /** onState is called when the kind or the order has changed. */
  constructor(data, onState) {
    this.#data = data;
    this.#onState = onState;
    data.addEventListener("changes", () => this.draw());
    this.draw();
  }

  /** query is the kind and the order, as part of an address. */
  query() {
    const q = new URLSearchParams(), sort = sortText(this.#sort, "time");
    if (this.#kind !== "all") q.set("kind", this.#kind);
    if (sort) q.set("sort", sort);
    return q.size ? `?${q}` : "";
  }

  /** restore takes the kind and the order from an address. */
  restore(q) {
    this.#kind = kinds.includes(q.get("kind")) ? q.get("kind") : "all";
    this.#sort = sortOf(q.get("sort"), columns, "time");
    this.draw();
  }

  #set(kind, sort) {
    [this.#kind, this.#sort] = [kind, sort];
    this.draw();
    this.#onState();
  }

  #toggle(first) {
    if (!this.#open.delete(first)) this.#open.add(first);
    this.draw();
  }

  draw() {
    const counts = (kind) => this.#data.changes.filter((c) => kind === "all" || c.kind === kind).length;
    const at = document.activeElement?.dataset, focused = ["kind", "sort", "first"].find((name) => at?.[name] !== undefined), value = at?.[focused];
    $("#kinds").replaceChildren(...kinds.map((kind) => h("button", { type: "button", class: "chip", "data-kind": kind, "aria-pressed": kind === this.#kind ? "true" : "false", onclick: () => this.#set(kind, this.#sort) }, `${kind} ${counts(kind)}`)));
    const groups = sorted(grouped(this.#data.changes.filter((c) => this.#kind === "all" || c.kind === this.#kind)), columns, this.#sort);
    const entries = groups.reduce((n, g) => n + g.list.length, 0);
    $("#log").replaceChildren(
      thead(columns, this.#sort, (c) => this.#set(this.#kind, turned(this.#sort, c.id))),
      h("tbody", {}, groups.flatMap((g) => this.#rows(g))),
      h("caption", {}, entries ? `The last ${entries === 1 ? "entry" : `${entries} entries`}${entries > groups.length ? `, repeats collapsed into ${groups.length}` : ""}` : "Nothing yet."));
    if (focused) $(`[data-page="changes"] [data-${focused}="${CSS.escape(value)}"]`)?.focus();
  }

  /** rows are one for a group, with the button that shows all of its entries. */
  #rows(g) {
    const first = g.list.at(-1), open = this.#open.has(first.number);
    const repeats = g.list.length > 1 && h("button", { type: "button", class: "chip repeats", "data-first": first.number, "aria-expanded": open ? "true" : "false", onclick: () => this.#toggle(first.number) }, `×${g.list.length} since ${clock(first.at)}`);
    return [row(g.list[0], repeats), ...(open ? g.list.slice(1).map((c) => row(c, null)) : [])];
  }
}

/** signature is the same for changes that repeat each other: an endpoint that comes and goes is one repeat after the other. */
const signature = (c) => JSON.stringify([c.kind, c.full, c.error, c.changed, c.removed, (c.services ?? []).map((s) => [s.name, [...(s.plus ?? []), ...(s.minus ?? [])].sort(), s.more])]);

/** grouped has entries that follow each other and say the same in one group. */
function grouped(list) {
  const groups = [];
  for (const c of list) {
    const key = signature(c);
    if (groups.at(-1)?.key === key) groups.at(-1).list.push(c);
    else groups.push({ key, list: [c] });
  }
  return groups;
}

function row(c, repeats) {
  return h("tr", { class: c.kind }, h("td", { class: "mono" }, clock(c.at)), h("td", {}, what(c), repeats && " ", repeats),
    h("td", { class: "right", title: "from the change in the cluster until the kernel had it" }, c.latency === undefined ? "–" : span(c.latency)), h("td", { class: "right" }, span(c.took)), h("td", { class: "right" }, c.written ?? 0));
}

/** service is what has changed of a Service. */
function service(s) {
  return h("span", { class: "change" }, h("a", { href: `#/services/${pathOf(s.name)}` }, s.name), s.new && h("span", { class: "muted" }, " new"), s.gone && h("span", { class: "muted" }, " removed"),
    (s.plus ?? []).map((a) => h("span", { class: "good mono" }, ` +${a}`)), (s.minus ?? []).map((a) => h("span", { class: "bad mono" }, ` -${a}`)), s.more && h("span", { class: "muted" }, ` and ${plural(s.more, "endpoint")} more`));
}

function what(c) {
  const label = h("span", { class: `label ${c.kind}` }, c.kind);
  const list = c.services ?? [], n = (c.changed ?? 0) + (c.removed ?? 0);
  if (c.kind === "repaired") return h("span", {}, label, ` ${plural(c.repaired, "object")} of the kernel that something else had changed`);
  const of = c.full ? [`the whole state, ${plural(c.changed ?? 0, "Service")}`] : n === 0 ? [c.revision ? "settings of the node" : "a verification"]
    : [...list.flatMap((s, i) => [i ? ", " : "", service(s)]), n > list.length ? ` and ${n - list.length} more` : ""];
  return h("span", {}, label, " ", of, c.revision && h("span", { class: "muted" }, ` · revision ${c.revision}`), c.error && h("div", { class: "bad" }, c.error));
}
