// What the list shows of a Service.
import { h, plural, words } from "./dom.js";
import { steps } from "./spark.js";

const keyOf = (row) => `${row.namespace}/${row.name}`;

const addresses = (r) => [...(r.clusterIPs ?? []), ...(r.externalIPs ?? [])];

const portText = (p) => `${p.port}${p.nodePort ? `:${p.nodePort}` : ""}/${p.protocol}`;

const rateText = (n) => (n >= 10 ? Math.round(n).toLocaleString("en") : n > 0 && n < 0.1 ? "<0.1" : n.toFixed(1).replace(/\.0$/, ""));

const lost = (r) => (r.rate?.refused ?? 0) + (r.rate?.dropped ?? 0);

/** isAsked reports whether clients connect to a Service that has no endpoint for them. */
const isAsked = (r) => !r.notRouted && r.endpoints.used === 0 && lost(r) > 0;

const conflicts = new Set(["AddressConflict"]);

const isFault = (r) => Boolean(r.problems) && (!r.findings || r.findings[0]?.severity === "fault" || r.problems.length > r.findings.filter((f) => f.severity !== "remark").length);

/** filters select the Services with one kind of trouble. */
const filters = [
  { id: "none", name: "no endpoints", how: "bad", is: (r) => !r.notRouted && r.endpoints.used === 0 },
  { id: "degraded", name: "degraded", how: "warn", is: (r) => !r.notRouted && r.endpoints.used > 0 && r.endpoints.used < r.endpoints.all },
  { id: "refused", name: "refused or dropped", how: "bad", is: (r) => lost(r) > 0, counted: true },
  { id: "conflicts", name: "conflicts", one: "conflict", how: "warn", is: (r) => (r.findings ?? []).some((f) => conflicts.has(f.reason)) },
];

/** trouble is how bad a row is. */
function trouble(r) {
  if (isAsked(r)) return 7;
  if (r.flow?.faulty) return 6;
  if (isFault(r)) return 5;
  if (r.notRouted) return r.problems ? 3 : r.notRouted === "Headless" || r.notRouted === "ExternalName" ? 0 : 1;
  if (r.endpoints.used === 0) return 5;
  if (lost(r) > 0) return 4;
  if (r.problems) return 3;
  return r.endpoints.reasons ? 2 : 0;
}

/** rank orders rows by trouble, the worst first, and groups those with the same reason and holder. */
const rank = (r) => `${9 - trouble(r)} ${r.findings?.[0]?.reason ?? ""} ${r.findings?.[0]?.holders?.[0] ?? ""}`;

/** contested is what a Service has lost to others, with their names. */
function contested({ text, field, holders }) {
  const lost = text.replace(`${field}: `, "");
  return holders.length === 1 ? lost.replace("another service", holders[0]) : `${lost}: ${holders.join(", ")}`;
}

/** note is what there is to say about a row, and how bad it is. */
function note(r) {
  if (r.flow?.faulty) return [`${r.flow.faulty} of ${plural(r.flow.paths, "path")} not as they must be: ${r.flow.fault}`, "bad"];
  const refused = isAsked(r) ? `${rateText(lost(r))} new connections/s refused or dropped: ` : "";
  const worst = r.findings?.[0];
  if (worst?.holders) return [contested(worst), "warn"];
  if (r.problems) return [refused + (r.problems.length === 1 ? r.problems[0] : `${plural(r.problems.length, "problem")}: ${r.problems[0]}`), isFault(r) ? "bad" : "warn"];
  if (r.notRouted) return [`not routed: ${words(r.notRouted)}`, "quiet"];
  const texts = Object.entries(r.endpoints.reasons ?? {}).map(([reason, n]) => `${n} ${words(reason)}`);
  if (r.endpoints.used === 0) return [refused + (texts.length ? `no endpoint in use: ${texts.join(", ")}` : "no endpoints"), "bad"];
  if (texts.length === 0 && r.flow) return [`${plural(r.flow.connections, "connection")} in the last round`, "quiet"];
  return [texts.join(", "), texts.length ? "warn" : "quiet"];
}

/** rate is the cell of a rate. */
function rate(r, what, column) {
  const n = r.rate?.[what] ?? 0;
  return h("span", { role: "gridcell", class: `${column} rate ${n === 0 ? "quiet" : what === "connections" ? "" : isAsked(r) || what === "refused" ? "bad" : "warn"}` }, r.notRouted ? "–" : rateText(n));
}

/** cells are what a row shows. */
function cells(r, history) {
  const key = keyOf(r), [text, how] = note(r), { used, all } = r.endpoints, ports = r.ports ?? [];
  const routed = !r.notRouted;
  const more = (list) => (list.length > 1 ? h("span", { class: "more" }, ` +${list.length - 1}`) : null);
  return [
    h("span", { role: "gridcell", class: "c0", title: key }, h("span", { class: "muted" }, `${r.namespace}/`), h("b", {}, r.name)),
    h("span", { role: "gridcell", class: "c1" }, r.type),
    h("span", { role: "gridcell", class: "c2 mono", title: addresses(r).join("\n") }, addresses(r)[0] ?? "–", more(addresses(r))),
    h("span", { role: "gridcell", class: "c3 mono", title: ports.map(portText).join("\n") }, ports.length ? portText(ports[0]) : "–", more(ports)),
    h("span", { role: "gridcell", class: "c4", title: `${used} of ${all} endpoints get new connections of this node` },
      routed && h("span", { class: `dot ${used === 0 ? "bad" : used < all ? "warn" : "good"}` }), routed ? h("span", { class: "number" }, `${used}/${all}`) : "–",
      routed && steps(history, 56, 16, 300_000)),
    rate(r, "connections", "r0"), rate(r, "refused", "r1"), rate(r, "dropped", "r2"),
    h("span", { role: "gridcell", class: `c5 ${how}`, title: text }, text),
  ];
}

/** services is the list of a node or a lab. */
export const services = {
  noun: "Service",
  path: "services",
  keyOf,
  cells,
  columns: [
    { id: "name", name: "Service", of: keyOf, at: "c0" },
    { id: "type", name: "Type", of: (r) => r.type, at: "c1" },
    { id: "address", name: "Address", of: (r) => addresses(r)[0] ?? "", at: "c2" },
    { id: "port", name: "Ports", of: (r) => r.ports?.[0]?.port ?? 0, at: "c3" },
    { id: "endpoints", name: "Endpoints", of: (r) => r.endpoints.used, at: "c4" },
    { id: "new", name: "New/s", of: (r) => -(r.rate?.connections ?? 0), spoken: "new connections per second, most first", at: "r0" },
    { id: "refused", name: "Refused/s", of: (r) => -(r.rate?.refused ?? 0), spoken: "refused connections per second, most first", at: "r1" },
    { id: "dropped", name: "Dropped/s", of: (r) => -(r.rate?.dropped ?? 0), spoken: "dropped connections per second, most first", at: "r2" },
    { id: "note", name: "Note", of: rank, spoken: "note, worst first", at: "c5" },
  ],
  filters,
  howOf: (r) => (isAsked(r) ? "asked" : ""),
  sort: "note",
  sample: (r) => r.endpoints.used,
  text: (r) => [keyOf(r), r.type, ...addresses(r), ...(r.ports ?? []).map(portText), note(r)[0]].join(" "),
};
