"use strict";
// Interpolates the grid in the page and draws it. Texts enter the page as texts, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("panel-data").textContent);
  const form = document.getElementById("panel");
  const drawing = document.getElementById("curve");
  const answer = document.getElementById("answer");
  const frame = { left: 76, right: 20, top: 16, bottom: 58, width: 640, height: 360 };

  const unpack = (text) => {
    if (text === null) return null;
    const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return Float64Array.from({ length: bytes.length / 2 }, (_, i) => data.low + data.unit * view.getUint16(2 * i, true));
  };
  const blocks = data.axes.map((axis) => ({
    values: unpack(axis.values), lower: unpack(axis.lower), upper: unpack(axis.upper),
  }));

  const short = (number) => {
    if (number === 0) return "0";
    const size = Math.abs(number);
    return size >= 1e6 || size < 1e-4 ? number.toExponential(2) : String(Number(number.toPrecision(4)));
  };
  const element = (name, attributes, text) => {
    const svg = ["path", "line", "rect", "text", "circle"].includes(name);
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // The cell of a setting among ascending nodes: the node below, and the share of the way to the next.
  const cell = (nodes, setting) => {
    let below = 0;
    while (below < nodes.length - 2 && nodes[below + 1] <= setting) below += 1;
    const share = (setting - nodes[below]) / (nodes[below + 1] - nodes[below]);
    return [below, Math.min(1, Math.max(0, share))];
  };

  const interpolate = (block, settings, points) => {
    let corners = [{ at: 0, weight: 1 }];
    data.columns.forEach((column, number) => {
      const [below, share] = cell(column.nodes, settings[number]);
      const next = [];
      for (const corner of corners) {
        const base = corner.at * column.nodes.length + below;
        if (share < 1) next.push({ at: base, weight: corner.weight * (1 - share) });
        if (share > 0) next.push({ at: base + 1, weight: corner.weight * share });
      }
      corners = next;
    });
    return Array.from({ length: points }, (_, point) =>
      corners.reduce((sum, corner) => sum + corner.weight * block[corner.at * points + point], 0));
  };

  const controls = document.getElementById("controls");
  const inputs = data.columns.map((column, number) => {
    const box = element("div", { class: "control" });
    const id = `context-${number}`;
    const label = element("label", { for: id });
    label.append(element("span", {}, column.name));
    let input;
    if (column.labels.length) {
      input = element("select", { id });
      column.labels.forEach((name, code) => {
        const option = element("option", { value: code }, name);
        option.defaultSelected = code === column.typical;
        input.append(option);
      });
    } else {
      const low = column.nodes[0], high = column.nodes[column.nodes.length - 1];
      input = element("input", { id, type: "range", min: low, max: high, step: column.whole ? 1 : "any" });
      input.defaultValue = column.typical;
      input.value = column.typical;
      // With step "any" a browser chooses its own step for the arrow keys: a hundredth is what one expects.
      if (!column.whole) input.addEventListener("keydown", (event) => {
        const way = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
        if (!way) return;
        event.preventDefault();
        input.value = Number(input.value) + way * (high - low) / 100;
        input.dispatchEvent(new Event("input", { bubbles: true }));
      });
      label.append(element("output", { for: id }));
    }
    box.append(label, input);
    controls.append(box);
    return input;
  });

  let chosenAxis = 0;
  if (data.axes.length > 1) {
    const box = element("div", { class: "control" });
    box.append(element("label", { for: "axis" }, "Action column"));
    const select = element("select", { id: "axis" });
    data.axes.forEach((axis, number) => select.append(element("option", { value: number }, axis.name)));
    select.addEventListener("input", () => { chosenAxis = Number(select.value); });
    box.append(select);
    controls.append(box);
  }

  const ticks = (low, high, count) => {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) found.push(k * step);
    return found;
  };

  const draw = () => {
    const settings = inputs.map((input) => Number(input.value));
    inputs.forEach((input, number) => {
      const shown = input.previousElementSibling.querySelector("output");
      if (shown) {
        shown.textContent = short(settings[number]);
        input.setAttribute("aria-valuetext", short(settings[number]));
      }
    });
    const axis = data.axes[chosenAxis], block = blocks[chosenAxis], grid = axis.grid, points = grid.length;
    const curve = interpolate(block.values, settings, points);
    const lower = block.lower && interpolate(block.lower, settings, points);
    const upper = block.upper && interpolate(block.upper, settings, points);
    let best = -1;
    curve.forEach((value, point) => { if (axis.allowed[point] && (best < 0 || value > curve[best])) best = point; });
    const name = axis.labels.length ? axis.labels[best] : short(grid[best]);
    answer.replaceChildren(
      `Recommended ${axis.name}: `, element("strong", {}, name), `, expected ${data.outcome} `,
      element("strong", {}, short(curve[best])));
    if (lower && upper) answer.append(`, 95 % confidence interval ${short(lower[best])} to ${short(upper[best])}`);
    drawing.dataset.best = grid[best];
    drawing.dataset.curve = JSON.stringify(curve);

    // The scale of outcomes belongs to all contexts, so that a curve that moves is seen to move.
    const least = (values) => values.reduce((a, b) => Math.min(a, b));
    const most = (values) => values.reduce((a, b) => Math.max(a, b));
    let bottom = least(block.values), top = most(block.values);
    if (lower && upper) {
      // A band far wider than the curves would make flat lines of them: it is cut off instead.
      const height = top - bottom || Infinity;
      [bottom, top] = [Math.max(Math.min(bottom, least(block.lower)), bottom - height / 2),
        Math.min(Math.max(top, most(block.upper)), top + height / 2)];
    }
    if (top === bottom) top += 1;
    const discrete = axis.labels.length > 0;
    const first = discrete ? -0.6 : grid[0], last = discrete ? points - 0.4 : grid[points - 1];
    const room = 0.04 * (top - bottom) || 1;
    const x = (value) => frame.left + (value - first) / (last - first) * (frame.width - frame.left - frame.right);
    const y = (value) => frame.height - frame.bottom -
      (Math.min(Math.max(value, bottom - room), top + room) - bottom + room) / (top - bottom + 2 * room) *
      (frame.height - frame.top - frame.bottom);
    const foot = frame.height - frame.bottom;
    const parts = [];
    if (!discrete) {
      const [from, to] = axis.support;
      parts.push(element("rect", { x: x(from), y: frame.top, width: Math.max(0, x(to) - x(from)),
        height: foot - frame.top, fill: "#ececec" }));
    }
    for (const value of ticks(bottom, top, 6)) {
      parts.push(element("line", { x1: frame.left, x2: frame.width - frame.right, y1: y(value), y2: y(value), stroke: "#d0d0d0" }));
      parts.push(element("text", { x: frame.left - 8, y: y(value) + 5, "text-anchor": "end" }, short(value)));
    }
    const marks = discrete ? grid : ticks(first, last, 5);
    marks.forEach((value) => {
      const text = discrete ? axis.labels[value].slice(0, 14) : short(value);
      parts.push(element("text", { x: x(value), y: foot + 22, "text-anchor": "middle" }, text));
    });
    parts.push(element("line", { x1: frame.left, x2: frame.width - frame.right, y1: foot, y2: foot, stroke: "#888" }));
    parts.push(element("text", { x: (frame.left + frame.width - frame.right) / 2, y: frame.height - 8, "text-anchor": "middle" },
      axis.name.slice(0, 50)));
    const path = (values, reverse) => {
      const order = [...values.keys()];
      if (reverse) order.reverse();
      return order.map((point) => `${x(grid[point]).toFixed(2)},${y(values[point]).toFixed(2)}`).join("L");
    };
    if (lower && upper && !discrete) {
      parts.push(element("path", { d: `M${path(upper)}L${path(lower, true)}Z`, fill: "#0072b2", "fill-opacity": 0.2 }));
    }
    if (discrete) {
      curve.forEach((value, point) => {
        if (lower && upper) parts.push(element("line", { x1: x(point), x2: x(point), y1: y(lower[point]), y2: y(upper[point]),
          stroke: "#0072b2", "stroke-width": 2 }));
        parts.push(element("circle", { cx: x(point), cy: y(value), r: 6, fill: "#0072b2" }));
      });
    } else {
      parts.push(element("path", { d: `M${path(curve)}`, fill: "none", stroke: "#0072b2", "stroke-width": 2.5, class: "line" }));
    }
    const size = discrete ? 11 : 7, px = x(grid[best]), py = y(curve[best]);
    parts.push(element("path", { d: `M${px - size},${py}L${px},${py - size}L${px + size},${py}L${px},${py + size}Z`, fill: "#d55e00" }));
    drawing.replaceChildren(...parts);
  };

  form.addEventListener("input", draw);
  form.addEventListener("submit", (event) => event.preventDefault());
  // A reset sets the inputs after its event.
  form.addEventListener("reset", () => setTimeout(() => { chosenAxis = 0; draw(); }));
  draw();
})();
