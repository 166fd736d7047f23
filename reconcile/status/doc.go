// Package status knows what one agent reports about itself: the [Document] that
// GET /status returns, the probes GET /healthz and GET /readyz, the metrics of
// GET /metrics, and the text that people read. It will never know where the
// agent's HTTP server listens, how a configuration is found, or what a flag is
// called: cmd/cmwa opens the listener and names the URL.
//
// [Handler] is the server, [Fetch] the client. They share a package because they
// share one type: a field of the Document is declared, documented, filled and
// printed here, and [Version] grows when a client of an earlier version would read
// it wrong. It is a package of its own because reconcile must not import net/http.
//
// A Document is computed from snapshots for each request, and the metrics are
// computed from a Document. So the pages cannot contradict each other, and no
// counter is kept twice. A collector that describes its series in advance would
// need a fixed set of pools, so the collector is an unchecked one.
//
// Nothing here contains a secret, because everybody who reaches the port can read
// it, and a probe of Kubernetes has no credentials. A Document names keys that have
// changed and never their values. Problems are those of schema/position, whose
// messages quote no value except harmless numbers and words. Names of pools, their
// targets, the URLs of their services, IDs of jobs and paths of files are shown.
//
// A client treats a Document as foreign input: it bounds the time and the size of a
// response, follows no redirect, quotes nothing of a response in an error, and prints
// no character that could control a terminal.
package status
