// Package status contains all reports of an agent about itself: the [Document] that
// GET /status returns, the probes GET /healthz and GET /readyz, the metrics of
// GET /metrics, and the text for people. It does not depend on where the agent's HTTP server
// listens, how a configuration is found, or which flags exist: cmd/cmwa opens the
// listener and passes the URL.
//
// [Handler] is the server, [Fetch] the client. They share a package because they share
// one type: a field of the Document is declared, documented, filled and printed here, and
// [Version] grows when a client of an earlier version would misread it. The package is
// not part of reconcile because reconcile must not import net/http.
//
// A Document is computed from snapshots for each request, and the metrics of the state
// are computed from a Document, so the pages cannot contradict each other. [Counters] counts the
// work of the whole process: a pool continues the counts of the pool that it replaces, if both
// have the same name.
//
// No page contains a secret, because every client that reaches the port can read it, and
// a probe of Kubernetes has no credentials. A Document contains the values that the last
// reload changed, with a mark in place of a secret. Problems of the configuration are those of
// schema/position, whose messages quote only harmless numbers and names of choices. The pages
// contain names of pools, their targets, the URLs of their services, IDs of jobs and paths of
// files.
//
// A client treats a Document as untrusted input: it limits the time and the size of a
// response, follows no redirect, quotes nothing of a response in an error, and prints no
// character that could control a terminal.
package status
