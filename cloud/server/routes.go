package server

import (
	"net/http"
	"strings"
)

// routes returns the handler of the API. Each route lists the kinds of tokens that
// it accepts.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	route := func(pattern string, handle handler, allowed ...kind) {
		mux.Handle(pattern, s.serve(handle, allowed...))
	}
	const stack = "/api/stacks/{org}/{project}/{stack}"
	const pools = "/api/orgs/{org}/agent-pools"
	const activities = pools + "/{pool}/activities" // extension: see the package comment
	const leases = "/api/background-activities/worker/lease"

	// Calls of users. Programs in jobs may make some of these calls, too.
	route("GET /api/capabilities", s.capabilities)
	route("GET /api/user", s.user, userToken, stackToken)
	route("GET /api/user/organizations/default", s.defaultOrganization, userToken, stackToken)
	route("GET /api/user/stacks", s.listStacks, userToken)
	route("PATCH /api/orgs/{org}", s.editOrganization, userToken)

	route("GET "+pools, s.listPools, userToken)
	route("POST "+pools, s.createPool, userToken)
	route("GET "+pools+"/{pool}", s.getPool, userToken)
	route("PATCH "+pools+"/{pool}", s.editPool, userToken)
	route("DELETE "+pools+"/{pool}", s.deletePool, userToken)
	route("POST "+pools+"/{pool}/tokens", s.createPoolToken, userToken) // extension: see the package comment

	route("GET "+activities, s.listActivities, userToken)
	route("POST "+activities, s.createActivity, userToken)
	route("GET "+activities+"/{id}", s.getActivity, userToken)
	route("GET "+activities+"/{id}/logs", s.getActivityLogs, userToken)
	route("POST "+activities+"/{id}/cancel", s.cancelActivity, userToken)

	route("POST /api/stacks/{org}/{project}", s.createStack, userToken)
	route("GET /api/stacks/{org}/{project}", s.projectExists, userToken)
	route("GET "+stack, s.getStack, userToken, stackToken)
	route("DELETE "+stack, s.deleteStack, userToken)
	route("PATCH "+stack+"/tags", s.replaceTags, userToken, stackToken)
	route("POST "+stack+"/tags", s.addTag, userToken)
	route("PATCH "+stack+"/tags/{tag}", s.editTag, userToken)
	route("DELETE "+stack+"/tags/{tag}", s.deleteTag, userToken)
	route("GET "+stack+"/config", s.getStackConfig, userToken, stackToken)
	route("PUT "+stack+"/config", s.putStackConfig, userToken)
	route("DELETE "+stack+"/config", s.deleteStackConfig, userToken)

	route("POST "+stack+"/encrypt", s.encryptValue, userToken, stackToken)
	route("POST "+stack+"/batch-encrypt", s.encryptValues, userToken, stackToken)
	route("POST "+stack+"/decrypt", s.decryptValue, userToken, stackToken)
	route("POST "+stack+"/batch-decrypt", s.decryptValues, userToken, stackToken)
	route("POST "+stack+"/decrypt/log-decryption", s.noteDecryption, userToken, stackToken)
	route("POST "+stack+"/decrypt/log-batch-decryption", s.noteDecryption, userToken, stackToken)

	route("GET "+stack+"/deployments/settings", s.getSettings, userToken)
	route("POST "+stack+"/deployments/settings", s.patchSettings, userToken)
	route("PUT "+stack+"/deployments/settings", s.putSettings, userToken)
	route("DELETE "+stack+"/deployments/settings", s.deleteSettings, userToken)
	route("POST "+stack+"/deployments/settings/encrypt", s.encryptSetting, userToken)

	route("POST "+stack+"/deployments", s.createDeployment, userToken)
	route("GET "+stack+"/deployments", s.listDeployments, userToken)
	route("GET "+stack+"/deployments/{id}", s.getDeployment, userToken)
	route("GET "+stack+"/deployments/{id}/{part}", s.getDeploymentPart, userToken)
	route("POST "+stack+"/deployments/{id}/cancel", s.cancelDeployment, userToken)

	// Calls of agents.
	route("GET /api/deployments/poll", s.poll, poolToken)
	route("GET /api/deployments/{id}/status", s.deploymentStatus, poolToken)
	route("POST /api/agent-workflows/{type}", s.acknowledge, poolToken)
	route("POST /api/agent-workflows/{subject}/check", s.check, poolToken)
	route("GET /api/background-activities/token", s.workerToken, poolToken)
	route("POST /api/background-activities/configuration", s.workerConfiguration, poolToken)
	route("POST "+leases+"/acquire", s.acquireLease, poolToken)
	route("POST "+leases+"/{lease}/begin", s.beginLease, leaseToken)       // extension
	route("POST "+leases+"/{lease}/renew", s.renewLease, leaseToken)       // extension
	route("POST "+leases+"/{lease}/complete", s.completeLease, leaseToken) // extension
	route("POST /api/oauth/token", s.exchangeToken)

	// Calls of those who verify the OIDC tokens of jobs.
	route("GET "+oidcPath+"/.well-known/openid-configuration", s.oidcDiscovery)
	route("GET "+oidcPath+"/.well-known/jwks", s.oidcKeys)

	// Calls of runners, and of the programs of jobs.
	route("GET /api/workflow/jobs/{job}", s.definition, jobToken)
	route("PATCH /api/workflow/jobs/{job}/{step}/status", s.reportStatus, jobToken)
	route("POST /api/workflow/jobs/{job}/{step}/logs", s.reportLogs, jobToken)
	route("POST /api/workflow/jobs/{job}/heartbeat", s.heartbeat, jobToken)
	route("GET /api/deployments/executor", s.executor, stackToken, userToken)

	route("/", func(c *call) (reply, error) {
		hint := ""
		if strings.HasPrefix(c.URL.Path, "/api/stacks/") { // such as a call of pulumi about the state of a stack
			hint = ": this service stores no stack state; for pulumi, set PULUMI_BACKEND_URL, such as file:///state"
		}
		return reply{}, notFound("unknown path or method: %s %s%s", c.Method, c.URL.Path, hint)
	})
	return mux
}

// executor returns a problem, because this service has no deployment executor to download:
// the steps of its jobs are complete scripts.
func (s *Server) executor(*call) (reply, error) {
	return reply{}, notFound("this service has no deployment executor: the steps of its jobs are complete scripts")
}
