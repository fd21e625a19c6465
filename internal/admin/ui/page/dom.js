// Elements without markup in strings: what names a Service can never become markup.

const svgNames = new Set(["svg", "g", "path", "rect", "text", "circle", "line", "title", "tspan"]);

/** h makes an element of HTML or SVG with attributes, listeners (on...) and children. */
export function h(name, attributes = {}, ...children) {
  const e = svgNames.has(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else e.setAttribute(key, value === true ? "" : value);
  }
  e.append(...children.flat().filter((c) => c !== undefined && c !== null && c !== false));
  return e;
}

export const $ = (selector) => document.querySelector(selector);

/** pathOf is a key as a part of an address. */
export const pathOf = (key) => key.split("/").map(encodeURIComponent).join("/");

/** plural is a number with its noun. */
export const plural = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

/** clock is the time of day of a date. */
export const clock = (date) => new Date(date).toLocaleTimeString("en-GB");

/** span is a duration in words, of seconds. */
export function span(seconds) {
  if (seconds < 1) return `${(seconds * 1000).toPrecision(seconds < 0.001 ? 1 : 3).replace(/\.0+$/, "")} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

const reasons = {
  NotReady: "not ready", Terminating: "terminating", NotServing: "no longer serving", OtherNode: "on another node", NodeUnready: "on an unready node", HintedElsewhere: "for another zone or node",
  NoWeight: "weight 0", NoZoneWeight: "zone weight 0", NoRoom: "no room", Duplicate: "listed twice", Invalid: "invalid", Special: "special address", NoSuchPort: "no such port", OtherFamily: "other family",
  NumberTaken: "number taken", Refused: "refused",
  NoService: "no Service object", Headless: "headless: DNS names its endpoints", ExternalName: "a name for DNS", OtherProxy: "of another proxy", NothingToRoute: "nothing to route",
  NoClusterIP: "no cluster IP yet", NotLoadBalancer: "not of type LoadBalancer", NamespaceOptedOut: "namespace opted out",
};

/** words says a reason in words. */
export const words = (reason) => reasons[reason] ?? reason;
