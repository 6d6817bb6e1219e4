// Browsers start no workers for a page that was opened from disk. There, search runs in a hidden frame
// that behaves like one; nothing is loaded but the script that the worker would have loaded.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const tell = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (typeof this.onmessage === "function") this.onmessage(event);
      };
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.addEventListener("load", () => {
        const inside = this.frame.contentWindow;
        inside.postMessage = tell;
        const script = inside.document.createElement("script");
        script.src = new URL(address, location.href).href;
        script.addEventListener("load", () => {
          const waiting = this.waiting;
          this.waiting = null;
          waiting.forEach((data) => this.postMessage(data));
        });
        inside.document.body.append(script);
      }, { once: true });
      this.frame.srcdoc = "<!doctype html><title>search</title><body></body>";
      document.documentElement.append(this.frame);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
