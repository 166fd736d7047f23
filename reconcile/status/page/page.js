// Replaces the content of the page with each event of the agent. An open connection that ends is opened again.
"use strict";
const main = document.querySelector("main");
const lost = document.getElementById("lost");

function follow() {
  const events = new EventSource("page/events");
  events.onmessage = (event) => {
    lost.hidden = true;
    main.innerHTML = event.data;
  };
  events.onerror = () => {
    lost.hidden = false;
    if (events.readyState === EventSource.CLOSED) {
      setTimeout(follow, 10000);
    }
  };
}

follow();
