package cloud

// Routes returns the values of [runtime.ServiceCall].Route for all calls of a [Client].
func Routes() []string {
	return []string{
		"GET " + pollPath,
		"POST " + exchangePath,
		"GET " + jobRoute,
		"PATCH " + jobRoute + "/{step}/status",
		"POST " + jobRoute + "/{step}/logs",
		"POST " + jobRoute + "/heartbeat",
		"GET /api/deployments/{id}/status",
		"POST /api/agent-workflows/{subject}/check",
		"GET " + capabilitiesPath,
		"POST " + leasesPath + "/acquire",
		"POST " + leaseRoute + "/begin",
		"POST " + leaseRoute + "/renew",
		"POST " + leaseRoute + "/complete",
	}
}
