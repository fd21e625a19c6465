// What a relay's page shows of a node, in the list and on its own.
import { h, $, clock, plural, span } from "./dom.js";
import { now } from "./data.js";

const late = 5; // seconds that an update may take without being worth a note

/** waited is how long an update has been waiting, in seconds. */
const waited = (n) => (n.pendingSince && n.reported ? (now() - new Date(n.pendingSince)) / 1000 : 0);

/** trouble is how bad a row is. */
function trouble(n) {
  if (n.failed) return 4;
  if (waited(n) > late) return 3;
  if (n.gone) return 2;
  return n.reported ? 0 : 1;
}

/** note is what there is to say about a row, and how bad it is. */
function note(n) {
  if (n.failed) return [`${plural(n.failed, "Service")} not programmed since ${clock(n.failedSince)}${n.failures ? `: ${n.failures[0].service}: ${n.failures[0].reason}` : ""}`, "bad"];
  if (waited(n) > late) return [`an update has been waiting since ${clock(n.pendingSince)}`, "bad"];
  if (n.gone) return [`left at ${clock(n.gone)}`, "warn"];
  return n.reported ? ["", "good"] : ["does not report what it shows", "quiet"];
}

const revision = (n) => (n.applied >= n.revision ? `${n.applied || "–"}` : `${n.applied || "–"} of ${n.revision}`);

const took = (n) => (n.took === undefined ? "–" : span(n.took));

/** cells are what a row shows. */
function cells(n) {
  const [text, how] = note(n);
  return [
    h("span", { role: "gridcell", class: "c0", title: n.name }, h("b", {}, n.name)),
    h("span", { role: "gridcell", class: "c1" }, n.client ?? "–", n.clients > 1 && h("span", { class: "more" }, ` +${n.clients - 1}`)),
    h("span", { role: "gridcell", class: "c2", title: new Date(n.since).toLocaleString("en-GB") }, clock(n.since)),
    h("span", { role: "gridcell", class: "c3" }, revision(n)),
    h("span", { role: "gridcell", class: "c4", title: "from when the relay had the last update for the node until the node reported it" }, h("span", { class: `dot ${n.gone ? "quiet" : how}` }), took(n)),
    h("span", { role: "gridcell", class: `c5 ${how}`, title: text }, text),
  ];
}

/** nodes is the list of a relay. */
export const nodes = {
  noun: "node",
  path: "nodes",
  keyOf: (n) => n.name,
  cells,
  columns: [
    { id: "name", name: "Node", of: (n) => n.name, at: "c0" },
    { id: "dataplane", name: "Dataplane", of: (n) => n.client ?? "", at: "c1" },
    { id: "since", name: "Follows since", of: (n) => n.since, at: "c2" },
    { id: "revision", name: "Revision", of: (n) => n.applied - n.revision, spoken: "revision, the furthest behind first", at: "c3" },
    { id: "took", name: "Last update", of: (n) => -(n.took ?? 0), spoken: "last update, slowest first", at: "c4" },
    { id: "note", name: "Note", of: (n) => -trouble(n), spoken: "note, worst first", at: "c5" },
  ],
  filters: [
    { id: "failing", name: "with failures", how: "bad", is: (n) => Boolean(n.failed) },
    { id: "behind", name: "behind", how: "bad", is: (n) => waited(n) > late },
    { id: "left", name: "left lately", how: "warn", is: (n) => Boolean(n.gone) },
  ],
  howOf: () => "",
  sort: "note",
  text: (n) => [n.name, n.client ?? "", n.address ?? "", note(n)[0]].join(" "),
};

/** factsOf is what a relay's nodes come to. */
export function factsOf(rows) {
  const list = [...rows], failing = list.filter((n) => n.failed).length, behind = list.filter((n) => !n.failed && waited(n) > late).length, gone = list.filter((n) => n.gone).length;
  return {
    worst: failing || behind ? "warn" : "good",
    facts: [`${plural(list.length - gone, "node")} following`, failing ? `${failing} with failures` : "", behind ? `${behind} behind` : "", gone ? `${gone} left lately` : ""].filter(Boolean),
  };
}

/** OneNode is a node on its own. */
export class OneNode {
  #data;
  #key = null;
  #onClose;

  constructor(data, onClose) {
    this.#data = data;
    this.#onClose = onClose;
    data.addEventListener("rows", () => this.#draw());
  }

  get key() { return this.#key; }

  show(key) {
    this.#key = key;
    $("#one").hidden = key === null;
    document.body.classList.toggle("opened", key !== null);
    this.#draw();
  }

  #draw() {
    if (this.#key === null) return;
    const n = this.#data.rows.get(this.#key), focused = document.activeElement?.dataset?.role;
    const head = h("div", { class: "title" }, h("h2", {}, this.#key), h("button", { type: "button", "data-role": "close", "aria-label": "Close", onclick: () => this.#onClose() }, "×"));
    const facts = n && [["Dataplane", n.client], ["From", n.address], ["Clients", n.clients || ""], ["Since", new Date(n.since).toLocaleString("en-GB")], ["Left", n.gone && new Date(n.gone).toLocaleString("en-GB")],
      ["Revision", revision(n)], ["Last update", took(n)], ["Reported", n.reported && clock(n.reported)]];
    $("#one").replaceChildren(head, ...(n ? [
      h("dl", { class: "facts" }, facts.filter((f) => f[1]).flatMap(([k, v]) => [h("dt", {}, k), h("dd", {}, v)])),
      note(n)[0] ? h("p", { class: `remark ${note(n)[1]}` }, note(n)[0]) : "",
      n.failures ? h("table", {}, h("caption", {}, n.failures.length < n.failed ? `The first ${n.failures.length} of ${n.failed} Services that are not programmed` : `${plural(n.failed, "Service")} not programmed`), h("tbody", {}, n.failures.map((f) => h("tr", {}, h("td", {}, f.service), h("td", { class: "bad" }, f.reason))))) : "",
    ] : [h("p", { class: "muted" }, this.#data.loaded ? "No such node follows this relay." : "loading …")]));
    if (focused) $(`#one [data-role="${focused}"]`)?.focus();
  }
}
