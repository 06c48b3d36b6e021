/** A name, a colour and a kind of line for every drafter; style.css has the colours, tokens.css the lines. */

import { element } from "./dom.js";

const NAMES = {
  "": "the model itself",
  suffix: "suffix lookup",
  corpus: "earlier texts",
  recycling: "token recycling",
  model: "draft model",
  grammar: "grammar",
};
const MARKS = 6;
const marks = new Map([
  ["", 0],
  ["suffix", 1],
  ["model", 2],
  ["grammar", 3],
]);

export const nameOf = (drafter) => NAMES[drafter] ?? drafter;

/** The class of a drafter's tokens: a new drafter gets the next colour. */
export function classOf(drafter) {
  if (!marks.has(drafter)) marks.set(drafter, 1 + ((marks.size - 1) % (MARKS - 1)));
  return `by-${marks.get(drafter)}`;
}

/** Fills a legend: a sample, a name and a share for each drafter of these counts. */
export function showLegend(list, counts) {
  const all = [...counts.values()].reduce((sum, count) => sum + count, 0);
  list.replaceChildren(
    ...[...counts].map(([drafter, count]) =>
      element(
        "li",
        {},
        element("span", { className: `sample ${classOf(drafter)}`, "aria-hidden": "true" }, "abc"),
        ` ${nameOf(drafter)} ${Math.round((100 * count) / all)} %`,
      ),
    ),
  );
}
