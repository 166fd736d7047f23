package cloud

// Routes returns the routes of all calls, which are the possible values of
// [runtime.ServiceCall].Route.
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
