/** One half of a race: an answer as tokens, with a timer that begins at its first token. */

import { Answer } from "./answer.js";
import { chatChunks } from "./api.js";
import { element, oncePerFrame } from "./dom.js";
import { decimals, speed } from "./figures.js";
import { TokenView } from "./token_view.js";

export class Lane {
  answer = new Answer();
  isComplete = false;
  #time = element("span", { className: "time", role: "timer", "aria-live": "off" }, "0.00 s");
  #facts = element("p", { className: "facts" }, "Waiting");
  #tokens = new TokenView();
  #output = element("div", { className: "output", tabIndex: 0, "aria-label": "Answer" });

  constructor(name) {
    this.element = element(
      "section",
      { className: "lane", "aria-label": name },
      element("header", {}, element("h3", {}, name), this.#time),
      this.#facts,
      this.#output,
    );
  }

  /** Streams the answer to a request; throws what the server, the network or an abort has against it. */
  async run(body, signal) {
    this.#facts.textContent = "Reading the prompt";
    this.answer = new Answer();
    const ticking = setInterval(() => this.#showTime(performance.now() - this.#first), 50);
    const showSoon = oncePerFrame(() => this.isComplete || this.#show(this.answer.tokens.length));
    try {
      for await (const chunk of chatChunks(body, signal)) {
        this.answer.add(chunk);
        showSoon();
      }
      this.isComplete = true;
      this.#showResult();
    } catch (error) {
      this.#facts.textContent = "Not complete";
      throw error;
    } finally {
      clearInterval(ticking);
      this.showUntil(Infinity);
    }
  }

  /** Shows what had come this many milliseconds after the first token; true once that is everything. */
  showUntil(milliseconds) {
    const { arrivals, tokens } = this.answer;
    const [, count] = arrivals.findLast(([when]) => when - this.#first <= milliseconds) ?? [0, 0];
    this.#show(count);
    this.#showTime(Math.min(milliseconds, (arrivals.at(-1)?.[0] ?? 0) - this.#first));
    return count === tokens.length;
  }

  /** Marks the token at this place as the first that differs. */
  mark(place) {
    this.#tokens.mark(place);
  }

  /** When the first token came. */
  get #first() {
    return this.answer.arrivals[0]?.[0] ?? Infinity;
  }

  #show(count) {
    if (count < this.#tokens.count) this.#tokens = new TokenView();
    this.#tokens.append(this.answer.tokens.slice(this.#tokens.count, count));
    if (!this.#tokens.element.isConnected) this.#output.replaceChildren(this.#tokens.element);
    this.#output.scrollTop = this.#output.scrollHeight;
  }

  #showResult() {
    const { figures, started } = this.answer;
    this.#facts.textContent = [
      `${figures.tokens} tokens`,
      `${speed(figures.tokensPerSecond)} tokens/s`,
      `${decimals(figures.tokensPerRound, 2)} a round`,
      `the first after ${decimals((this.#first - started) / 1000, 2)} s`,
    ].join(" · ");
  }

  #showTime(milliseconds) {
    this.#time.textContent = `${(Math.max(milliseconds, 0) / 1000).toFixed(2)} s`;
  }
}
