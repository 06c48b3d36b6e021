/** Figures in words, and the gauges that show those of the current answer. */

import { byId } from "./dom.js";
import { nameOf } from "./palette.js";

export const NOTHING = "–";

export const decimals = (value, digits) => (value == null ? NOTHING : value.toFixed(digits));
export const speed = (value) => decimals(value, value < 100 ? 1 : 0);
export const times = (value) => (value == null ? NOTHING : `${value.toFixed(2)}×`);

const FINISHES = {
  length: "Reached the longest answer allowed",
  stopped: "Stopped",
  broken: "Incomplete",
  tool_calls: "Ended with a tool call",
};

/** Shows the figures of an answer, or of none. */
export function showGauges(figures) {
  byId("gauge-speed").textContent = speed(figures?.tokensPerSecond);
  byId("gauge-round").textContent = decimals(figures?.tokensPerRound, 2);
  byId("gauge-gain").textContent = times(figures?.speedUp);
}

/** One line about a finished answer. */
export function summary({ finish, figures, seed }) {
  const parts = [FINISHES[finish], `${figures.tokens} tokens`];
  if (figures.tokensPerSecond != null) parts.push(`${speed(figures.tokensPerSecond)} tokens/s`);
  return [...parts, `seed ${seed}`].filter(Boolean).join(" · ");
}

/** What else is known about a finished answer: [name, value] pairs. */
export function details({ figures, tokens }) {
  const rows = [];
  if (figures.promptTokens != null) {
    const reused = figures.cachedTokens ? `, ${figures.cachedTokens} of them known from before` : "";
    rows.push(["Prompt", `${figures.promptTokens} tokens${reused}`]);
  }
  if (figures.tokensPerRound != null) rows.push(["Tokens per round", decimals(figures.tokensPerRound, 2)]);
  if (figures.acceptanceRate != null) rows.push(["Drafts accepted", `${decimals(100 * figures.acceptanceRate, 0)} %`]);
  if (figures.speedUp != null) rows.push(["Estimated speed-up", times(figures.speedUp)]);
  for (const [drafter, count] of countByDrafter(tokens)) rows.push([`By ${nameOf(drafter)}`, `${count} tokens`]);
  if (figures.explanation) rows.push(["Speculation", figures.explanation]);
  return rows;
}

/** How many tokens came from each drafter; "" is the model itself. */
export function countByDrafter(tokens) {
  const counts = new Map();
  for (const { drafter } of tokens) counts.set(drafter, (counts.get(drafter) ?? 0) + 1);
  return counts;
}
