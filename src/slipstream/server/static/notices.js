/** Messages at the edge of the page that stay until they are dismissed or replaced. */

import { button, byId, element } from "./dom.js";

const shown = new Map();

/** Shows a sentence; a second one about the same `topic` replaces the first. `action`: [word, function] of a button. */
export function notify(topic, sentence, action) {
  dismiss(topic);
  const buttons = [button("Dismiss", () => dismiss(topic), { className: "quiet" })];
  if (action) {
    const [word, work] = action;
    buttons.unshift(
      button(word, () => {
        dismiss(topic);
        work();
      }),
    );
  }
  const notice = element("div", { className: "notice" }, element("p", {}, sentence), ...buttons);
  shown.set(topic, notice);
  byId("notices").append(notice);
}

export function dismiss(topic) {
  shown.get(topic)?.remove();
  shown.delete(topic);
}

/** Says something to screen readers alone. */
export function announce(sentence) {
  byId("announcer").textContent = sentence;
}
