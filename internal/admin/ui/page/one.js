// One Service: its addresses, its picture and its endpoints.
import { h, $, pathOf, plural, span, words } from "./dom.js";
import { get, now } from "./data.js";
import { connections, endpoints as endpointsGraph, strip } from "./graph.js";
import { sorted, thead, turned } from "./sort.js";
import { picture, portsOf, endpointsOf } from "./picture.js";

const refreshPause = 3000;

export class One {
  #key = null;
  #port = 0;
  #detail = null;
  #timer = null;
  #error = "";
  #onClose;
  #sorts = { endpoints: {}, paths: {} }; // the orders of its tables

  constructor(data, onClose) {
    this.#onClose = onClose;
    data.addEventListener("connection", () => { if (!data.lost) this.#load(); });
    data.addEventListener("round", () => document.hidden || this.#load());
    new ResizeObserver(() => this.#detail && this.#draw()).observe($("#one"));
  }

  get key() { return this.#key; }

  show(key) {
    const box = $("#one");
    clearInterval(this.#timer);
    if (key !== this.#key) { this.#detail = null; this.#port = 0; this.#error = ""; }
    this.#key = key;
    box.hidden = key === null;
    document.body.classList.toggle("opened", key !== null);
    if (key === null) return;
    this.#draw();
    this.#load();
    this.#timer = setInterval(() => document.hidden || this.#load(), refreshPause);
  }

  async #load() {
    const key = this.#key;
    if (key === null) return;
    try {
      const detail = await get("service", { key });
      if (key !== this.#key) return;
      if (this.#detail && JSON.stringify(detail) === JSON.stringify(this.#detail)) return;
      this.#detail = detail;
      this.#error = "";
    } catch (error) {
      if (key !== this.#key || error instanceof TypeError) return; // no answer: the page says so
      this.#detail = null;
      this.#error = error.message;
    }
    this.#draw();
  }

  #draw() {
    const d = this.#detail, [namespace, name] = this.#key.split("/");
    const focused = document.activeElement?.dataset?.role;
    const heading = document.activeElement?.dataset?.sort, table = document.activeElement?.closest?.("#one table")?.dataset.table;
    const head = h("div", { class: "title" }, h("h2", {}, h("span", { class: "muted" }, `${namespace}/`), name),
      h("a", { class: "button", href: `#/explain?from=node&to=${encodeURIComponent(`svc/${this.#key}`)}` }, "Explain"),
      h("button", { type: "button", "data-role": "close", "aria-label": "Close", onclick: () => this.#onClose() }, "×"));
    if (!d) {
      $("#one").replaceChildren(head, h("p", { class: this.#error ? "bad" : "muted" }, this.#error || "loading …"));
      return;
    }
    const s = d.service, ports = portsOf(d), port = ports[Math.min(this.#port, ports.length - 1)];
    const facts = [["Type", s.type], ["Cluster IP", (s.clusterIPs ?? []).join(", ")], ["External", (s.externalIPs ?? []).join(", ")],
      ["Ports", (s.ports ?? []).map((p) => `${p.name ? `${p.name} ` : ""}${p.port}${p.nodePort ? `, node port ${p.nodePort}` : ""}/${p.protocol}`).join("; ")]];
    $("#one").replaceChildren(head,
      h("dl", { class: "facts" }, facts.filter((f) => f[1]).flatMap(([k, v]) => [h("dt", {}, k), h("dd", { class: k === "Type" ? "" : "mono" }, v)])),
      s.notRouted ? h("p", { class: "remark" }, `Not routed: ${words(s.notRouted)}.`) : "",
      ...problemsOf(s),
      this.#graphs(d, Math.max(300, $("#one").clientWidth - 40)),
      ports.length > 1 ? h("div", { class: "chips", role: "group", "aria-label": "Port" }, ports.map((p, i) => h("button", { type: "button", "data-role": `port-${i}`, "aria-pressed": p === port ? "true" : "false", onclick: () => { this.#port = i; this.#draw(); } }, p.label))) : "",
      port && !s.notRouted ? picture(d, port, Math.max(300, $("#one").clientWidth - 40)) : "",
      port ? this.#endpoints(d, port) : "",
      d.paths ? this.#paths(d.paths) : "");
    if (focused) $(`#one [data-role="${focused}"]`)?.focus();
    else if (heading) $(`#one [data-table="${table}"] [data-sort="${heading}"]`)?.focus();
  }

  /** graphs are those of the last 15 minutes: connections, if they are counted, and endpoints. */
  #graphs(d, width) {
    const used = new Set(d.endpoints.filter(isUsed).map(ipOf));
    return h("div", {}, d.graph ? connections(d.graph, width) : "", d.comings && !d.more && !d.service.notRouted ? endpointsGraph(d.comings, used, width, now()) : "");
  }

  #sorter(table) {
    return (c) => { this.#sorts[table] = turned(this.#sorts[table], c.id); this.#draw(); };
  }

  #endpoints(d, port) {
    const outside = port.external !== "Unused", why = (e) => [...new Set([...(e.reasons ?? []), ...(outside ? e.outsideReasons ?? [] : [])])].map(words).join(", ");
    const mark = (yes) => h("td", { class: yes ? "good" : "bad" }, yes ? "yes" : "no");
    const pods = d.endpoints.some((e) => e.pod), weights = d.endpoints.some((e) => e.weight !== undefined);
    const stated = d.endpoints.some((e) => e.state === "ejected" || e.state === "draining");
    const columns = [
      { id: "address", name: "Address", of: (e) => e.address }, ...(pods ? [{ id: "pod", name: "Pod", of: (e) => e.pod ?? "" }] : []), { id: "node", name: "Node", of: (e) => e.node ?? "" },
      { id: "inside", name: "Inside", of: (e) => !e.inside }, ...(outside ? [{ id: "outside", name: "Outside", of: (e) => !e.outside }] : []),
      ...(weights ? [{ id: "weight", name: "Weight", of: (e) => -(e.weight ?? 0) }, { id: "share", name: "Share", of: (e) => -e.share }] : []),
      ...(stated ? [{ id: "state", name: "State", of: (e) => e.state }] : []), { id: "why", name: "Why not", of: (e) => why(e) },
    ];
    const list = sorted(endpointsOf(d, port), columns, this.#sorts.endpoints);
    if (list.length === 0) return "";
    return h("table", { "data-table": "endpoints" }, h("caption", {}, `${d.more ? "The first " : ""}${plural(list.length, "endpoint")}${d.comings ? "; below each, when it was in use in the last 15 minutes" : ""}`),
      thead(columns, this.#sorts.endpoints, this.#sorter("endpoints")),
      h("tbody", {}, list.map((e) => h("tr", {}, h("td", { class: "mono address" }, e.address, d.comings && strip(d.comings, ipOf(e), isUsed(e), now())), pods && h("td", {}, e.pod ?? "–"), h("td", {}, e.node ?? "–"), mark(e.inside), outside && mark(e.outside),
        weights && h("td", {}, e.weight ?? "–"), weights && h("td", {}, e.inside ? `${(100 * e.share).toFixed(1)}%` : "–"),
        stated && h("td", { class: states[e.state] }, stateOf(e)), h("td", {}, why(e))))));
  }

  /** paths lists how the connections of a lab went in its last round. */
  #paths(list) {
    const columns = [{ id: "from", name: "From", of: (p) => p.client }, { id: "to", name: "To", of: (p) => `${p.frontend} ${p.address}` }, { id: "outcome", name: "Outcome", of: (p) => `${p.faults ? 0 : 1}${p.outcome}` },
      { id: "count", name: "Count", of: (p) => -p.connections }, { id: "time", name: "Time", of: (p) => -p.took }];
    return h("table", { class: "paths", "data-table": "paths" }, h("caption", {}, "Connections of the last round"),
      thead(columns, this.#sorts.paths, this.#sorter("paths")),
      h("tbody", {}, sorted(list, columns, this.#sorts.paths).map((p) => h("tr", {}, h("td", {}, p.client), h("td", {}, `${p.frontend} `, h("span", { class: "mono" }, `${p.address}/${p.protocol}`)),
        h("td", { class: p.faults ? "bad" : "good" }, `${p.faults ? "✗" : "✓"} ${p.outcome}${p.source ? `, source ${p.source}` : ""}`, (p.faults ?? []).map((f) => h("div", {}, f))),
        h("td", {}, p.connections), h("td", {}, span(p.took))))));
  }
}

const states = { active: "good", ejected: "bad", draining: "warn", idle: "" };

/** stateOf is the state of an endpoint, with the time that its open connections still have. */
const stateOf = (e) => (e.drainsUntil ? `${e.state} for ${span(Math.max(0, (new Date(e.drainsUntil) - now()) / 1000))}` : e.state);

const isUsed = (e) => e.inside || e.outside;

/** ipOf is the address of an endpoint without its port. */
const ipOf = (e) => e.address.replace(/:\d+$/, "").replace(/^\[|\]$/g, "");

const sentence = (f) => [f.text, f.cause].filter(Boolean).join(": ");

/** problemsOf are what is wrong with a Service, each with its reason and its remedy. */
function problemsOf(s) {
  const findings = s.findings ?? [], said = new Set(findings.map((f) => sentence(f) + (f.remedy ? `; ${f.remedy}` : "")));
  return [
    ...findings.map((f) => h("div", { class: `remark ${f.severity === "fault" ? "bad" : f.severity === "remark" ? "mild" : ""}` },
      h("p", {}, h("b", { class: "reason" }, f.reason), ` ${sentence(f)}`), f.holders && h("p", {}, h("b", {}, "Held by: "), f.holders.flatMap((name, i) => [i ? ", " : "", h("a", { href: `#/services/${pathOf(name)}` }, name)])),
      f.remedy && h("p", { class: "remedy" }, h("b", {}, "Remedy: "), f.remedy),
      (f.field || f.place) && h("p", { class: "muted mono" }, [f.text.startsWith(`${f.field}: `) ? "" : f.field, f.place].filter(Boolean).join(" · ")))),
    ...(s.problems ?? []).filter((p) => !said.has(p)).map((p) => h("p", { class: "remark bad" }, p)),
  ];
}
