/** An answer as tokens: who guessed each, and what the model thought of it, on hover, touch or by arrow keys. */

import { element } from "./dom.js";
import { classOf, nameOf } from "./palette.js";

const bubble = element("div", { className: "bubble", id: "token-bubble", role: "tooltip", hidden: true });
let explained = null; // the token beside which it is
let pointed = []; // the tokens of its round

export class TokenView {
  element = element("div", { className: "tokens", role: "list", "aria-label": "Tokens; arrow keys go through them" });
  #tokens = [];

  constructor(tokens = []) {
    const reach = (event) => event.target.closest(".token");
    this.element.onpointerover = (event) => this.#explain(reach(event));
    this.element.onpointerleave = hideBubble;
    this.element.addEventListener("focusin", (event) => this.#explain(reach(event)));
    this.element.addEventListener("focusout", hideBubble);
    this.element.onclick = (event) => reach(event)?.focus({ preventScroll: true });
    this.element.onkeydown = (event) => this.#move(event);
    this.append(tokens);
  }

  get count() {
    return this.#tokens.length;
  }

  append(tokens) {
    const first = this.#tokens.length;
    this.#tokens.push(...tokens);
    // One stop for the Tab key; arrow keys go on from there.
    this.element.append(...tokens.map((token, place) => tokenElement(token, first + place === 0 ? 0 : -1)));
  }

  /** Marks the token at this place as the first that differs. */
  mark(place) {
    const node = this.element.children[place];
    node?.classList.add("difference");
    node?.scrollIntoView({ block: "nearest" });
  }

  #move(event) {
    const all = this.element.children;
    const here = [...all].indexOf(document.activeElement);
    const places = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0 };
    const next = all[event.key === "End" ? all.length - 1 : places[event.key]];
    if (here < 0 || !next) return;
    event.preventDefault();
    all[here].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  #explain(node) {
    hideBubble();
    if (!node) return;
    const place = [...this.element.children].indexOf(node);
    const token = this.#tokens[place];
    pointed = this.#sameRound(place);
    for (const neighbour of pointed) neighbour.classList.add("pointed");
    node.setAttribute("aria-describedby", bubble.id);
    bubble.replaceChildren(...description(token, pointed.length));
    document.body.append(bubble);
    bubble.hidden = false;
    explained = node;
    putBeside(node);
  }

  #sameRound(place) {
    const { round } = this.#tokens[place];
    return [...this.element.children].filter((_, other) => this.#tokens[other].round === round);
  }
}

export function hideBubble() {
  bubble.hidden = true;
  explained = null;
  for (const node of pointed) {
    node.classList.remove("pointed");
    node.removeAttribute("aria-describedby");
  }
  pointed = [];
}

function tokenElement({ text, drafter }, tabIndex) {
  const kinds = ["token", classOf(drafter)];
  if (text === "") kinds.push("part");
  if (text.includes("\n")) kinds.push("break");
  return element("span", { className: kinds.join(" "), role: "listitem", tabIndex }, text);
}

function description({ text, logprob, drafter, round }, together) {
  const written = text === "" ? "part of a character" : JSON.stringify(text);
  const source = drafter ? `guessed by ${nameOf(drafter)}, accepted` : "chosen by the model itself";
  return [
    element("b", {}, written),
    element("span", {}, `probability ${percent(Math.exp(logprob))}`),
    element("span", {}, source),
    element("span", {}, `round ${round}, which gave ${together} ${together === 1 ? "token" : "tokens"}`),
  ];
}

function percent(share) {
  const value = 100 * share;
  return `${value >= 0.1 || value === 0 ? value.toFixed(1) : value.toPrecision(1)} %`;
}

/** Above the token's first line if there is room, otherwise below it; never beyond the sides of the window. */
function putBeside(node) {
  const target = node.getClientRects()[0] ?? node.getBoundingClientRect();
  const { width, height } = bubble.getBoundingClientRect();
  const left = Math.min(Math.max(target.left, 8), innerWidth - width - 8);
  const top = target.top - height - 6;
  bubble.style.left = `${Math.max(left, 8)}px`;
  bubble.style.top = `${top >= 8 ? top : target.bottom + 6}px`;
}

addEventListener("scroll", () => explained && putBeside(explained), { capture: true, passive: true });
