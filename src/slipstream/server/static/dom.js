/** Small helpers for elements. Text goes in as text; nothing here understands HTML. */

/** The element of the page with this id. */
export const byId = (id) => document.getElementById(id);

/** A new element. Names that are properties of it are set as such, all others as attributes. */
export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

/** A button with a word on it. */
export function button(text, onclick, properties = {}) {
  return element("button", { type: "button", onclick, ...properties }, text);
}

/** A function that runs `work` once before the next frame, however often it is called until then. */
export function oncePerFrame(work) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      work();
    });
  };
}

/** Puts text on the clipboard; false if the browser does not allow it. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // The clipboard's interface exists only on loopback and behind TLS; the old way works elsewhere too.
    const area = element("textarea", { className: "hidden", value: text });
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return copied;
  }
}

/** A copy button that says for a moment that it has worked. `text` is asked when it is pressed. */
export async function copyWith(pressed, text) {
  const word = pressed.textContent;
  pressed.textContent = (await copyText(text)) ? "Copied" : "Not allowed; select it";
  pressed.disabled = true;
  setTimeout(() => {
    pressed.textContent = word;
    pressed.disabled = false;
  }, 1500);
}
