// Updates the page that is shown: it requests the page again and copies the differences. Attributes:
//   main[data-refresh]  seconds until the next request; without it the page does not change
//   #log[data-next]     position after the last line of a log; without it the log is complete
"use strict";

// copy makes an element like another one. It keeps elements that are still in the page, so that the focus, a
// selection and open details stay. Elements with an id are compared by it, others by their place.
function copy(from, to) {
  if (to.isEqualNode(from)) return;
  if (to.nodeType !== Node.ELEMENT_NODE || to.nodeName !== from.nodeName || to.id !== from.id) {
    to.replaceWith(from.cloneNode(true));
    return;
  }
  for (const { name, value } of from.attributes) {
    if (to.getAttribute(name) !== value) to.setAttribute(name, value);
  }
  for (const { name } of [...to.attributes]) {
    if (!from.hasAttribute(name) && !(name === "open" && to.nodeName === "DETAILS")) to.removeAttribute(name);
  }
  if (to.id === "log") {
    to.append(...from.children);
    return;
  }
  let place = to.firstChild;
  for (const child of from.childNodes) {
    const target = child.id ? [...to.children].find((other) => other.id === child.id) : !place?.id && place;
    if (!target) {
      to.insertBefore(child.cloneNode(true), place);
      continue;
    }
    if (target === place) place = place.nextSibling;
    else to.insertBefore(target, place);
    copy(child, target);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

const main = document.querySelector("main");
const offline = document.querySelector("#offline");

async function update() {
  const address = new URL(location);
  const log = document.querySelector("#log");
  if (log) address.searchParams.set("from", log.dataset.next);
  const response = await fetch(address, { cache: "no-store", signal: AbortSignal.timeout(30000) });
  // The session has ended, or what the page shows was deleted.
  if (response.redirected || response.status === 404) location.reload();
  if (!response.ok) throw new Error(response.statusText);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const bottom = window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 40;
  copy(page.querySelector("main"), main);
  document.title = page.title;
  if (log && bottom) window.scrollTo(0, document.documentElement.scrollHeight);
}

function visible() {
  return new Promise((resolve) => {
    if (!document.hidden) resolve();
    else document.addEventListener("visibilitychange", () => resolve(), { once: true });
  });
}

async function follow() {
  while (main.dataset.refresh !== undefined) {
    await new Promise((resolve) => setTimeout(resolve, offline.hidden ? main.dataset.refresh * 1000 : 3000));
    await visible();
    try {
      await update();
      offline.hidden = true;
    } catch {
      offline.hidden = false;
    }
  }
}

follow();
