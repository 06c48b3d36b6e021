/** The form with the system prompt, sampling parameters and speculation. Empty fields take the server's values. */

import { byId } from "./dom.js";

const SERVER_NAMES = { repeat_penalty: "repetition_penalty" };

export class Parameters {
  #form = byId("parameter-form");
  #problem = byId("parameter-problem");

  constructor(store) {
    for (const [name, value] of Object.entries(store.parameters)) {
      if (this.#form.elements[name]) this.#form.elements[name].value = value;
    }
    this.#form.oninput = () => {
      store.parameters = Object.fromEntries(new FormData(this.#form));
      this.#check();
    };
    this.#form.onreset = () => setTimeout(this.#form.oninput);
    this.#form.onsubmit = (event) => event.preventDefault();
    this.#check();
  }

  /** Shows the server's own values where nothing is filled in. */
  showDefaults(defaults) {
    for (const field of this.#form.querySelectorAll("input")) {
      const value = defaults[SERVER_NAMES[field.name] ?? field.name];
      if (typeof value === "number") field.placeholder = String(Number(value.toPrecision(6)));
    }
  }

  /** True if every field can be sent; otherwise the first one that cannot is shown. */
  ready() {
    const wrong = this.#check();
    if (!wrong) return true;
    document.dispatchEvent(new Event("show-sidebar"));
    byId("parameters").open = true;
    wrong.focus();
    return false;
  }

  /**
   * The body of a request for an answer to these messages, but for the model. The seed is chosen here if the user did
   * not, so that it can be shown.
   */
  request(messages) {
    const { system, speculation } = this.#form.elements;
    const first = system.value.trim() ? [{ role: "system", content: system.value.trim() }] : [];
    const body = {
      messages: [...first, ...messages],
      stream: true,
      stream_options: { include_usage: true },
      seed: Math.floor(Math.random() * 2 ** 31),
      speculation: { mode: speculation.value, details: true },
    };
    for (const field of this.#form.querySelectorAll("input")) {
      if (field.value !== "") body[field.name] = Number(field.value);
    }
    return body;
  }

  /** Marks the fields that cannot be; the first of them, if any. */
  #check() {
    const fields = [...this.#form.querySelectorAll("input")];
    for (const field of fields) field.setAttribute("aria-invalid", String(!field.validity.valid));
    const wrong = fields.find((field) => !field.validity.valid);
    this.#problem.textContent = wrong ? `${wrong.labels[0].firstChild.textContent.trim()}: ${complaint(wrong)}` : "";
    return wrong;
  }
}

function complaint(field) {
  const kind = field.step === "1" ? "a whole number" : "a number";
  return field.max ? `enter ${kind} from ${field.min} to ${field.max}.` : `enter ${kind} of at least ${field.min}.`;
}
