/** The race: the same prompt and seed without and with speculation, one after the other, then compared. */

import { firstDifference } from "./compare.js";
import { byId, element } from "./dom.js";
import { countByDrafter, speed, times } from "./figures.js";
import { Lane } from "./lane.js";
import { showLegend } from "./palette.js";

const RUNS = [
  ["Plain", "off"],
  ["Speculative", "auto"],
];

export class Race {
  model = "";
  #parameters;
  #mayStart;
  #running = null; // AbortController
  #replaying = false;
  #lanes = [];

  /** mayStart: false while something else keeps the model busy, which would spoil the times */
  constructor(parameters, mayStart) {
    this.#parameters = parameters;
    this.#mayStart = mayStart;
    byId("race-form").onsubmit = (event) => {
      event.preventDefault();
      this.#start(byId("race-prompt").value.trim());
    };
    byId("race-stop").onclick = () => this.stop();
    byId("race-replay").onclick = () => this.#busy((signal) => this.#replay(signal));
  }

  get isRunning() {
    return this.#running !== null;
  }

  stop() {
    this.#running?.abort();
  }

  /** A replay keeps nobody from asking: the model does nothing for it. */
  endReplay() {
    if (!this.#replaying) return;
    this.stop();
    this.#ended();
  }

  #start(prompt) {
    if (!prompt || this.isRunning || !this.#parameters.ready()) return;
    if (!this.#mayStart()) {
      showVerdict("An answer is being written in the chat, which would slow the race down. Stop it first.", "bad");
      return;
    }
    const request = { ...this.#parameters.request([{ role: "user", content: prompt }]), model: this.model };
    this.#lanes = RUNS.map(([name]) => new Lane(name));
    byId("lanes").replaceChildren(...this.#lanes.map((lane) => lane.element));
    byId("race-seed").textContent = `Seed ${request.seed}`;
    byId("race-legend").hidden = true;
    byId("lanes").scrollIntoView({ block: "nearest" });
    this.#busy((signal) => this.#run(request, signal));
  }

  async #run(request, signal) {
    for (const [place, [name, mode]] of RUNS.entries()) {
      showVerdict(`${name} is running.`);
      await this.#lanes[place].run({ ...request, speculation: { mode, details: true } }, signal);
    }
    const legend = byId("race-legend");
    showLegend(legend, countByDrafter(this.#lanes[1].answer.tokens));
    legend.hidden = false;
    this.#judge();
  }

  /** Shows both answers again, at the same time and as fast as they came. */
  async #replay(signal) {
    this.#replaying = true;
    const start = performance.now();
    let complete = false;
    while (!complete) {
      const elapsed = (await nextFrame()) - start;
      complete = this.#lanes.map((lane) => lane.showUntil(signal.aborted ? Infinity : elapsed)).every(Boolean);
    }
    this.#judge();
  }

  #judge() {
    const [plain, speculative] = this.#lanes.map(({ answer }) => answer);
    const place = firstDifference(plain.tokens, speculative.tokens);
    const same = place < 0 && plain.text === speculative.text && plain.finish === speculative.finish;
    const comparison = same
      ? `Identical: all ${plain.tokens.length} tokens are the same.`
      : difference(plain, speculative, place);
    showVerdict(comparison, same ? "good" : "bad", ratio(plain.tokensPerSecond, speculative.tokensPerSecond));
    if (place >= 0) for (const lane of this.#lanes) lane.mark(place);
  }

  /** Does something that Stop and Escape can end. */
  async #busy(work) {
    this.#running = new AbortController();
    this.#showState();
    try {
      await work(this.#running.signal);
    } catch (error) {
      showVerdict(error.name === "AbortError" ? "Stopped before the end." : error.message, "bad");
    } finally {
      this.#ended();
    }
  }

  #ended() {
    this.#running = null;
    this.#replaying = false;
    this.#showState();
  }

  #showState() {
    const had = [byId("race-start"), byId("race-stop"), byId("race-replay")].includes(document.activeElement);
    byId("race-start").hidden = this.isRunning;
    byId("race-stop").hidden = !this.isRunning;
    const complete = this.#lanes.length > 0 && this.#lanes.every((lane) => lane.isComplete);
    byId("race-replay").hidden = this.isRunning || !complete;
    if (had) byId(this.isRunning ? "race-stop" : "race-start").focus(); // a button that is hidden loses the focus
  }
}

const nextFrame = () => new Promise(requestAnimationFrame);

function showVerdict(sentence, kind = "", addition = "") {
  const verdict = byId("verdict");
  verdict.className = `verdict ${kind}`;
  verdict.replaceChildren(element("p", {}, sentence), ...(addition ? [element("p", { className: "ratio" }, addition)] : []));
}

function difference(plain, speculative, place) {
  if (place < 0) return "The tokens are the same, but the answers end differently.";
  const [one, other] = [plain, speculative].map(({ tokens }) =>
    place < tokens.length ? JSON.stringify(tokens[place].text) : "the end",
  );
  return `First difference at token ${place + 1}: plain has ${one}, speculative ${other}.`;
}

function ratio(plain, speculative) {
  if (!plain || !speculative) return "";
  return `${times(speculative / plain)} as fast: ${speed(speculative)} against ${speed(plain)} tokens per second.`;
}
