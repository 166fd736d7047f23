// Package control has the local socket of a running agent, and the commands cmwa drain, pause,
// resume and jobs stop, which use it; cmwa status and cmwa plan --live use it too. It knows the protocol,
// the socket file and which pools are paused. It does not know how an agent is configured, how a
// pool pauses, or what a status and a plan contain.
//
// # Protocol
//
// The socket is the file control in the state directory of the agent (see package
// runtime/agentid). A connection carries one request and one response, each a JSON object on
// one line. Both have the version of the protocol; a message of another version is refused
// with an error that names both versions. A request may contain a configuration file. A
// connection is closed after 5 s, or after a minute for a plan. At most 8 connections are served
// at a time; others wait.
//
// # Who may connect
//
// The socket has mode 0600. On Linux the agent also reads the user of each connection from
// the kernel, and serves only its own user and root, because the mode may have been changed by
// mistake.
//
// # Decisions
//
// The commands find the agent by its state directory, not by its port: a port may be in use by
// another agent, and an agent needs none. The agent computes a plan itself, because only it has
// its variables, its working directory and the configuration in force. The present file may be an
// edit that was rejected.
//
// The HTTP server of the agent is not used, because every client that reaches its port can
// read its pages, and a command that stops an agent must be limited to its owner.
//
// The agent has locked its directory, so a socket file that exists belongs to an agent that has
// ended, and is replaced. If the socket cannot be opened, the agent logs why and works
// without it.
//
// The kernel limits the path of a socket to about 100 bytes. On Linux a longer path is opened
// through /proc/self/fd, which has no such limit and needs no second file. On other systems a
// longer path is an error, which names the setting to change.
//
// The paused pools are stored in the file paused next to the socket: after a crash or a
// reboot during maintenance, the agent must not claim jobs for a pool that its operator has
// paused.
package control
