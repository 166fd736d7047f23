package main

import "testing"

// TestRunProxyVariable checks that the agent does not start if a variable that names a proxy is not
// valid: it would connect to the service without the proxy.
func TestRunProxyVariable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "process")
	agent := w.agentWith([]string{"HTTPS_PROXY=http://someone:proxy-password@["})
	agent.exit(2)
	agent.wantPrinted(1, "HTTPS_PROXY is not the URL of a proxy: set it to a URL such as")
	agent.wantPrinted(0, "proxy-password")
}
