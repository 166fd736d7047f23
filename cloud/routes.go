package cloud

// Routes returns the values of [runtime.ServiceCall].Route for the calls about deployments.
// It does not contain the routes of the calls about capabilities and leases.
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
	}
}
