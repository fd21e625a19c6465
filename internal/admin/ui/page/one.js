// One Service: its addresses, its picture and its endpoints.
import { h, $, plural, span, words } from "./dom.js";
import { get } from "./data.js";
import { picture, portsOf, endpointsOf } from "./picture.js";

const refreshPause = 3000;

export class One {
  #key = null;
  #port = 0;
  #detail = null;
  #timer = null;
  #error = "";
  #onClose;

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
      ...(s.problems ?? []).map((p) => h("p", { class: "remark bad" }, p)),
      ...(s.findings ?? []).filter((f) => f.severity === "remark").map((f) => h("p", { class: "remark" }, [f.text, f.cause].filter(Boolean).join(": ") + (f.remedy ? `; ${f.remedy}` : ""))),
      ports.length > 1 ? h("div", { class: "chips", role: "group", "aria-label": "Port" }, ports.map((p, i) => h("button", { type: "button", "data-role": `port-${i}`, "aria-pressed": p === port ? "true" : "false", onclick: () => { this.#port = i; this.#draw(); } }, p.label))) : "",
      port && !s.notRouted ? picture(d, port, Math.max(300, $("#one").clientWidth - 40)) : "",
      port ? this.#endpoints(d, port) : "",
      d.paths ? paths(d.paths) : "");
    if (focused) $(`#one [data-role="${focused}"]`)?.focus();
  }

  #endpoints(d, port) {
    const list = endpointsOf(d, port), outside = port.external !== "Unused";
    const mark = (yes) => h("td", { class: yes ? "good" : "bad" }, yes ? "yes" : "no");
    return h("table", {}, h("caption", {}, `${d.more ? "The first " : ""}${plural(list.length, "endpoint")}`),
      h("thead", {}, h("tr", {}, ["Address", "Node", "Inside", outside && "Outside", "Why not"].filter(Boolean).map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, list.map((e) => h("tr", {}, h("td", { class: "mono" }, e.address), h("td", {}, e.node ?? "–"), mark(e.inside), outside && mark(e.outside),
        h("td", {}, [...new Set([...(e.reasons ?? []), ...(outside ? e.outsideReasons ?? [] : [])])].map(words).join(", "))))));
  }
}

/** paths lists how the connections of a lab went in its last round. */
function paths(list) {
  return h("table", { class: "paths" }, h("caption", {}, "Connections of the last round"),
    h("thead", {}, h("tr", {}, ["From", "To", "Outcome", "Count", "Time"].map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", {}, list.map((p) => h("tr", {}, h("td", {}, p.client), h("td", {}, `${p.frontend} `, h("span", { class: "mono" }, `${p.address}/${p.protocol}`)),
      h("td", { class: p.faults ? "bad" : "good" }, `${p.faults ? "✗" : "✓"} ${p.outcome}${p.source ? `, source ${p.source}` : ""}`, (p.faults ?? []).map((f) => h("div", {}, f))),
      h("td", {}, p.connections), h("td", {}, span(p.took))))));
}
