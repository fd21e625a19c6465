// Small pictures of numbers over time.
import { h } from "./dom.js";

/** steps draws how a number was over a time that ends now, from samples [time, value]. */
export function steps(samples, width, height, duration) {
  const now = Date.now();
  const most = Math.max(1, ...samples.map((s) => s[1]));
  const x = (time) => Math.max(0, width - ((now - time) / duration) * width).toFixed(1);
  const y = (value) => (height - 1.5 - (value / most) * (height - 3)).toFixed(1);
  let path = "";
  for (const [time, value] of samples) path += path === "" ? `M${x(time)} ${y(value)}` : `H${x(time)}V${y(value)}`;
  return h("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    h("path", { class: "base", d: `M0 ${height - 0.5}H${width}` }), h("path", { d: `${path}H${width}` }));
}

/** bars draws numbers of equal periods, the newest on the right. */
export function bars(values, width, height) {
  const most = Math.max(1, ...values);
  const step = width / values.length;
  return h("svg", { class: "bars", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    h("path", { class: "base", d: `M0 ${height - 0.5}H${width}` }),
    values.map((v, i) => {
      const tall = v === 0 ? 0 : Math.max(2, (Math.log1p(v) / Math.log1p(most)) * height);
      return tall > 0 && h("rect", { x: (i * step + 0.5).toFixed(1), y: (height - tall).toFixed(1), width: (step - 1).toFixed(1), height: tall.toFixed(1) });
    }));
}
