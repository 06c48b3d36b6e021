/**
 * An answer as Markdown. The server turns text into safe HTML; while text streams in, what is not rendered yet stands
 * as plain text at the end. Rendering takes at most a twentieth of the time, however long the answer gets: the same
 * processor writes it.
 */

import { copyWith, element } from "./dom.js";

const LEAST_PAUSE = 150; // milliseconds
const SHARE = 20;
const AFTER_FAILURE = 2000; // milliseconds
const BLOCKS = "p, li, ul, ol, pre, code, blockquote, table, thead, tbody, tr, td, th, div, h1, h2, h3, h4, h5, h6";

/** The only place where text becomes HTML, and the policy that the page's security headers allow for it. */
const policy = globalThis.trustedTypes?.createPolicy("slipstream-markdown", { createHTML: (html) => html });
const parse = (html) => new DOMParser().parseFromString(policy?.createHTML(html) ?? html, "text/html").body;

export class MarkdownView {
  element = element("div", { className: "markdown" });
  #toHtml;
  #text = "";
  #rendered = ""; // as much of the text as is shown as HTML
  #tail = element("span", { className: "tail" });
  #working = false;
  #complete = false;
  #wake = () => {};

  /** toHtml: text to safe HTML, asynchronously */
  constructor(toHtml) {
    this.#toHtml = toHtml;
    this.element.onclick = (event) => {
      const pressed = event.target.closest("button.copy");
      if (pressed) copyWith(pressed, pressed.closest(".code").querySelector("code").textContent);
    };
  }

  /** Shows this text, which begins with what was written before. */
  write(text, complete = false) {
    this.#text = text;
    this.#complete = complete;
    this.#showTail();
    if (complete) this.#wake();
    if (!this.#working) this.#render();
  }

  async #render() {
    this.#working = true;
    while (this.#rendered !== this.#text.trimEnd()) {
      const text = this.#text.trimEnd();
      const wasComplete = this.#complete;
      const started = performance.now();
      let pause = AFTER_FAILURE;
      try {
        this.#replace(await this.#toHtml(text), text);
        pause = Math.max(LEAST_PAUSE, (performance.now() - started) * (SHARE - 1));
      } catch {
        if (wasComplete) break; // the text itself is there to read
      }
      if (!this.#complete) await this.#sleep(pause);
    }
    this.#working = false;
  }

  #sleep(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  #replace(html, text) {
    const body = parse(html);
    decorate(body);
    this.#tail.remove();
    this.#rendered = text;
    replaceChanged(this.element, [...body.childNodes]);
    this.#showTail();
  }

  #showTail() {
    const tail = this.#text.slice(this.#rendered.length);
    this.#tail.textContent = tail;
    if (tail.trim() === "") {
      this.#tail.remove();
    } else if (!this.#tail.isConnected) {
      lastBlock(this.element).append(this.#tail);
    }
  }
}

/** Where text would go on: in the last block of the last block, and so forth. */
function lastBlock(node) {
  const last = [...node.childNodes].findLast((child) => child instanceof Element || child.data.trim() !== "");
  return last instanceof Element && last.matches(BLOCKS) ? lastBlock(last) : node;
}

/** Keeps the nodes before the first that changed: a selection or a scrolled block in them stays as it is. */
function replaceChanged(container, fresh) {
  const old = [...container.childNodes];
  let same = 0;
  while (same < old.length && same < fresh.length && old[same].isEqualNode(fresh[same])) same++;
  for (const node of old.slice(same)) node.remove();
  container.append(...fresh.slice(same));
}

/** Code gets a bar with its language and a copy button; what may be wide gets a frame that scrolls. */
function decorate(body) {
  for (const code of body.querySelectorAll("pre > code")) {
    const language = code.className.replace(/^language-/, "");
    const bar = element(
      "div",
      { className: "code-bar" },
      element("span", {}, language),
      element("button", { type: "button", className: "quiet copy" }, "Copy"),
    );
    code.textContent = code.textContent.replace(/\n$/, "");
    const frame = element("div", { className: "code" }, bar);
    const block = code.parentElement;
    block.tabIndex = 0;
    block.setAttribute("aria-label", `Code ${language}`.trim());
    block.replaceWith(frame);
    frame.append(block);
  }
  for (const table of body.querySelectorAll("table")) {
    const frame = element("div", { className: "wide-table", tabIndex: 0 });
    table.replaceWith(frame);
    frame.append(table);
  }
}
