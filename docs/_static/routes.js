// The interactive figure of "The idea in pictures": a kernel Q, routes drawn from its law, and the
// copies that one virtual model then reads. Everything is computed here; nothing is fetched.
"use strict";

const Routes = {
  // Q[α][β] ∝ exp(−d²/2σ²), d = β − α − shift wrapped to [−M/2, M/2). Rows of a ring are shifted
  // copies of one another, so dividing each by its sum balances rows and columns at once.
  kernel(covers, sigma, shift) {
    const wrap = (d) => ((((d + covers / 2) % covers) + covers) % covers) - covers / 2;
    return Array.from({ length: covers }, (_, alpha) => {
      const row = Array.from({ length: covers }, (_, beta) =>
        Math.exp(-0.5 * (wrap(beta - alpha - shift) / sigma) ** 2));
      const sum = row.reduce((a, b) => a + b);
      return row.map((value) => value / sum);
    });
  },

  // permanents[set]: the permanent of the last |set| rows on the columns of a set (a bit mask).
  permanents(kernel) {
    const covers = kernel.length;
    const table = new Float64Array(1 << covers);
    table[0] = 1;
    for (let set = 1; set < table.length; set++) {
      let size = 0;
      for (let beta = 0; beta < covers; beta++) size += (set >> beta) & 1;
      const row = kernel[covers - size];
      for (let beta = 0; beta < covers; beta++) {
        if ((set >> beta) & 1) table[set] += row[beta] * table[set & ~(1 << beta)];
      }
    }
    return table;
  },

  // An exact draw from P(ρ) ∝ ∏ Q[α][ρ(α)], row by row: the probability of a column is
  // its share of the permanent of the remaining rows.
  draw(kernel, table, random = Math.random) {
    let left = (1 << kernel.length) - 1;
    return kernel.map((row) => {
      let u = random() * table[left];
      let chosen = -1;
      for (let beta = 0; beta < row.length; beta++) {
        if (!((left >> beta) & 1)) continue;
        const share = row[beta] * table[left & ~(1 << beta)];
        if (share === 0) continue;
        chosen = beta;
        u -= share;
        if (u < 0) break;
      }
      left &= ~(1 << chosen);
      return chosen;
    });
  },
};
window.mcoverRoutes = Routes;

function routesFigure(figure) {
  const WEIGHTS = 6;
  const SVG = "http://www.w3.org/2000/svg";
  const input = (name) => figure.querySelector(`[name=${name}]`);
  const [coversInput, sigmaInput, shiftInput, contextInput] =
    ["covers", "sigma", "shift", "context"].map(input);
  const [matrixPicture, modelPicture] = figure.querySelectorAll("svg");
  const spoken = figure.querySelector("[role=status]");
  let routes = [];

  const element = (parent, kind, attributes, text = "") => {
    const made = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    parent.append(made);
  };

  const read = () => ({
    covers: Number(coversInput.value),
    sigma: 2 ** Number(sigmaInput.value),
    shift: Number(shiftInput.value),
  });

  function redraw() {
    const { covers, sigma, shift } = read();
    const kernel = Routes.kernel(covers, sigma, shift);
    const table = Routes.permanents(kernel);
    routes = Array.from({ length: WEIGHTS }, () => Routes.draw(kernel, table));
    contextInput.max = covers;
    contextInput.value = Math.min(Number(contextInput.value), covers);
    show();
  }

  function show() {
    const { covers, sigma, shift } = read();
    const kernel = Routes.kernel(covers, sigma, shift);
    const context = Number(contextInput.value) - 1;
    const values = { covers, sigma: sigma.toFixed(2), shift, context: context + 1 };
    for (const [name, value] of Object.entries(values)) {
      figure.querySelector(`output[for=routes-${name}]`).textContent = value;
    }
    const side = 240 / covers;
    matrixPicture.replaceChildren();
    kernel.forEach((row, alpha) => row.forEach((value, beta) => {
      const place = { x: 20 + beta * side, y: 20 + alpha * side, width: side, height: side };
      element(matrixPicture, "rect", { ...place, class: "cell", "fill-opacity": value });
      if (routes[0][alpha] === beta) {
        const centre = { cx: place.x + side / 2, cy: place.y + side / 2, r: side / 5 };
        element(matrixPicture, "circle", { ...centre, class: "chosen" });
      }
    }));
    element(matrixPicture, "text", { x: 140, y: 14 }, "cover that is read, β");
    element(matrixPicture, "text", { x: -140, y: 14, transform: "rotate(-90)" }, "cover that reads, α");

    const [wide, high] = [210 / WEIGHTS, 200 / covers];
    modelPicture.replaceChildren();
    for (let cover = 0; cover < covers; cover++) {
      const y = 20 + (cover + 0.5) * high;
      element(modelPicture, "text", { x: 25, y: y + 4 }, `copy ${cover + 1}`);
      for (let weight = 0; weight < WEIGHTS; weight++) {
        const isRead = routes[weight][context] === cover;
        const place = { cx: 60 + (weight + 0.5) * wide, cy: y, r: Math.min(wide, high) / 3 };
        element(modelPicture, "circle", { ...place, class: isRead ? "weight read" : "weight" });
      }
    }
    const from = routes.map((route) => route[context] + 1);
    element(modelPicture, "text", { x: 165, y: 14 }, `virtual model ${context + 1} reads`);
    element(modelPicture, "text", { x: 165, y: 250 }, `copies ${from.join(", ")}`);
    spoken.textContent = `Virtual model ${context + 1} of ${covers} reads its six weights from `
      + `copies ${from.join(", ")}.`;
  }

  for (const one of [coversInput, sigmaInput, shiftInput]) one.addEventListener("input", redraw);
  contextInput.addEventListener("input", show);
  figure.querySelector("button").addEventListener("click", redraw);
  redraw();
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".routes-figure").forEach(routesFigure);
});
