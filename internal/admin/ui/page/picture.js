// The picture of one Service: who connects, by which policy, and to which endpoints.
import { h, words } from "./dom.js";

const most = 10; // endpoints that are drawn
const line = 44;

/** portsOf lists the ports of a Service in each family. */
export const portsOf = (detail) => detail.policies.map((p) => ({ ...p, label: [p.port, p.protocol, p.family].filter(Boolean).join(" ") }));

const familyOf = (endpoint) => (endpoint.address.startsWith("[") ? "IPv6" : "IPv4");

/** endpointsOf are those of one port, the ones in use first. */
export function endpointsOf(detail, port) {
  const list = detail.endpoints.filter((e) => (e.port ?? "") === (port.port ?? "") && e.protocol === port.protocol && familyOf(e) === port.family);
  return list.sort((a, b) => (b.inside || b.outside) - (a.inside || a.outside));
}

/** pathsOf are those of the last round of a lab that led to one port: two of them may have the same endpoints. */
function pathsOf(detail, port) {
  const own = (detail.service.ports ?? []).filter((p) => (p.name ?? "") === (port.port ?? "") && p.protocol === port.protocol).flatMap((p) => [p.port, p.nodePort]);
  return (detail.paths ?? []).filter((p) => p.protocol === port.protocol && own.includes(Number(p.address.split(":").at(-1))));
}

/** flowOf is how many connections an endpoint answered on these paths, of one side or both. */
function flowOf(paths, endpoint, way) {
  return paths.filter((p) => !way || Boolean(p.outside) === (way === "outside")).reduce((n, p) => n + (p.endpoints?.[endpoint.address] ?? 0), 0);
}

/** endOf is the end of a pod's name, which tells it from others, in about so many characters. */
const endOf = (pod, size) => (pod.length > size ? `…${pod.slice(1 - Math.max(size, 9))}` : pod);

const share = (n) => (n === 1 ? "all" : `1 of ${n}`);

/** picture draws one port. */
export function picture(detail, port, width) {
  const all = endpointsOf(detail, port), shown = all.slice(0, most), paths = pathsOf(detail, port);
  const sides = [
    { name: "pods, node", title: "Pods and processes of this node", policy: port.internal === "Unused" ? "Cluster" : port.internal, verdict: port.inside, gets: (e) => e.inside, n: all.filter((e) => e.inside).length, way: "inside" },
    { name: "outside", title: "Clients outside of the cluster", policy: port.external, verdict: port.outside, gets: (e) => e.outside, n: all.filter((e) => e.outside).length, way: "outside" },
  ].filter((s) => s.policy !== "Unused");
  const rows = Math.max(shown.length + (all.length > most ? 1 : 0), sides.length * 2 - 1, 1);
  const height = rows * line + 16;
  const narrow = width < 480;
  const box = { client: narrow ? 70 : 112, policy: narrow ? 88 : 104 };
  const x1 = 2, x2 = x1 + box.client + (narrow ? 8 : (width - box.client - box.policy) * 0.12), x3 = x2 + box.policy + (narrow ? 22 : Math.max(70, width * 0.14));
  const middle = (i, n) => 8 + (height - 16) * ((i + 0.5) / n);
  const top = (height - 16 - shown.length * line) / 2;
  const yOf = (i) => 8 + Math.max(0, all.length > most ? 0 : top) + i * line + line / 2;
  const letters = Math.floor((width - x3 - 20) / 6.4); // that have room below an address
  const parts = [], wires = [];
  const node = (x, y, w, name, sub, how, title) => parts.push(h("g", { class: `box ${how}` }, title && h("title", {}, title),
    h("rect", { x, y: y - 18, width: w, height: 36, rx: 6 }),
    h("text", { x: x + w / 2, y: sub ? y - 3 : y + 4, class: "name" }, name), sub && h("text", { x: x + w / 2, y: y + 11, class: "sub" }, sub)));
  const wire = (fromX, fromY, toX, toY, how) => wires.push(h("path", { class: `wire ${how}`, d: `M${fromX} ${fromY}C${(fromX + toX) / 2} ${fromY} ${(fromX + toX) / 2} ${toY} ${toX} ${toY}` }));
  sides.forEach((s, i) => {
    const y = middle(i, sides.length);
    const forwarded = s.verdict === "forwarded";
    node(x1, y, box.client, s.name, null, "client", s.title);
    wire(x1 + box.client, y, x2, y, s.way);
    node(x2, y, box.policy, s.policy === "Local" ? "this node only" : "all nodes", forwarded ? share(s.n) + (s.n > 1 ? " each" : "") : s.verdict, forwarded ? "policy" : "policy bad", `${s.way === "inside" ? "internalTrafficPolicy" : "externalTrafficPolicy"} ${s.policy}`);
    if (forwarded) shown.forEach((e, j) => s.gets(e) && wire(x2 + box.policy, y, x3, yOf(j), flowOf(paths, e, s.way) ? `${s.way} flows` : s.way));
  });
  shown.forEach((e, j) => {
    const y = yOf(j), used = e.inside || e.outside, why = (e.reasons ?? []).map(words).join(", ");
    const flow = flowOf(paths, e), answered = flow ? ` · answered ${flow}` : "";
    const where = e.node || "no node", pod = e.pod ? `${endOf(e.pod, letters - where.length - answered.length - 3)} · ` : "";
    const sub = used ? (e.inside || port.external === "Unused" ? pod + where : `from outside only · ${e.node ?? ""}`) + answered : why;
    parts.push(h("g", { class: used ? "endpoint good" : "endpoint bad" }, h("title", {}, [e.address, e.pod, e.node, why].filter(Boolean).join("\n")),
      h("circle", { cx: x3 + 7, cy: y, r: 5 }), h("text", { x: x3 + 20, y: y - 2, class: "address" }, e.address), h("text", { x: x3 + 20, y: y + 13, class: "sub" }, sub)));
  });
  if (all.length > most) parts.push(h("text", { x: x3 + 20, y: yOf(most), class: "sub" }, `and ${all.length - most} more, below`));
  if (all.length === 0) parts.push(h("text", { x: x3 - 30, y: height / 2 + 4, class: "sub" }, "no endpoints"));
  const text = sides.map((s) => `${s.title}: ${s.verdict === "forwarded" ? `${s.n} endpoints share their connections` : s.verdict}`).join(". ");
  return h("svg", { class: narrow ? "picture narrow" : "picture", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text }, wires, parts);
}
